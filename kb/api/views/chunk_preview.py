from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import answers
from kb.api.serializers.chunk_preview import ChunkPreviewRequestSerializer, ChunkPreviewSerializer
from kb.api.views.base import ApiViewSet, one
from kb.models import Document, KnowledgeBase
from kb.services.chunk_preview import preview_document, preview_text


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
