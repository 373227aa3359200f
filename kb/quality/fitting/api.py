from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.shapes import as_values
from kb.quality.fitting.services import FOLDS, MOST_FOLDS, Fit, fit_of, start_fit
from kb.quality.models import EvalSet
from kb.quality.runs.api import EvalRunDetailSerializer, EvalRunViewSet
from kb.web.api.fields import StrictIntegerField, StrictSerializer, answers, shape
from kb.web.api.views import one


class FitRequestSerializer(StrictSerializer):
    folds = StrictIntegerField(
        min_value=2, max_value=MOST_FOLDS, default=FOLDS, help_text="Of the cross-validation over queries."
    )


@extend_schema_view(
    start=extend_schema(
        operation_id="eval_set_fit",
        summary="Fit retrieval settings to the judgments of an evaluation set",
        description="Starts a run under the knowledge base's profile, which a worker carries out. Where the fitted settings gain "
        "by more than chance on queries that they were not fitted to, they become a draft profile of the knowledge base: see "
        "`/api/v1/eval-runs/{id}/fit/` once the run is done. Needs a key with the scope write.",
        request=FitRequestSerializer,
        responses=answers({201: EvalRunDetailSerializer}, 400, 403, 404, 413, 415),
    ),
    fit=extend_schema(
        operation_id="eval_run_fit",
        summary="Read which settings a run has fitted, and what they gain",
        description="The figures are of queries that the settings were not fitted to.",
        responses=answers({200: shape(Fit)}, 400, 404),
    ),
)
class FitViewSet(EvalRunViewSet):
    @action(detail=True, methods=["post"])
    def start(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        sets = EvalSet.objects.visible_to(self.principal).select_related("knowledge_base__profile")
        run = start_fit(self.principal, one(sets, pk), folds=self.checked(FitRequestSerializer)["folds"])
        return Response(self.described(run.pk), status=status.HTTP_201_CREATED)

    @action(detail=True)
    def fit(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(as_values(fit_of(one(self.runs(), pk))))
