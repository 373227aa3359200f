from collections.abc import Mapping
from typing import Any, ClassVar, cast

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import holding_knowledge_bases
from kb.base.shapes import as_values
from kb.content.models import Chunk, Document
from kb.ingest.api.knowledge_bases import ChunkingSerializer
from kb.ingest.services.chunk_preview import MOST_CHARACTERS, Preview, preview_document, preview_text
from kb.ingest.services.chunks import (
    KEYWORD_CHARACTERS,
    MOST_MERGED,
    MOST_PARTS,
    QUESTION_CHARACTERS,
    TEXT_CHARACTERS,
    chunk_split,
    chunk_update,
    chunks_change,
    chunks_merge,
    neighbours_of,
)
from kb.ingest.services.duplicates import Found, duplicate_scan_request, duplicates_of, near_duplicates
from kb.ingest.services.pictures import ShownPicture, pictures_of_chunks
from kb.ingest.services.rechunk import MOST_ENTRIES
from kb.web.api.fields import (
    MAX_ID,
    NOT_MODIFIED,
    ListField,
    StrictBooleanField,
    StrictCharField,
    StrictIntegerField,
    StrictSerializer,
    answers,
    shape,
)
from kb.web.api.idempotency import IF_MATCH, IF_NONE_MATCH, RETURNED, Etagged, conditional, require_match
from kb.web.api.schema import CHUNK_EXAMPLES
from kb.web.api.views import ApiViewSet, Flag, ListFilters, Text, Whole, asked, one
from retrieval.types import PageRegion

MOST_AT_ONCE = 10_000
ACTIONS = ("enable", "disable", "delete")


class ChunkListSerializer(serializers.ListSerializer[Any]):
    """Reads the pictures of all chunks of a list at once."""

    def to_representation(self, data: Any) -> Any:
        chunks = list(data)
        cast(ChunkSerializer, self.child).shown = pictures_of_chunks(chunk.pk for chunk in chunks if chunk.pictures)
        return super().to_representation(chunks)


class ChunkSerializer(Etagged, serializers.ModelSerializer[Chunk]):
    shown: Mapping[int, tuple[ShownPicture, ...]] | None = None
    pictures = serializers.SerializerMethodField(help_text="That stand in it.")
    regions = shape(PageRegion)(many=True, help_text="Where it stands on the pages of its document.")
    is_edited = serializers.SerializerMethodField(help_text="Whether its text is not as it was cut from the document.")

    class Meta:
        model = Chunk
        list_serializer_class = ChunkListSerializer
        fields = (
            "id",
            "document_id",
            "knowledge_base_id",
            "position",
            "text",
            "page",
            "seconds",
            "regions",
            "heading_path",
            "pictures",
            "keywords",
            "questions",
            "enabled",
            "is_edited",
            "token_count",
            "updated_at",
            "etag",
        )
        read_only_fields = fields

    @extend_schema_field(shape(ShownPicture)(many=True))
    def get_pictures(self, chunk: Chunk) -> Any:
        if not chunk.pictures:
            return []
        shown = pictures_of_chunks([chunk.pk]) if self.shown is None else self.shown
        return as_values(shown.get(chunk.pk, ()))

    def get_is_edited(self, chunk: Chunk) -> bool:
        return bool(chunk.cut_text)


class ChunkChangeSerializer(StrictSerializer):
    text = StrictCharField(max_length=TEXT_CHARACTERS, trim_whitespace=False)
    enabled = StrictBooleanField(help_text="A disabled chunk is kept, and found by no search.")
    questions = ListField(
        child=StrictCharField(max_length=QUESTION_CHARACTERS),
        max_length=MOST_ENTRIES,
        help_text="All questions that it answers: whoever asks alike finds it.",
    )
    keywords = ListField(
        child=StrictCharField(max_length=KEYWORD_CHARACTERS),
        max_length=MOST_ENTRIES,
        help_text="All keywords that it is found by. None: they are extracted from its text.",
    )


class ChunkIdsField(ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictIntegerField(min_value=1, max_value=MAX_ID), **kwargs)


class ChunkMergeSerializer(StrictSerializer):
    chunk_ids = ChunkIdsField(min_length=2, max_length=MOST_MERGED, help_text="Chunks that follow one another.")


