import time
from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.translation import gettext
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from kb.search.api.serializers import (
    ReplaySerializer,
    SearchBatchResponseSerializer,
    SearchBatchSerializer,
    SearchRequestSerializer,
    SearchResponseSerializer,
    TraceSerializer,
)
from kb.search.models import SearchLog
from kb.search.services.replay import replay
from kb.search.services.responses import caches_invalidate, respond
from kb.web.api.errors import Unavailable, problem_of
from kb.web.api.fields import MAX_ID, StrictBooleanField, StrictIntegerField, StrictSerializer
from kb.web.api.schema import BATCH_EXAMPLES, SEARCH_EXAMPLES, answers
from kb.web.api.throttling import spend_more
from kb.web.api.views import ApiView, one

BATCH_SECONDS = 60.0


class OutOfTime(Unavailable):
    default_code = "batch_out_of_time"


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
        return HttpResponse(
            respond(self.principal, serializer.to_request()).as_bytes(), content_type="application/json"
        )


@extend_schema_view(
    post=extend_schema(
        operation_id="search_batch",
        summary="Run several searches",
        description="Up to 20 of them, one after the other, each as POST search/ runs it and answered for itself: one that "
        "fails keeps none of the others from an answer. After a minute those that have not begun are answered 503. Against "
        "a rate limit it counts as many requests as it has searches; one that does not fit is refused whole. A key with "
        "the scope read suffices.",
        request=SearchBatchSerializer,
        responses=answers({200: SearchBatchResponseSerializer}, 400, 413, 415),
        examples=BATCH_EXAMPLES,
    )
)
class SearchBatchView(ApiView):
    post_reads = True

    def post(self, request: Request) -> HttpResponse:
        searches = self.checked(SearchBatchSerializer)["searches"]
        refusal = gettext(
            "The %(searches)d searches of this batch count as as many requests, more than are left: wait as Retry-After "
            "says, or send fewer at once."
        )
        spend_more(request, len(searches) - 1, refusal % {"searches": len(searches)})
        until = time.monotonic() + BATCH_SECONDS
        items = b",".join(self._item(fields, until) for fields in searches)
        return HttpResponse(b'{"results":[' + items + b"]}", content_type="application/json")

    def _item(self, fields: dict[str, Any], until: float) -> bytes:
        """The answer of one search, as it is sent; to read and write it again would take long."""
        try:
            status, body = 200, self._found(fields, until)
        except Exception as error:  # noqa: BLE001 - the boundary of one of several requests, which logs what is unforeseen
            problem = problem_of(error, self.request._request)
            wait = {"retry_after": int(problem.headers["Retry-After"])} if "Retry-After" in problem.headers else {}
            status, body = problem.status, JSONRenderer().render(problem.body() | wait)
        return b'{"status":%d,"body":%s}' % (status, body)

    def _found(self, fields: dict[str, Any], until: float) -> bytes:
        if time.monotonic() >= until:
            raise OutOfTime(gettext("The searches before this one took too long."))
        serializer = SearchRequestSerializer(data=fields)
        serializer.is_valid(raise_exception=True)
        return respond(self.principal, serializer.to_request()).as_bytes()


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
