from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.content.models import Chunk
from kb.search.services.search_log import searches_that_found
from kb.web.api.fields import answers
from kb.web.api.views import ApiViewSet, one


class FoundBySerializer(serializers.Serializer[Any]):
    trace_id = serializers.UUIDField(help_text="Of the search: read or replay it by this.")
    query = serializers.CharField(help_text="Blank where this installation keeps no queries.")
    rank = serializers.IntegerField(help_text="Among its results, from 1.")
    score = serializers.FloatField(allow_null=True)
    profile = serializers.CharField()
    profile_version = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class FoundByListSerializer(serializers.Serializer[Any]):
    queries = FoundBySerializer(many=True, help_text="The newest first.")


class ChunkQueriesViewSet(ApiViewSet):
    pagination_class = None

    @extend_schema(
        operation_id="chunk_queries",
        summary="List the newest searches that found a chunk",
        description="Of those whose knowledge bases the caller may all see.",
        responses=answers({200: FoundByListSerializer}, 404),
    )
    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        found = searches_that_found(self.principal, one(Chunk.objects.visible_to(self.principal), pk))
        return Response(FoundByListSerializer({"queries": found}).data)
