from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import Principal
from kb.quality.calibration.services import calibrate
from kb.quality.compare.services import METRICS, InvalidSide, compare_runs, compare_searches
from kb.quality.models import EvalRun
from kb.quality.profiles.api import SettingDifferenceSerializer
from kb.search.api import SearchRequestSerializer, UsedProfileSerializer
from kb.search.services.search import SearchRequest
from kb.web.api.fields import DegradationSerializer
from kb.web.api.schema import answers
from kb.web.api.views import ApiView, one
from retrieval.selection import ScoreScale
from retrieval.types import Turn


class SideSerializer(SearchRequestSerializer):
    """One side: a profile, any version of it, and settings that are not saved."""

    query = None  # type: ignore[assignment]
    knowledge_base_ids = None  # type: ignore[assignment]
    filters = None  # type: ignore[assignment]
    history = None  # type: ignore[assignment]
    latency_budget_ms = None  # type: ignore[assignment]
    explain = None  # type: ignore[assignment]


class CompareRequestSerializer(SearchRequestSerializer):
    """Two searches for one query."""

    top_k = None  # type: ignore[assignment]
    score_threshold = None  # type: ignore[assignment]
    profile = None  # type: ignore[assignment]
    profile_version = None  # type: ignore[assignment]
    overrides = None  # type: ignore[assignment]
    explain = None  # type: ignore[assignment]
    a = SideSerializer(required=False, help_text="Left out: each knowledge base’s own profile.")
    b = SideSerializer(required=False)

    def to_requests(self) -> tuple[SearchRequest, SearchRequest]:
        """The validated requests of A and of B."""
        return self._request("a"), self._request("b")

    def _request(self, side: str) -> SearchRequest:
        data: dict[str, Any] = self.validated_data
        own = data.get(side) or {}
        named = {name: own[name] for name in ("top_k", "score_threshold") if own.get(name) is not None}
        return SearchRequest(
            query=data["query"],
            knowledge_base_ids=data["knowledge_base_ids"],
            profile=own.get("profile", ""),
            profile_version=own.get("profile_version"),
            overrides={**own.get("overrides", {}), **named},
            latency_budget_ms=data.get("latency_budget_ms"),
            filters=(data.get("filters") or {}).get("parsed"),
            history=tuple(Turn(**turn) for turn in data.get("history", ())),
        )


class SideRanksSerializer(serializers.Serializer[Any]):
    a = serializers.IntegerField(allow_null=True)
    b = serializers.IntegerField(allow_null=True)


class SideScoresSerializer(serializers.Serializer[Any]):
    a = serializers.FloatField(allow_null=True)
    b = serializers.FloatField(allow_null=True)


class SideStagesSerializer(serializers.Serializer[Any]):
    a = serializers.CharField(allow_blank=True)
    b = serializers.CharField(allow_blank=True)


class ComparedResultSerializer(serializers.Serializer[Any]):
    chunk_id = serializers.IntegerField(allow_null=True, help_text="null: of a live or external source.")
    document_id = serializers.IntegerField(allow_null=True)
    knowledge_base_id = serializers.IntegerField()
    title = serializers.CharField(allow_blank=True)
    source = serializers.CharField(allow_blank=True)  # type: ignore[assignment]
    page = serializers.IntegerField(allow_null=True)
    text = serializers.CharField()
    rank = SideRanksSerializer(help_text="From 1; null where it is none of the side’s results.")
    score = SideScoresSerializer(help_text="Each on its side’s `score_scale`.")
    moved = serializers.IntegerField(
        allow_null=True, help_text="By how many places it stands higher in B; null where only one side has it."
    )
    cut_by = SideStagesSerializer(
        help_text="The stage that lost it: `channels` where no channel found it among its first; blank for a result."
    )


class ComparedSideSerializer(serializers.Serializer[Any]):
    profile = UsedProfileSerializer()
    overrides = serializers.DictField()
    score_scale = serializers.ChoiceField([(scale.value, scale.value) for scale in ScoreScale])
    threshold = serializers.FloatField()
    degraded = DegradationSerializer(many=True)
    timings_ms = serializers.DictField(child=serializers.FloatField(), help_text="Milliseconds by stage, and in total.")


class CompareResponseSerializer(serializers.Serializer[Any]):
    query = serializers.CharField()
    identical = serializers.BooleanField(help_text="The same results in the same order.")
    results = ComparedResultSerializer(many=True, help_text="Those of A in its order, then those that only B has.")
    settings = SettingDifferenceSerializer(many=True, help_text="Of the resolved configurations: A before, B after.")
    a = ComparedSideSerializer()
    b = ComparedSideSerializer()


class RunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    eval_set = serializers.CharField()
    profile = UsedProfileSerializer()
    overrides = serializers.DictField()
    finished_at = serializers.DateTimeField(allow_null=True)


class MetricDifferenceSerializer(serializers.Serializer[Any]):
    before = serializers.FloatField()
    after = serializers.FloatField()
    difference = serializers.FloatField()
    p_value = serializers.FloatField(
        allow_null=True,
        help_text="How often chance alone would make them differ by as much: a paired randomisation test. null: not a mean "
        "over queries.",
    )


class StageDifferencesSerializer(serializers.Serializer[Any]):
    def get_fields(self) -> dict[str, Any]:
        """One a metric; their names are no names of attributes."""
        return {metric: MetricDifferenceSerializer() for metric in METRICS}


