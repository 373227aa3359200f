import re
import time
from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.translation import gettext, gettext_lazy as _
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view, inline_serializer
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.shapes import as_json, as_values
from kb.base.text import MAX_CHARS, MAX_CONDITIONS, MAX_VALUES, InvalidFilter
from kb.content.models import Chunk, Document
from kb.index.conditions import STRICT_OPERATORS
from kb.index.filters import Filters
from kb.profiles.services import MAX_REFERENCE_CHARACTERS, MAX_VERSION
from kb.search.models import SearchLog, Speaker
from kb.search.services.invalidation import caches_invalidate
from kb.search.services.replay import Replay, replay
from kb.search.services.search import (
    MAX_LATENCY_BUDGET_MS,
    MAX_QUERY_CHARS,
    MAX_TURN_CHARS,
    MAX_TURNS,
    SearchRequest,
    SearchResponse,
    respond,
)
from kb.search.services.search_log import searches_that_found
from kb.web.api.callers import spend_more
from kb.web.api.errors import ApiError, problem_of
from kb.web.api.fields import (
    MAX_ID,
    DegradationSerializer,
    KnowledgeBaseIdsField,
    ListField,
    StrictBooleanField,
    StrictCharField,
    StrictFloatField,
    StrictIntegerField,
    StrictSerializer,
    answers,
    shape,
)
from kb.web.api.schema import BATCH_EXAMPLES, SEARCH_EXAMPLES
from kb.web.api.views import ApiView, ApiViewSet, one, valid
from retrieval.types import Turn

MOST_SEARCHES = 20


@extend_schema_field(
    {
        "oneOf": [
            {"type": "integer", "minimum": 1, "maximum": MAX_ID},
            {"type": "string", "minLength": 1, "maxLength": MAX_CHARS},
        ]
    }
)
class ConceptField(serializers.Field[Any, Any, Any, Any]):
    """The id of a concept or one of its names."""

    default_error_messages = {"invalid": _("Give a concept’s id, or one of its names.")}

    def to_internal_value(self, data: Any) -> int | str:
        if isinstance(data, bool) or not isinstance(data, int | str):
            self.fail("invalid")
        return data


class ConditionSerializer(StrictSerializer):
    key = StrictCharField(max_length=MAX_CHARS, trim_whitespace=False, help_text="Of the document’s metadata.")
    op = serializers.ChoiceField(
        [(operator.value, operator.value) for operator in STRICT_OPERATORS],
        help_text="`ne` finds all that `eq` does not, also what lacks the key; `contains` looks into a list for an element, "
        "into a text for a part; `exists` takes true or false.",
    )
    value = serializers.JSONField(
        required=False, allow_null=True, help_text="A text, a number, true, false or null; for `in` a list of them."
    )


OPTIONAL: dict[str, Any] = {"required": False, "allow_null": True}
SOME: dict[str, Any] = {**OPTIONAL, "min_length": 1, "max_length": MAX_VALUES}


class FiltersSerializer(StrictSerializer):
    """The types of filters; `Filters.parse` looks at the values."""

    document_ids = ListField(child=StrictIntegerField(min_value=1, max_value=MAX_ID), **SOME)
    folder_ids = ListField(
        child=StrictIntegerField(min_value=1, max_value=MAX_ID),
        help_text="The document lies in any of them, or in a folder within.",
        **SOME,
    )
    tags = ListField(
        child=StrictCharField(max_length=MAX_CHARS, trim_whitespace=False),
        help_text="The document has any of them.",
        **SOME,
    )
    concepts = ListField(
        child=ConceptField(), help_text="Ids or names; the document has any of them, or one that is narrower.", **SOME
    )
    source_types = ListField(
        child=serializers.ChoiceField([(each.value, each.value) for each in Document.SourceType]), **SOME
    )
    metadata = ListField(
        child=ConditionSerializer(), max_length=MAX_CONDITIONS, help_text="All of them are met.", **OPTIONAL
    )
    created_after = StrictCharField(
        max_length=64,
        help_text="A date, which is its first moment, or a time, as 2026-03-01T08:00:00Z: created then or later.",
        **OPTIONAL,
    )
    created_before = StrictCharField(max_length=64, help_text="Likewise: created before that.", **OPTIONAL)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"parsed": Filters.parse(attrs)}
        except InvalidFilter as error:
            path = re.sub(r"\[(\d+)\]", r".\1", error.field)
            raise serializers.ValidationError({path: [str(error)]}) from error


