from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.content.models import Document
from kb.ingest.api.knowledge_bases import ChunkingSerializer
from kb.ingest.services.chunk_preview import MOST_CHARACTERS, preview_document, preview_text
from kb.web.api.fields import StrictCharField, StrictIntegerField
from kb.web.api.schema import answers
from kb.web.api.views import ApiViewSet, one


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


class ShownChunkSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField(help_text="From 1.")
    text = serializers.CharField()
    overlap = serializers.IntegerField(
        help_text="How many characters at its beginning repeat the end of the one before."
    )
    page = serializers.IntegerField(allow_null=True)
    heading_path = serializers.ListField(child=serializers.CharField())
    tokens = serializers.IntegerField()
    questions = serializers.ListField(child=serializers.CharField())
    parent = serializers.IntegerField(  # type: ignore[assignment]  # not the serializer that holds this one
        allow_null=True, help_text="Number from 1 of the longer passage that is returned in its place."
    )
    survives = serializers.BooleanField(help_text="A chunk of this text is there already, and would stay.")


class SurvivalSerializer(serializers.Serializer[Any]):
    kept = serializers.IntegerField(help_text="Chunks that stay, with their indexes.")
    new = serializers.IntegerField()
    gone = serializers.IntegerField()
    edits = serializers.IntegerField(help_text="Chunks whose text was changed by hand.")
    edits_kept = serializers.IntegerField()
    disabled = serializers.IntegerField()
    disabled_kept = serializers.IntegerField()


class ChunkPreviewSerializer(serializers.Serializer[Any]):
    chunks = ShownChunkSerializer(many=True, help_text="The first ones.")
    total = serializers.IntegerField()
    parents = serializers.IntegerField()
    most_tokens = serializers.IntegerField()
    is_partial = serializers.BooleanField(help_text="Only the beginning of the document was cut.")
    present = serializers.IntegerField(allow_null=True, help_text="How many chunks the document has now.")
    survival = SurvivalSerializer(allow_null=True, help_text="What becomes of the chunks that the document has now.")


@extend_schema_view(
    create=extend_schema(
        operation_id="chunk_preview",
        summary="Tell how settings would cut a document or a text",
        description="Nothing is written. Settings that are left out are those of the knowledge base. A key with the "
        "scope read suffices.",
        request=ChunkPreviewRequestSerializer,
        responses=answers({200: ChunkPreviewSerializer}, 400, 404, 413, 415),
    )
)
class ChunkPreviewViewSet(ApiViewSet):
    queryset = KnowledgeBase.objects.none()
    post_reads = True

    def create(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), pk)
        fields = self.checked(ChunkPreviewRequestSerializer)
        if "text" in fields:
            preview = preview_text(kb, fields["text"], fields)
        else:
            documents = Document.objects.visible_to(self.principal).filter(knowledge_base=kb)
            preview = preview_document(kb, one(documents, fields["document_id"]), fields)
        return Response(ChunkPreviewSerializer(preview).data)
