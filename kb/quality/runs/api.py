from collections.abc import Callable
from typing import Any, ClassVar, cast

from django.db.models import F
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.base.messages import shown
from kb.base.shapes import as_values
from kb.index.services.reembedding import (
    reembedding_cancel,
    reembedding_drop,
    reembedding_rollback,
    reembedding_start,
    reembedding_swap,
)
from kb.profiles.services import MAX_REFERENCE_CHARACTERS, find_version
from kb.providers.embedding_models import require_embedding_model
from kb.quality.models import EvalRun, EvalRunQuery, EvalRunQuerySet, EvalSet
from kb.quality.runs.services.report import report_as_json
from kb.quality.runs.services.run import LOST_AT, STAGES
from kb.quality.runs.services.runs import EmbeddingModel, cancel_run, embedding_model_of, evaluate_both, start_run
from kb.search.api import ProfiledSerializer
from kb.search.services.search import UsedProfile
from kb.web.api.fields import (
    MAX_ID,
    ListField,
    StrictBooleanField,
    StrictCharField,
    StrictIntegerField,
    StrictSerializer,
    answers,
    shape,
)
from kb.web.api.views import ApiViewSet, Created, Flag, ListFilters, OneOf, Related, knowledge_bases_of, one

MOST_QUERIES = 10_000_000
BY_STAGE = f"By stage: {', '.join(STAGES)}."
# No enumeration: documents have statuses too, and two of one name would need names of their own.
STATUSES = ", ".join(EvalRun.Status.values)


class EvalRunCreateSerializer(ProfiledSerializer):
    eval_set_id = StrictIntegerField(min_value=1, max_value=MAX_ID)
    profile = StrictCharField(
        max_length=MAX_REFERENCE_CHARACTERS,
        required=False,
        allow_blank=True,
        help_text="A shared profile, or one of the knowledge base. Left out: the one that it searches by.",
    )
    overrides = serializers.DictField(
        required=False, help_text="Unsaved settings over the profile's, by the names of the configuration."
    )
    limit = StrictIntegerField(
        min_value=1,
        max_value=MOST_QUERIES,
        required=False,
        allow_null=True,
        help_text="Only the first so many queries, with an answer and without. null: all.",
    )


class EvalSetOfRunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    knowledge_base_id = serializers.IntegerField()


class StageFiguresSerializer(serializers.DictField):
    child = serializers.FloatField()


class EvalRunSerializer(serializers.Serializer[EvalRun]):
    id = serializers.IntegerField()
    eval_set = EvalSetOfRunSerializer()
    profile = shape(UsedProfile)()
    overrides = serializers.DictField()
    limit = serializers.IntegerField(source="query_limit", allow_null=True)
    folds = serializers.IntegerField(allow_null=True, help_text="Of a run that fits settings; null: it fits none.")
    status = serializers.CharField(help_text=f"One of: {STATUSES}.")
    cancel_requested = serializers.BooleanField()
    done = serializers.IntegerField(help_text="Queries so far.")
    total = serializers.IntegerField()
    error = serializers.SerializerMethodField(help_text="Why it failed, and what to do about it; else empty.")
    stages = serializers.DictField(
        child=StageFiguresSerializer(),
        allow_null=True,
        help_text=f"Figures from 0 to 1, by metric. {BY_STAGE} null until it is done.",
    )
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)

    def get_error(self, run: EvalRun) -> str:
        return shown(run.error)


class EvalRunDetailSerializer(EvalRunSerializer):
    configuration = serializers.DictField(help_text="As it was resolved.")
    model_ids = serializers.DictField(child=serializers.CharField(), help_text="By role.")
    kb_version = serializers.IntegerField(allow_null=True, help_text="Of the knowledge base when the run began.")
    content_version = serializers.IntegerField(allow_null=True)
    report = serializers.SerializerMethodField(
        help_text="What `manage.py evaluate --json` prints; empty until it is done."
    )

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_report(self, run: EvalRun) -> dict[str, Any]:
        return report_as_json(run.report)