class QueryDifferenceSerializer(serializers.Serializer[Any]):
    external_id = serializers.CharField()
    text = serializers.CharField()
    before = serializers.FloatField(help_text="NDCG@10 after the reranker.")
    after = serializers.FloatField()
    difference = serializers.FloatField()
    lost_at_before = serializers.CharField(allow_blank=True, help_text="The stage that lost all that is relevant.")
    lost_at_after = serializers.CharField(allow_blank=True)


class RunComparisonSerializer(serializers.Serializer[Any]):
    before = RunSerializer()
    after = RunSerializer()
    queries = serializers.IntegerField(help_text="With an answer, that both runs have.")
    only_before = serializers.IntegerField(help_text="Queries that only this run has; they are left out.")
    only_after = serializers.IntegerField()
    stages = serializers.DictField(
        child=StageDifferencesSerializer(), help_text="By stage: bm25, vector, fused, reranked."
    )
    gate = serializers.DictField(child=MetricDifferenceSerializer(), help_text="Empty unless both runs measured it.")
    latency_ms = serializers.DictField(child=MetricDifferenceSerializer())
    won = QueryDifferenceSerializer(many=True, help_text="Largest difference first.")
    lost = QueryDifferenceSerializer(many=True)
    tied = serializers.IntegerField()
    settings = SettingDifferenceSerializer(many=True)
    models = SettingDifferenceSerializer(many=True)
    same_content = serializers.BooleanField(help_text="Whether the knowledge base was the same in both.")


class CutSerializer(serializers.Serializer[Any]):
    cut = serializers.FloatField(help_text="The least score that passes; 0: everything does.")
    precision = serializers.FloatField()
    recall = serializers.FloatField()
    f1 = serializers.FloatField()


class CalibrationSerializer(serializers.Serializer[Any]):
    score_scale = serializers.ChoiceField([(scale.value, scale.value) for scale in ScoreScale])
    setting = serializers.CharField(help_text="That holds the cut of this scale.")
    bins = serializers.ListField(child=serializers.FloatField(), help_text="Edges, one more than there are counts.")
    relevant = serializers.ListField(child=serializers.IntegerField(), help_text="Histogram of relevant results.")
    irrelevant = serializers.ListField(child=serializers.IntegerField())
    unanswerable = serializers.ListField(
        child=serializers.IntegerField(), help_text="Of the best score of each query without an answer."
    )
    current = CutSerializer(help_text="The cut in force under the run’s profile.")
    suggestion = CutSerializer(
        allow_null=True, help_text="The cut of the highest F1; null where nothing is to be rejected."
    )
    curve = CutSerializer(many=True)
    left_out = serializers.IntegerField(help_text="Queries whose scores are of another scale.")


EXAMPLES = [
    OpenApiExample(
        "A draft against the published version",
        value={
            "query": "年假可以休几天？",
            "knowledge_base_ids": [1],
            "a": {"profile": "legal"},
            "b": {"profile": "legal", "profile_version": 4},
        },
        request_only=True,
    ),
    OpenApiExample(
        "Unsaved settings against the knowledge base’s own",
        value={"query": "年假可以休几天？", "knowledge_base_ids": [1], "b": {"overrides": {"fusion": "weighted"}}},
        request_only=True,
    ),
]


@extend_schema_view(
    post=extend_schema(
        operation_id="compare",
        summary="Run two searches for one query, side by side",
        description="Where each result of either stands in both, and what lost it. Neither search is kept in the log. A key "
        "with the scope read suffices.",
        request=CompareRequestSerializer,
        responses=answers({200: CompareResponseSerializer}, 400, 404, 413, 415, 503),
        examples=EXAMPLES,
    )
)
class CompareView(ApiView):
    post_reads = True

    def post(self, request: Request) -> Response:
        serializer = CompareRequestSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        try:
            comparison = compare_searches(self.principal, *serializer.to_requests())
        except InvalidSide as error:
            raise ValidationError({error.side: {"overrides": {error.field: [str(error)]}}}) from error
        return Response(comparison.as_dict())


@extend_schema_view(
    get=extend_schema(
        operation_id="compare_runs",
        summary="Compare two runs of an evaluation set",
        description="Each figure of the first run, before, and of the second, after, with the probability of such a "
        "difference by chance, and the queries won and lost.",
        responses=answers({200: RunComparisonSerializer}, 400, 404),
    )
)
class CompareRunsView(ApiView):
    def get(self, request: Request, pk: int, other: int) -> Response:  # noqa: ARG002 - the framework's interface
        before, after = (one(_runs(self.principal), each) for each in (pk, other))
        return Response(compare_runs(before, after).as_dict())


@extend_schema_view(
    get=extend_schema(
        operation_id="calibration",
        summary="Read where to cut the scores of an evaluation run",
        description="Histograms of the judged scores before the gate, and the cuts in force and suggested, with their "
        "precision and recall.",
        responses=answers({200: CalibrationSerializer}, 400, 404),
    )
)
class CalibrationView(ApiView):
    def get(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(calibrate(one(_runs(self.principal), pk)).as_dict())


def _runs(principal: Principal) -> QuerySet[EvalRun]:
    return EvalRun.objects.visible_to(principal).select_related("eval_set__knowledge_base", "profile")
