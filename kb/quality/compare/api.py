from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import Principal
from kb.base.shapes import as_values
from kb.quality.compare.services import (
    METRICS,
    CompareResponse,
    InvalidSide,
    MetricDifference,
    RunComparison,
    compare_runs,
    compare_searches,
)
from kb.quality.models import EvalRun
from kb.search.api import SearchRequestSerializer
from kb.web.api.fields import answers, shape
from kb.web.api.views import ApiView, one, valid

OF_A_SIDE = ("top_k", "score_threshold", "profile", "profile_version", "overrides")


class SideSerializer(SearchRequestSerializer):
    """One side: a profile, any version of it, and settings that are not saved."""

    def get_fields(self) -> dict[str, Any]:
        return {name: field for name, field in super().get_fields().items() if name in OF_A_SIDE}


class CompareRequestSerializer(SearchRequestSerializer):
    """Two searches for one query."""

    explain = None  # type: ignore[assignment]
    a = SideSerializer(required=False, help_text="Left out: each knowledge base’s own profile.")
    b = SideSerializer(required=False)

    def get_fields(self) -> dict[str, Any]:
        return {name: field for name, field in super().get_fields().items() if name not in OF_A_SIDE}


class StageDifferencesSerializer(serializers.Serializer[Any]):
    def get_fields(self) -> dict[str, Any]:
        """One a metric; their names are no names of attributes."""
        return {metric: shape(MetricDifference)() for metric in METRICS}


class RunComparisonSerializer(shape(RunComparison)):  # type: ignore[misc]
    stages = serializers.DictField(
        child=StageDifferencesSerializer(), help_text="By stage: bm25, vector, fused, reranked."
    )


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
        responses=answers({200: shape(CompareResponse)}, 400, 404, 413, 415, 503),
        examples=EXAMPLES,
    )
)
class CompareView(ApiView):
    post_reads = True

    def post(self, request: Request) -> Response:
        serializer = valid(CompareRequestSerializer, request.data)
        try:
            sides = [serializer.to_request(**serializer.validated_data.get(side, {})) for side in ("a", "b")]
            comparison = compare_searches(self.principal, *sides)
        except InvalidSide as error:
            raise ValidationError({error.side: {"overrides": {error.field: [str(error)]}}}) from error
        return Response(as_values(comparison.response))


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
        return Response(as_values(compare_runs(before, after)))


def _runs(principal: Principal) -> QuerySet[EvalRun]:
    return EvalRun.objects.visible_to(principal).select_related("eval_set__knowledge_base", "profile")