class EvalRunQuerySerializer(serializers.ModelSerializer[EvalRunQuery]):
    figures = serializers.DictField(
        child=StageFiguresSerializer(), help_text=f"From 0 to 1, by metric. {BY_STAGE} Empty without an answer."
    )
    best_score = serializers.FloatField(
        allow_null=True,
        help_text="The highest of all results, relevant or not, before the gate; null: nothing was found.",
    )
    score_scale = serializers.CharField(allow_blank=True)
    first_relevant = serializers.DictField(
        child=serializers.IntegerField(), help_text=f"The rank of the first that is relevant. {BY_STAGE}"
    )
    lost_at = serializers.CharField(
        allow_blank=True,
        help_text=f"The stage that lost the last of what is relevant: {', '.join(LOST_AT)}; blank: some of it is a result.",
    )
    judged = ListField(
        child=ListField(child=serializers.FloatField()),
        help_text="Score and grade of the judged results before the gate.",
    )

    class Meta:
        model = EvalRunQuery
        fields = (
            "external_id",
            "text",
            "answerable",
            "figures",
            "best_score",
            "score_scale",
            "first_relevant",
            "lost_at",
            "judged",
            "latency_ms",
        )
        read_only_fields = fields


class EvalRunFilters(Created, ListFilters):
    orders: ClassVar = ("-created_at", "created_at", "id", "-id")
    eval_set_id = Related(EvalSet.objects.visible_to, field_name="eval_set", help_text="Only the runs of this set.")
    knowledge_base_id = Related(knowledge_bases_of, field_name="eval_set__knowledge_base", help_text="Of its sets.")
    status = OneOf(EvalRun.Status.values)


