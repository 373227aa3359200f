from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import answers
from kb.api.serializers.documents import ChunkChangeSerializer, ChunkSerializer
from kb.api.views.base import ApiViewSet, one
from kb.models import Chunk
from kb.services.indexing import chunk_update


@extend_schema_view(
    retrieve=extend_schema(summary="Read a chunk", responses=answers({200: ChunkSerializer}, 404)),
    partial_update=extend_schema(
        summary="Change a chunk, and what the indexes hold of it",
        request=ChunkChangeSerializer,
        responses=answers({200: ChunkSerializer}, 400, 403, 404, 409, 413, 415),
    ),
)
class ChunkViewSet(ApiViewSet):
    queryset = Chunk.objects.none()

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(ChunkSerializer(one(Chunk.objects.visible_to(self.principal), pk)).data)

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        visible = Chunk.objects.visible_to(self.principal)
        chunk = self.editable(visible.select_related("document", "knowledge_base"), pk)
        changes = self.checked(ChunkChangeSerializer, partial=True)
        chunk_update(chunk, **{"text": chunk.text, "enabled": chunk.enabled, **changes})
        return Response(ChunkSerializer(one(visible, pk)).data)
