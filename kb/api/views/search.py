from uuid import UUID

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import SEARCH_EXAMPLES, answers
from kb.api.serializers.search import SearchRequestSerializer, SearchResponseSerializer, TraceSerializer
from kb.api.views.base import ApiView, one
from kb.models import SearchLog
from kb.services.search import outcome_as_json, search


@extend_schema_view(
    post=extend_schema(
        operation_id="search",
        summary="Search knowledge bases",
        description="Ranked chunks, best first, with the rank and score of each stage. A key with the scope read suffices.",
        request=SearchRequestSerializer,
        responses=answers({200: SearchResponseSerializer}, 400, 404, 413, 415, 503),
        examples=SEARCH_EXAMPLES,
    )
)
class SearchView(ApiView):
    post_reads = True

    def post(self, request: Request) -> Response:
        serializer = SearchRequestSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        return Response(outcome_as_json(search(self.principal, serializer.to_request())))


@extend_schema_view(
    get=extend_schema(
        summary="Read the trace of a search",
        description="A search that was not explained appears within a second.",
        responses=answers({200: TraceSerializer}, 404),
    )
)
class TraceView(ApiView):
    def get(self, request: Request, trace_id: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        entry = one(SearchLog.objects.visible_to(self.principal), trace_id)
        return Response(TraceSerializer(entry).data)
