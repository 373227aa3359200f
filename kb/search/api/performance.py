from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.search.services.hot_queries import caches_invalidate
from kb.web.api.fields import MAX_ID, StrictBooleanField, StrictIntegerField, StrictSerializer
from kb.web.api.schema import answers
from kb.web.api.views import ApiView

MAX_KNOWLEDGE_BASES = 1_000


class InvalidateSerializer(StrictSerializer):
    knowledge_base_ids = serializers.ListField(
        child=StrictIntegerField(min_value=1, max_value=MAX_ID),
        required=False,
        allow_empty=False,
        max_length=MAX_KNOWLEDGE_BASES,
        help_text="Left out: all that the caller may change.",
    )
    bm25 = StrictBooleanField(default=False, help_text="The keyword indexes too: the next search builds them anew.")


class InvalidatedSerializer(serializers.Serializer[Any]):
    invalidated = serializers.ListField(child=serializers.IntegerField(), help_text="Ids of the knowledge bases.")


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
