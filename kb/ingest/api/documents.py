from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.access.services.rate_limits import UPLOAD
from kb.base.net.addresses import URL_CHARACTERS
from kb.base.waits import waiting_outside
from kb.content.folders.services import documents_in
from kb.content.models import Chunk, Document, Folder
from kb.content.services import document_overview
from kb.ingest.api.chunks import ChunkFilters, ChunkSerializer
from kb.ingest.parser.archives import ARCHIVE_EXTENSIONS
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS
from kb.ingest.services.documents import (
    document_add,
    document_add_text,
    document_delete,
    document_held,
    document_replace_file,
    document_requeue,
    document_update,
    error_sentence,
    file_response,
    remark_sentences,
)
from kb.web.api.callers import user_of
from kb.web.api.fields import (
    NOT_MODIFIED,
    IdField,
    JsonObjectField,
    ShallowJSONParser,
    StrictCharField,
    StrictSerializer,
    TagsField,
    answers,
)
from kb.web.api.idempotency import (
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    RETURNED,
    Etagged,
    conditional,
    idempotent,
    require_match,
)
from kb.web.api.views import AnyAccept, ApiViewSet, Created, ListFilters, Moment, OneOf, Related, Text, Whole, one


class DocumentErrorSerializer(serializers.Serializer[Document]):
    code = serializers.CharField(source="error_code")
    message = serializers.SerializerMethodField()

    def get_message(self, document: Document) -> str:
        return error_sentence(document)


class DocumentSerializer(Etagged, serializers.ModelSerializer[Document]):
    metadata = JsonObjectField(read_only=True)
    chunk_count = serializers.IntegerField(read_only=True)
    stage = serializers.ChoiceField(
        Document.Stage.choices, allow_blank=True, read_only=True, help_text="While it is processing; else blank."
    )
    error = serializers.SerializerMethodField(help_text="Why it failed, as a sentence to act on.")
    remarks = serializers.SerializerMethodField(help_text="What was left out of it or guessed, as sentences to act on.")

    class Meta:
        model = Document
        fields = (
            "id",
            "knowledge_base_id",
            "folder_id",
            "title",
            "source",
            "source_type",
            "mime",
            "size",
            "sha256",
            "metadata",
            "tags",
            "status",
            "stage",
            "progress",
            "error",
            "remarks",
            "batch_id",
            "chunk_count",
            "created_at",
            "updated_at",
            "etag",
        )
        read_only_fields = fields

    @extend_schema_field(DocumentErrorSerializer(allow_null=True))
    def get_error(self, document: Document) -> dict[str, str] | None:
        return dict(DocumentErrorSerializer(document).data) if document.error else None

    def get_remarks(self, document: Document) -> list[str]:
        return remark_sentences(document)


USUAL_SOURCE_TYPE = "Left out: video for subtitles and transcripts with times, book for all else."


class DocumentDetailsSerializer(StrictSerializer):
    """What a caller may say about a document, whichever way its content comes."""

    title = StrictCharField(
        max_length=500, required=False, help_text="Left out: taken from the content, or from the file's name."
    )
    source_type = serializers.ChoiceField(Document.SourceType.choices, required=False, help_text=USUAL_SOURCE_TYPE)
    metadata = JsonObjectField(
        required=False, help_text="Returned with every result. In a form: the text of a JSON object."
    )
    tags = TagsField(required=False)
    folder_id = IdField(required=False, allow_null=True, help_text="It lies in; null: at the top.")


class DocumentUploadSerializer(DocumentDetailsSerializer):
    file = serializers.FileField(
        allow_empty_file=True, help_text=f"One of {', '.join((*SUPPORTED_EXTENSIONS, *ARCHIVE_EXTENSIONS))}."
    )


class DocumentFileSerializer(StrictSerializer):
    file = serializers.FileField(allow_empty_file=True, help_text="Of any type that can be uploaded, but no archive.")


class DocumentReplaceSerializer(DocumentDetailsSerializer):
    """All that may be said about a document; what is left out is blank from now on."""

    title = StrictCharField(max_length=500, help_text="It is part of what is searched.")
    source_type = serializers.ChoiceField(Document.SourceType.choices, default=Document.SourceType.BOOK)
    metadata = JsonObjectField(default=dict, help_text="Returned with every result.")
    tags = TagsField(default=list)
    folder_id = IdField(default=None, allow_null=True, help_text="It lies in; null: at the top.")