class EvalRunQueryFilters(ListFilters):
    orders: ClassVar = ("id", "-id", "latency_ms", "-latency_ms")
    lost_at = OneOf(LOST_AT, help_text="Only queries of which this stage has lost the last of what is relevant.")
    answerable = Flag()


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
    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(self.runs().without_documents(), EvalRunSerializer, EvalRunFilters)

    def create(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(EvalRunCreateSerializer)
        sets = EvalSet.objects.visible_to(self.principal).select_related("knowledge_base__profile")
        eval_set = one(sets, fields["eval_set_id"])
        name, version = fields.get("profile"), fields.get("profile_version")
        scope = [eval_set.knowledge_base_id]
        profile = find_version(self.principal, name, version, scope=scope) if name else None
        run = start_run(
            self.principal, eval_set, profile=profile, overrides=fields.get("overrides", {}), limit=fields.get("limit")
        )
        return Response(self.described(run.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self.described(pk))

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        cancel_run(self.principal, one(self.runs(), pk))
        return Response(self.described(pk))

    @action(detail=True)
    def queries(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(
            EvalRunQuery.objects.filter(run=one(self.runs(), pk)), EvalRunQuerySerializer, EvalRunQueryFilters
        )

    def runs(self) -> EvalRunQuerySet:
        rows = EvalRun.objects.visible_to(self.principal).select_related("eval_set", "profile", "created_by")
        return cast(EvalRunQuerySet, rows.annotate(stages=F("report__stages")))

    def described(self, pk: int) -> dict[str, object]:
        return EvalRunDetailSerializer(one(self.runs(), pk)).data


class EmbeddingModelChangeSerializer(StrictSerializer):
    model = StrictCharField(max_length=255, help_text="Id of the embedding model to move to; its dimension may differ.")
    swap = StrictBooleanField(
        default=False, help_text="Change searches over as soon as every chunk is embedded, and not only on request."
    )


class EvaluateBothSerializer(StrictSerializer):
    eval_set_id = serializers.IntegerField(min_value=1, help_text="An evaluation set of this knowledge base.")


class EvaluatedBothSerializer(serializers.Serializer[Any]):
    run_in_use = serializers.IntegerField(help_text="Id of the evaluation run with the model in use.")
    run_other = serializers.IntegerField(help_text="Id of the run with the target or, without one, the former model.")


BEHIND = "202: chunks were written since, and a worker embeds them first."


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read which embedding model a knowledge base uses, moves to and keeps",
        responses=answers({200: shape(EmbeddingModel)}, 404),
    ),
    create=extend_schema(
        summary="Start to move a knowledge base to another embedding model",
        description="A worker embeds every chunk beside the present vectors, which searches use until the swap. The same "
        "request goes on with a change that was interrupted or has failed.",
        request=EmbeddingModelChangeSerializer,
        responses=answers({202: shape(EmbeddingModel)}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        summary="Give up a change of the embedding model that is not swapped yet",
        responses=answers({204: None}, 403, 404),
    ),
    swap=extend_schema(
        operation_id="embedding_model_swap",
        summary="Change searches over to the target model's vectors, all at one moment",
        description=f"200: done. {BEHIND}",
        request=None,
        responses=answers({200: shape(EmbeddingModel), 202: shape(EmbeddingModel)}, 400, 403, 404),
    ),
    rollback=extend_schema(
        operation_id="embedding_model_rollback",
        summary="Go back to the former model's vectors",
        description=f"200: done. {BEHIND}",
        request=None,
        responses=answers({200: shape(EmbeddingModel), 202: shape(EmbeddingModel)}, 400, 403, 404),
    ),
    drop=extend_schema(
        operation_id="embedding_model_drop",
        summary="Delete the former model's vectors",
        request=None,
        responses=answers({200: shape(EmbeddingModel)}, 400, 403, 404),
    ),
    evaluate=extend_schema(
        operation_id="embedding_model_evaluate",
        summary="Run an evaluation set with both models",
        description="With the one in use and with the target, once it is ready, or else the former one: compare the two runs.",
        request=EvaluateBothSerializer,
        responses=answers({201: EvaluatedBothSerializer}, 400, 403, 404, 413, 415),
    ),
)
class EmbeddingModelViewSet(ApiViewSet):
    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(as_values(embedding_model_of(one(KnowledgeBase.objects.visible_to(self.principal), pk))))

    def create(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self._editable(pk)
        fields = self.checked(EmbeddingModelChangeSerializer)
        reembedding_start(kb, require_embedding_model(fields["model"]), swaps=fields["swap"])
        return Response(as_values(embedding_model_of(kb)), status=status.HTTP_202_ACCEPTED)

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        reembedding_cancel(self._editable(pk))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def swap(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._moved(self._editable(pk), reembedding_swap)

    @action(detail=True, methods=["post"])
    def rollback(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._moved(self._editable(pk), reembedding_rollback)

    @action(detail=True, methods=["post"])
    def drop(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self._editable(pk)
        reembedding_drop(kb)
        return Response(as_values(embedding_model_of(kb)))

    @action(detail=True, methods=["post"])
    def evaluate(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self._editable(pk)
        sets = EvalSet.objects.visible_to(self.principal).select_related("knowledge_base__profile")
        chosen = one(sets.filter(knowledge_base=kb), self.checked(EvaluateBothSerializer)["eval_set_id"])
        in_use, other = evaluate_both(self.principal, chosen)
        return Response({"run_in_use": in_use.pk, "run_other": other.pk}, status=status.HTTP_201_CREATED)

    def _editable(self, pk: int) -> KnowledgeBase:
        return cast(KnowledgeBase, self.editable(KnowledgeBase.objects.visible_to(self.principal), pk))

    def _moved(self, kb: KnowledgeBase, move: Callable[[KnowledgeBase], bool]) -> Response:
        status_code = status.HTTP_200_OK if move(kb) else status.HTTP_202_ACCEPTED
        return Response(as_values(embedding_model_of(kb)), status=status_code)
