from django.db.models import F, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.filters import EvalRunFilters, EvalRunQueryFilters
from kb.api.schema import answers
from kb.api.serializers.eval_runs import (
    EvalRunCreateSerializer,
    EvalRunDetailSerializer,
    EvalRunQuerySerializer,
    EvalRunSerializer,
)
from kb.api.views.base import ApiViewSet, one
from kb.models import EvalRun, EvalRunQuery, EvalSet
from kb.services.evaluation import cancel_run, start_run
from kb.services.profiles import find_version


@extend_schema_view(
    list=extend_schema(
        summary="List the evaluation runs of the caller's knowledge bases, the newest first",
        parameters=EvalRunFilters.parameters(),
        responses=answers({200: EvalRunSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Run an evaluation set",
        description="A worker carries it out: its `status` becomes `done`, or `failed` with a reason. Needs a key with the "
        "scope write.",
        request=EvalRunCreateSerializer,
        responses=answers({201: EvalRunDetailSerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(
        summary="Read an evaluation run with its report", responses=answers({200: EvalRunDetailSerializer}, 404)
    ),
    cancel=extend_schema(
        operation_id="eval_run_cancel",
        summary="Cancel an evaluation run",
        description="It ends within a second or so, and what it has measured stays; one that has ended stays as it is. Needs a "
        "key with the scope write.",
        request=None,
        responses=answers({200: EvalRunDetailSerializer}, 403, 404),
    ),
    queries=extend_schema(
        operation_id="eval_run_queries",
        summary="List what an evaluation run has measured of each query",
        parameters=EvalRunQueryFilters.parameters(),
        responses=answers({200: EvalRunQuerySerializer(many=True)}, 400, 404),
    ),
)
class EvalRunViewSet(ApiViewSet):
    queryset = EvalRun.objects.none()

    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(self._runs().defer("report", "configuration"), EvalRunSerializer, EvalRunFilters)

    def create(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(EvalRunCreateSerializer)
        sets = EvalSet.objects.visible_to(self.principal).select_related("knowledge_base__profile")
        eval_set = one(sets, fields["eval_set_id"])
        profile = None
        if name := fields.get("profile"):
            profile = find_version(
                self.principal, name, fields.get("profile_version"), scope=[eval_set.knowledge_base_id]
            )
        run = start_run(
            self.principal,
            eval_set,
            profile=profile,
            overrides=fields.get("overrides", {}),
            limit=fields.get("limit"),
        )
        return Response(self._described(run.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self._described(pk))

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        cancel_run(self.principal, one(self._runs(), pk))
        return Response(self._described(pk))

    @action(detail=True)
    def queries(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        rows = EvalRunQuery.objects.filter(run=one(self._runs(), pk))
        return self.page(rows, EvalRunQuerySerializer, EvalRunQueryFilters)

    def _runs(self) -> QuerySet[EvalRun]:
        runs: QuerySet[EvalRun] = EvalRun.objects.visible_to(self.principal).annotate(stages=F("report__stages"))
        return runs.select_related("eval_set", "profile", "created_by")

    def _described(self, pk: int) -> dict[str, object]:
        return EvalRunDetailSerializer(one(self._runs(), pk)).data