class DocumentTextSerializer(DocumentDetailsSerializer):
    text = StrictCharField(trim_whitespace=False, required=False, help_text="This or `url`.")
    url = StrictCharField(
        max_length=URL_CHARACTERS, required=False, help_text="Of a public page, which is read at once."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("text" in attrs) == ("url" in attrs):
            raise serializers.ValidationError({"text": [_("Give a text, or the address of a page in “url”.")]})
        return attrs


class DocumentChangeSerializer(DocumentDetailsSerializer):
    title = StrictCharField(
        max_length=500,
        help_text="It is part of what is searched: a new one is found once the chunks are indexed again.",
    )


class DescribesDocuments(ApiViewSet):
    def described(self, pk: int) -> dict[str, Any]:
        return DocumentSerializer(one(document_overview(self.principal), pk)).data

    def tagged(self, pk: int, code: int = status.HTTP_200_OK) -> Response:
        described = self.described(pk)
        return Response(described, status=code, headers={"ETag": described["etag"]})


AGAIN = {"Retry-After": "1"}


class DocumentFilters(Created, ListFilters):
    orders: ClassVar = ("-created_at", "created_at", "-updated_at", "updated_at", "source", "-source", "id", "-id")
    q = Text(method="with_words", help_text="Stands in the title or the source.")
    status = OneOf(Document.Status.values)
    source = Text(help_text="The name of its file, or its address, whole.")
    source_type = OneOf(Document.SourceType.values)
    folder_id = Related(
        Folder.objects.visible_to, narrowed=documents_in, help_text="It lies in this folder or in one within."
    )
    tag = Text(field_name="tags", method="with_tag", help_text="One of its tags.")
    batch_id = Whole(field_name="batch", help_text="The upload that it came with.")
    sha256 = Text(help_text="Of its bytes, in hexadecimal digits: whether they are here already.")
    updated_after = Moment(field_name="updated_at", lookup_expr="gte", help_text="Changed then or later.")

    def with_words(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(title__icontains=value) | Q(source__icontains=value))

    def with_tag(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(tags__contains=[value])


@extend_schema_view(
    list=extend_schema(
        summary="List the documents of a knowledge base, newest first",
        parameters=DocumentFilters.parameters(),
        responses=answers({200: DocumentSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Add a document: a file as a form, or a text or the address of a page as JSON",
        description="A worker parses and indexes it: its `status` becomes `ready`, or `failed` with a reason.",
        parameters=[IDEMPOTENCY_KEY],
        request={"multipart/form-data": DocumentUploadSerializer, "application/json": DocumentTextSerializer},
        responses=answers({201: DocumentSerializer}, 400, 403, 404, 409, 411, 413, 415, 422),
    ),
)
class KnowledgeBaseDocumentViewSet(DescribesDocuments):
    """Its URL sets `read_url`, which returns what `document_add` takes of the page at an address."""

    rate_limit_kind = UPLOAD
    parser_classes = [ShallowJSONParser, MultiPartParser]
    read_url: Callable[..., dict[str, Any]] | None = None

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        rows = document_overview(self.principal).filter(knowledge_base=kb)
        return self.page(rows, DocumentSerializer, DocumentFilters)

    def create(self, request: Request, kb_id: int) -> HttpResponseBase:
        return self._add(request, self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id))

    def _to_add(self, request: Request) -> Callable[..., Document]:
        """What puts the document into a knowledge base; a page of the web has been read then."""
        if (request.content_type or "").startswith(MultiPartParser.media_type):
            fields = self.checked(DocumentUploadSerializer)
            return partial(document_add, name=fields["file"].name, **fields)
        fields = self.checked(DocumentTextSerializer)
        if "url" in fields and self.read_url is not None:
            owners = KnowledgeBase.objects.filter(pk=self.kwargs["kb_id"]).values_list("owner__username", flat=True)
            with waiting_outside(user_of(request).pk):
                return partial(document_add, **self.read_url(owner=owners.get, **fields))
        return partial(document_add_text, **({"title": ""} | fields))

    @idempotent(before=_to_add)
    def _add(self, request: Request, kb: KnowledgeBase, add: Callable[..., Document]) -> Response:
        return self.tagged(add(knowledge_base=kb, user=user_of(request)).pk, status.HTTP_201_CREATED)


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read a document, its status and progress",
        description="While it waits for a worker or is in its hands, Retry-After says when to look again; with "
        "If-None-Match that costs next to nothing.",
        parameters=[IF_NONE_MATCH, RETURNED],
        responses=answers({200: DocumentSerializer, 304: NOT_MODIFIED}, 404),
    ),
    partial_update=extend_schema(
        summary="Change what is said about a document",
        parameters=[IF_MATCH, RETURNED],
        request=DocumentChangeSerializer,
        responses=answers({200: DocumentSerializer}, 400, 403, 404, 412, 413, 415),
    ),
    update=extend_schema(
        summary="Replace what is said about a document",
        description="Source type, metadata and tags that are left out are those of a new document. Its file stays.",
        parameters=[IF_MATCH, RETURNED],
        request=DocumentReplaceSerializer,
        responses=answers({200: DocumentSerializer}, 400, 403, 404, 412, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a document with its chunks and its file",
        parameters=[IF_MATCH],
        responses=answers({204: None}, 403, 404, 412),
    ),
    retry=extend_schema(
        summary="Parse and index a document again",
        description="As after a failure. Its chunks are cut from its file again, so that edits of them are lost.",
        request=None,
        responses=answers({202: DocumentSerializer}, 400, 403, 404),
    ),
    chunks=extend_schema(
        summary="List the chunks of a document in their order",
        parameters=ChunkFilters.parameters(),
        responses=answers({200: ChunkSerializer(many=True)}, 400, 404),
    ),
)
class DocumentViewSet(DescribesDocuments):
    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        described = self.described(pk)
        return conditional(self.request, described, AGAIN if described["status"] in Document.UNFINISHED else None)

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        document = self.editable(Document.objects.visible_to(self.principal), pk)
        return self._updated(document, self.checked(DocumentChangeSerializer, partial=True))

    def update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        document = self.editable(Document.objects.visible_to(self.principal), pk)
        return self._updated(document, self.checked(DocumentReplaceSerializer))

    def destroy(self, request: Request, pk: int) -> Response:
        with document_held(self.editable(Document.objects.visible_to(self.principal), pk)) as document:
            require_match(request, self.described(pk))
            document_delete(document)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        document_requeue(self.editable(Document.objects.visible_to(self.principal), pk))
        return Response(self.described(pk), status=status.HTTP_202_ACCEPTED)

    @action(detail=True)
    def chunks(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        document = one(Document.objects.visible_to(self.principal), pk)
        rows = Chunk.objects.visible_to(self.principal).filter(document=document)
        return self.page(rows, ChunkSerializer, ChunkFilters)

    def _updated(self, document: Document, changes: dict[str, Any]) -> Response:
        with document_held(document) as held:
            require_match(self.request, self.described(held.pk))
            document_update(held, **changes)
        return self.tagged(held.pk)


@extend_schema_view(
    get=extend_schema(
        operation_id="documents_file_retrieve",
        summary="Download the file of a document",
        responses=answers({(200, "application/octet-stream"): OpenApiResponse(OpenApiTypes.BINARY, "The file.")}, 404),
    ),
    put=extend_schema(
        operation_id="documents_file_update",
        summary="Give a document another file",
        description="It keeps its id, title, metadata and tags, and its chunks are cut from the new file; searches find what "
        "the former one held until a worker has read it. The same bytes index it again.",
        parameters=[IF_MATCH, RETURNED],
        request={"multipart/form-data": DocumentFileSerializer},
        responses=answers({200: DocumentSerializer}, 400, 403, 404, 409, 411, 412, 413, 415),
    ),
)
class DocumentFileView(DescribesDocuments):
    rate_limit_kind = UPLOAD
    parser_classes = [MultiPartParser]
    content_negotiation_class = AnyAccept

    def get(self, request: Request, pk: int) -> FileResponse:  # noqa: ARG002 - the framework's interface
        return file_response(one(Document.objects.visible_to(self.principal), pk))

    def put(self, request: Request, pk: int) -> Response:
        document = self.editable(Document.objects.visible_to(self.principal), pk)
        file = self.checked(DocumentFileSerializer)["file"]
        with document_held(document) as held:
            require_match(request, self.described(pk))
            document_replace_file(document=held, file=file, name=file.name)
        return self.tagged(pk)
