from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import answers
from kb.api.serializers.compare import (
    CalibrationSerializer,
    CompareRequestSerializer,
    CompareResponseSerializer,
    RunComparisonSerializer,
)
from kb.api.views.base import ApiView, one
from kb.models import EvalRun, Principal
from kb.services.calibration import calibrate
from kb.services.comparison import InvalidSide, compare_runs, compare_searches

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
