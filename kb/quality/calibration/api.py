from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.shapes import as_values
from kb.quality.calibration.services import Calibration, calibrate
from kb.quality.models import EvalRun
from kb.web.api.fields import answers, shape
from kb.web.api.views import ApiView, one


@extend_schema_view(
    get=extend_schema(
        operation_id="calibration",
        summary="Read where to cut the scores of an evaluation run",
        description="Histograms of the judged scores before the gate, and the cuts in force and suggested, with their "
        "precision and recall.",
        responses=answers({200: shape(Calibration)}, 400, 404),
    )
)
class CalibrationView(ApiView):
    def get(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(as_values(calibrate(self._run(pk))))

    def _run(self, pk: int) -> EvalRun:
        runs: QuerySet[EvalRun] = EvalRun.objects.visible_to(self.principal)
        return one(runs.select_related("eval_set__knowledge_base", "profile"), pk)
