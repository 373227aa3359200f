from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import SEARCH_EXAMPLES, answers
from kb.api.serializers.search import (
    ReplaySerializer,
    SearchRequestSerializer,
    SearchResponseSerializer,
    TraceSerializer,
)
from kb.api.views.base import ApiView, one
from kb.models import SearchLog
from kb.services.replay import replay
from kb.services.responses import respond


@extend_schema_view(
    post=extend_schema(
        operation_id="search",
        summary="Search knowledge bases",
        description="Ranked chunks, best first, with the rank and score of each stage. A key with the scope read suffices. "
        "The same search is answered from a cache until one of its knowledge bases changes; `cached` says so, and "
        "`trace_id` is then that of the search that was run.",
        request=SearchRequestSerializer,
        responses=answers({200: SearchResponseSerializer}, 400, 404, 413, 415, 503),
        examples=SEARCH_EXAMPLES,
    )
)
class SearchView(ApiView):
    post_reads = True

    def post(self, request: Request) -> HttpResponse:
        serializer = SearchRequestSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        return HttpResponse(respond(self.principal, serializer.to_request()), content_type="application/json")


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


@extend_schema_view(
    post=extend_schema(
        operation_id="replay",
        summary="Run a logged search again",
        description="The same query under the same versions of the profiles, with the same overrides and filters, compared "
        "with what was logged. The new search is not kept in the log. A key with the scope read suffices.",
        request=None,
        responses=answers({200: ReplaySerializer}, 400, 404, 503),
    )
)
class ReplayView(ApiView):
    post_reads = True

    def post(self, request: Request, trace_id: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(replay(self.principal, trace_id).as_dict())
