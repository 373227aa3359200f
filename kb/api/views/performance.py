from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import answers
from kb.api.serializers.performance import InvalidatedSerializer, InvalidateSerializer
from kb.api.views.base import ApiView
from kb.services.hot_queries import caches_invalidate


@extend_schema_view(
    post=extend_schema(
        operation_id="cache_invalidate",
        summary="Serve no earlier response of knowledge bases again",
        description="A changed document does this by itself. Needs a key with the scope write.",
        request=InvalidateSerializer,
        responses=answers({200: InvalidatedSerializer}, 400, 403, 404, 413, 415),
    )
)
class CacheInvalidateView(ApiView):
    def post(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(InvalidateSerializer)
        invalidated = caches_invalidate(self.principal, fields.get("knowledge_base_ids"), bm25=fields["bm25"])
        return Response({"invalidated": invalidated})