class ChunkSplitSerializer(StrictSerializer):
    at = ListField(
        child=StrictIntegerField(min_value=1, max_value=TEXT_CHARACTERS),
        min_length=1,
        max_length=MOST_PARTS - 1,
        required=False,
        help_text="Offsets in its text, in characters, where parts begin. This or `texts`.",
    )
    texts = ListField(
        child=StrictCharField(max_length=TEXT_CHARACTERS),
        min_length=2,
        max_length=MOST_PARTS,
        required=False,
        help_text="The parts, which together are its text; white space between them may be left out. This or `at`.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("at" in attrs) == ("texts" in attrs):
            raise serializers.ValidationError({"at": [_("Give offsets, or the texts of the parts in “texts”.")]})
        return attrs


class BulkChunksSerializer(StrictSerializer):
    ids = ChunkIdsField(min_length=1, max_length=MOST_AT_ONCE, help_text="Chunks of the knowledge base.")
    action = serializers.ChoiceField(ACTIONS)


class BulkChangedSerializer(serializers.Serializer[Any]):
    changed = serializers.IntegerField(help_text="How many were not so already.")


class NeighboursSerializer(serializers.Serializer[Any]):
    previous = ChunkSerializer(many=True, help_text="In the order of the document.")
    next = ChunkSerializer(many=True)


class NeighboursFilterSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField(
        required=False, default=1, min_value=1, max_value=20, help_text="How many on each side."
    )


class DuplicateSerializer(serializers.Serializer[Any]):
    similarity = serializers.FloatField(help_text="Terms in common, of those that one of the two has.")
    chunk = ChunkSerializer()


class DuplicatesSerializer(serializers.Serializer[Any]):
    duplicates = DuplicateSerializer(many=True, help_text="The most alike first.")


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read a chunk",
        parameters=[IF_NONE_MATCH, RETURNED],
        responses=answers({200: ChunkSerializer, 304: NOT_MODIFIED}, 404),
    ),
    partial_update=extend_schema(
        summary="Change a chunk, and what the indexes hold of it",
        parameters=[IF_MATCH, RETURNED],
        request=ChunkChangeSerializer,
        responses=answers({200: ChunkSerializer}, 400, 403, 404, 409, 412, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a chunk",
        description="A document that is processed again has it again: to keep it out of searches, disable it.",
        parameters=[IF_MATCH],
        responses=answers({204: None}, 403, 404, 412),
    ),
    split=extend_schema(
        operation_id="chunk_split",
        summary="Make several chunks of one",
        description="The first has its id. Re-chunking the document leaves the parts as they are.",
        request=ChunkSplitSerializer,
        examples=CHUNK_EXAMPLES["split"],
        responses=answers({200: ChunkSerializer(many=True)}, 400, 403, 404, 409, 413, 415),
    ),
    neighbours=extend_schema(
        operation_id="chunk_neighbours",
        summary="Read the chunks before and after one",
        parameters=[NeighboursFilterSerializer],
        responses=answers({200: NeighboursSerializer}, 400, 404),
    ),
    duplicates=extend_schema(
        operation_id="chunk_duplicates",
        summary="List the near-duplicates of a chunk",
        responses=answers({200: DuplicatesSerializer}, 404),
    ),
)
class ChunkViewSet(ApiViewSet):
    pagination_class = None

    def retrieve(self, request: Request, pk: int) -> Response:
        return conditional(request, ChunkSerializer(one(Chunk.objects.visible_to(self.principal), pk)).data)

    def partial_update(self, request: Request, pk: int) -> Response:
        chunk = self.editable(self._visible(), pk)
        changes = self.checked(ChunkChangeSerializer, partial=True)
        require_match(request, ChunkSerializer(chunk).data)  # before a model runs for nothing
        chunk_update(
            chunk,
            **{"text": chunk.text, "enabled": chunk.enabled, **changes},
            require=lambda locked: require_match(request, ChunkSerializer(locked).data),
        )
        described = ChunkSerializer(one(self._visible(), pk)).data
        return Response(described, headers={"ETag": described["etag"]})

    def destroy(self, request: Request, pk: int) -> Response:
        chunk = self.editable(self._visible(), pk)
        with holding_knowledge_bases([chunk.knowledge_base_id]):
            require_match(request, ChunkSerializer(one(self._visible(), pk)).data)
            chunks_change(knowledge_base=chunk.knowledge_base, chunk_ids=[chunk.pk], action="delete")
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def split(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        chunk = self.editable(self._visible(), pk)
        parts = chunk_split(chunk=chunk, **self.checked(ChunkSplitSerializer))
        return Response(ChunkSerializer(parts, many=True).data)

    @action(detail=True)
    def neighbours(self, request: Request, pk: int) -> Response:
        chunk = one(self._visible(), pk)
        previous, following = neighbours_of(chunk, count=asked(NeighboursFilterSerializer, request)["count"])
        return Response(NeighboursSerializer({"previous": previous, "next": following}).data)

    @action(detail=True)
    def duplicates(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        found = duplicates_of(one(self._visible(), pk))
        pairs = [{"similarity": round(similarity, 4), "chunk": chunk} for chunk, similarity in found]
        return Response(DuplicatesSerializer({"duplicates": pairs}).data)

    def _visible(self) -> QuerySet[Chunk]:
        rows: QuerySet[Chunk] = Chunk.objects.visible_to(self.principal).select_related("document", "knowledge_base")
        return rows


@extend_schema_view(
    merge=extend_schema(
        operation_id="chunks_merge",
        summary="Make one chunk of several that follow one another",
        description="It has the id and the place of the first. What two neighbours have in common is in it once. Re-chunking the "
        "document leaves it as it is.",
        request=ChunkMergeSerializer,
        examples=CHUNK_EXAMPLES["merge"],
        responses=answers({200: ChunkSerializer}, 400, 403, 404, 409, 413, 415),
    )
)
class ChunkMergeViewSet(ApiViewSet):
    @action(detail=True, methods=["post"])
    def merge(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        rows: QuerySet[Any] = Document.objects.visible_to(self.principal).select_related("knowledge_base")
        document = self.editable(rows, pk)
        return Response(ChunkSerializer(chunks_merge(document=document, **self.checked(ChunkMergeSerializer))).data)


@extend_schema_view(
    change=extend_schema(
        operation_id="chunks_bulk",
        summary="Enable, disable or delete many chunks",
        request=BulkChunksSerializer,
        examples=CHUNK_EXAMPLES["bulk"],
        responses=answers({200: BulkChangedSerializer}, 400, 403, 404, 413, 415),
    )
)
class BulkChunksViewSet(ApiViewSet):
    @action(detail=True, methods=["post"])
    def change(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), pk)
        wanted = self.checked(BulkChunksSerializer)
        changed = chunks_change(knowledge_base=kb, chunk_ids=wanted["ids"], action=wanted["action"])
        return Response({"changed": changed})


@extend_schema_view(
    retrieve=extend_schema(
        summary="List the near-duplicates of a knowledge base",
        description="Among its enabled chunks, by the terms that they have in common. Those of a large one are as a worker "
        "found them last.",
        responses=answers({200: shape(Found, "NearDuplicates")}, 404),
    ),
    create=extend_schema(
        summary="Have a worker look for the near-duplicates of a knowledge base",
        request=None,
        responses=answers({202: shape(Found, "NearDuplicates")}, 403, 404),
    ),
)
class NearDuplicatesViewSet(ApiViewSet):
    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), pk)
        return Response(as_values(near_duplicates(kb)))

    def create(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), pk)
        duplicate_scan_request(kb)
        return Response(as_values(near_duplicates(kb)), status=status.HTTP_202_ACCEPTED)