class TurnSerializer(StrictSerializer):
    role = serializers.ChoiceField(Speaker.choices)
    text = StrictCharField(max_length=MAX_TURN_CHARS)


class ProfiledSerializer(StrictSerializer):
    """A request that may name a profile, or one version of it."""

    profile = StrictCharField(max_length=MAX_REFERENCE_CHARACTERS, required=False, allow_blank=True)
    profile_version = StrictIntegerField(
        min_value=1,
        max_value=MAX_VERSION,
        required=False,
        allow_null=True,
        help_text="A version of that profile, such as a draft. null: its published one.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("profile_version") is not None and not attrs.get("profile"):
            raise serializers.ValidationError({"profile_version": [_("Name the profile that it is a version of.")]})
        return attrs


class SearchRequestSerializer(ProfiledSerializer):
    query = StrictCharField(max_length=MAX_QUERY_CHARS)
    knowledge_base_ids = KnowledgeBaseIdsField(
        min_length=1, max_length=20, help_text="Their order breaks ties between equal scores."
    )
    top_k = StrictIntegerField(
        min_value=1, max_value=200, required=False, allow_null=True, help_text="null: the profile's."
    )
    score_threshold = StrictFloatField(
        min_value=0,
        max_value=1,
        required=False,
        allow_null=True,
        help_text="The least score. null: the default of the score's scale; 0: no gate.",
    )
    profile = StrictCharField(
        max_length=MAX_REFERENCE_CHARACTERS,
        required=False,
        allow_blank=True,
        help_text="A profile for all of them: NAME, or ID/NAME where several knowledge bases have one of that name. "
        "Left out: each knowledge base's own.",
    )
    overrides = serializers.DictField(
        required=False, help_text="Settings of this request, over the profile's, by the names of the configuration."
    )
    filters = FiltersSerializer(
        required=False, allow_null=True, help_text="Which documents may be found: those that meet all of these."
    )
    history = ListField(
        child=TurnSerializer(),
        required=False,
        max_length=MAX_TURNS,
        help_text="Earlier turns of the conversation that the query stands in, oldest first, for its rewriting.",
    )
    latency_budget_ms = StrictIntegerField(
        min_value=1,
        max_value=MAX_LATENCY_BUDGET_MS,
        required=False,
        allow_null=True,
        help_text="After so many milliseconds the search answers with what it has, and says in `degraded` what is missing. "
        "null: the server’s LATENCY_BUDGET_MS, which does not count the loading of a local model.",
    )
    explain = StrictBooleanField(required=False, help_text="Return the whole trace, with every candidate.")

    def to_request(self, **given: Any) -> SearchRequest:
        """The validated request, with what is given besides; named fields win over the same settings in `overrides`."""
        data: dict[str, Any] = {**self.validated_data, **given}
        named = {name: data[name] for name in ("top_k", "score_threshold") if data.get(name) is not None}
        return SearchRequest(
            query=data["query"],
            knowledge_base_ids=data["knowledge_base_ids"],
            profile=data.get("profile", ""),
            profile_version=data.get("profile_version"),
            overrides={**data.get("overrides", {}), **named},
            explain=data.get("explain", False),
            latency_budget_ms=data.get("latency_budget_ms"),
            filters=(data.get("filters") or {}).get("parsed"),
            history=tuple(Turn(**turn) for turn in data.get("history", ())),
        )


class SearchBatchSerializer(StrictSerializer):
    searches = ListField(
        child=serializers.DictField(),
        min_length=1,
        max_length=MOST_SEARCHES,
        help_text="Each is the body of a POST to search/.",
    )


BATCH_ITEM: dict[str, Any] = {
    "status": serializers.IntegerField(help_text="What search/ would have answered: 200, 400, 404 or 503."),
    "body": serializers.DictField(
        help_text="Its body: of 200 the response of a search, else an error; of 503 with `retry_after`, in seconds."
    ),
}
BATCH_ITEMS = inline_serializer("SearchBatchItem", BATCH_ITEM, many=True, help_text="In the order of the searches.")


class TraceSerializer(serializers.ModelSerializer[SearchLog]):
    trace_id = serializers.UUIDField(source="id", read_only=True)
    profile = inline_serializer(
        "LoggedProfile",
        {
            "name": serializers.CharField(source="profile"),
            "version": serializers.IntegerField(source="profile_version"),
        },
        source="*",
        read_only=True,
    )
    configuration = serializers.DictField(
        read_only=True, help_text="As it was resolved, enough to run the search again."
    )
    trace = serializers.DictField(read_only=True)
    degraded = DegradationSerializer(many=True, read_only=True)

    class Meta:
        model = SearchLog
        fields = (
            "trace_id",
            "query",
            "knowledge_base_ids",
            "profile",
            "configuration",
            "trace",
            "degraded",
            "result_count",
            "outcome",
            "feedback",
            "duration_ms",
            "created_at",
        )
        read_only_fields = fields


BATCH_SECONDS = 60.0


@extend_schema_view(
    post=extend_schema(
        operation_id="search",
        summary="Search knowledge bases",
        description="Ranked chunks, best first, with the rank and score of each stage. A key with the scope read suffices. "
        "The same search is answered from a cache until one of its knowledge bases changes; `cached` says so, and "
        "`trace_id` is then that of the search that was run.",
        request=SearchRequestSerializer,
        responses=answers({200: shape(SearchResponse)}, 400, 404, 413, 415, 503),
        examples=SEARCH_EXAMPLES,
    )
)
class SearchView(ApiView):
    post_reads = True

    def post(self, request: Request) -> HttpResponse:
        found = respond(self.principal, valid(SearchRequestSerializer, request.data).to_request())
        return HttpResponse(as_json(found), content_type="application/json")


@extend_schema_view(
    post=extend_schema(
        operation_id="search_batch",
        summary="Run several searches",
        description="Up to 20 of them, one after the other, each as POST search/ runs it and answered for itself: one that "
        "fails keeps none of the others from an answer. After a minute those that have not begun are answered 503. Against "
        "a rate limit it counts as many requests as it has searches; one that does not fit is refused whole. A key with "
        "the scope read suffices.",
        request=SearchBatchSerializer,
        responses=answers({200: inline_serializer("SearchBatchResponse", {"results": BATCH_ITEMS})}, 400, 413, 415),
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
            raise ApiError(503, "batch_out_of_time", gettext("The searches before this one took too long."))
        return as_json(respond(self.principal, valid(SearchRequestSerializer, fields).to_request()))


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
        responses=answers({200: shape(Replay)}, 400, 404, 503),
    )
)
class ReplayView(ApiView):
    post_reads = True

    def post(self, request: Request, trace_id: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(as_values(replay(self.principal, trace_id)))


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


MAX_KNOWLEDGE_BASES = 1_000


class InvalidateSerializer(StrictSerializer):
    knowledge_base_ids = KnowledgeBaseIdsField(
        required=False,
        allow_empty=False,
        max_length=MAX_KNOWLEDGE_BASES,
        help_text="Left out: all that the caller may change.",
    )
    bm25 = StrictBooleanField(default=False, help_text="The keyword indexes too: the next search builds them again.")


INVALIDATED = inline_serializer(
    "Invalidated",
    {"invalidated": ListField(child=serializers.IntegerField(), help_text="Ids of the knowledge bases.")},
)


@extend_schema_view(
    post=extend_schema(
        operation_id="cache_invalidate",
        summary="Serve no earlier response of knowledge bases again",
        description="A changed document does this by itself. Needs a key with the scope write.",
        request=InvalidateSerializer,
        responses=answers({200: INVALIDATED}, 400, 403, 404, 413, 415),
    )
)
class CacheInvalidateView(ApiView):
    def post(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(InvalidateSerializer)
        invalidated = caches_invalidate(self.principal, fields.get("knowledge_base_ids"), bm25=fields["bm25"])
        return Response({"invalidated": invalidated})