class ChunkFilters(ListFilters):
    orders: ClassVar = ("position", "-position")
    q = Text(field_name="text", lookup_expr="icontains", help_text="Stands in the text.")
    enabled = Flag(help_text="Whether searches find it.")
    is_edited = Flag(method="edited", help_text="Whether its text is not as it was cut from the document.")
    page = Whole(help_text="Of the document that it is on.")

    def edited(self, rows: QuerySet[Any], _name: str, value: bool) -> QuerySet[Any]:  # noqa: FBT001 - the library's
        return rows.exclude(cut_text="") if value else rows.filter(cut_text="")


class ChunkPreviewRequestSerializer(ChunkingSerializer):
    document_id = StrictIntegerField(min_value=1, required=False, help_text="A document of the knowledge base.")
    text = StrictCharField(
        max_length=MOST_CHARACTERS,
        required=False,
        allow_blank=True,
        trim_whitespace=False,
        help_text="Or a text that is in no document.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("document_id" in attrs) == ("text" in attrs):
            raise serializers.ValidationError({"document_id": _("Give either document_id or text.")})
        return attrs


@extend_schema_view(
    create=extend_schema(
        operation_id="chunk_preview",
        summary="Tell how settings would cut a document or a text",
        description="Nothing is written. Settings that are left out are those of the knowledge base. A key with the "
        "scope read suffices.",
        request=ChunkPreviewRequestSerializer,
        responses=answers({200: shape(Preview, "ChunkPreview")}, 400, 404, 413, 415),
    )
)
class ChunkPreviewViewSet(ApiViewSet):
    post_reads = True

    def create(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), pk)
        fields = self.checked(ChunkPreviewRequestSerializer)
        if "text" in fields:
            preview = preview_text(kb, fields["text"], fields)
        else:
            documents = Document.objects.visible_to(self.principal).filter(knowledge_base=kb)
            preview = preview_document(kb, one(documents, fields["document_id"]), fields)
        return Response(as_values(preview))
