from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.index.models import Reembedding
from kb.index.services.reembedding import (
    reembedding_cancel,
    reembedding_drop,
    reembedding_rollback,
    reembedding_start,
    reembedding_swap,
)
from kb.providers.embedding_models import require_embedding_model
from kb.quality.models import EvalSet
from kb.quality.runs.services.reembedding import evaluate_both, reembedding_as_json
from kb.web.api.fields import StrictBooleanField, StrictCharField, StrictSerializer
from kb.web.api.schema import answers
from kb.web.api.views import ApiViewSet, one


class EmbeddingModelChangeSerializer(StrictSerializer):
    model = StrictCharField(max_length=255, help_text="Id of the embedding model to move to; its dimension may differ.")
    swap = StrictBooleanField(
        default=False, help_text="Change searches over as soon as every chunk is embedded, and not only when told to."
    )


class EvaluateBothSerializer(StrictSerializer):
    eval_set_id = serializers.IntegerField(min_value=1, help_text="An evaluation set of this knowledge base.")


class ReembeddingProgressSerializer(serializers.Serializer[Any]):
    done = serializers.IntegerField(help_text="Chunks that have their vector of the target model.")
    total = serializers.IntegerField(help_text="Chunks in all.")
    per_second = serializers.FloatField(allow_null=True, help_text="Chunks a second, since this run of the work began.")
    seconds_left = serializers.IntegerField(allow_null=True)


class EmbeddingModelSerializer(serializers.Serializer[Any]):
    model = serializers.CharField(help_text="That searches use.")
    dimension = serializers.IntegerField(allow_null=True)
    target = serializers.CharField(allow_null=True, help_text="The model that the knowledge base is on its way to.")
    target_dimension = serializers.IntegerField(allow_null=True)
    previous = serializers.CharField(
        allow_null=True, help_text="The former model, whose vectors are kept for a return until they are dropped."
    )
    status = serializers.ChoiceField(Reembedding.Status.choices, allow_null=True, help_text="Of the last change.")
    swaps = serializers.BooleanField(
        help_text="Whether searches change over by themselves when every chunk is embedded."
    )
    error = serializers.CharField(allow_blank=True)
    progress = ReembeddingProgressSerializer(allow_null=True)
    swapped_at = serializers.DateTimeField(allow_null=True)


class EvaluatedBothSerializer(serializers.Serializer[Any]):
    run_in_use = serializers.IntegerField(help_text="Id of the evaluation run with the model in use.")
    run_other = serializers.IntegerField(help_text="Id of the run with the target or, without one, the former model.")


BEHIND = "202: chunks were written since, and a worker embeds them first."


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read which embedding model a knowledge base uses, moves to and keeps",
        responses=answers({200: EmbeddingModelSerializer}, 404),
    ),
    create=extend_schema(
        summary="Start to move a knowledge base to another embedding model",
        description="A worker embeds every chunk beside the present vectors, which searches use until the swap. The same "
        "request goes on with a change that was interrupted or has failed.",
        request=EmbeddingModelChangeSerializer,
        responses=answers({202: EmbeddingModelSerializer}, 400, 403, 404, 413, 415),
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
        responses=answers({200: EmbeddingModelSerializer, 202: EmbeddingModelSerializer}, 400, 403, 404),
    ),
    rollback=extend_schema(
        operation_id="embedding_model_rollback",
        summary="Go back to the former model's vectors",
        description=f"200: done. {BEHIND}",
        request=None,
        responses=answers({200: EmbeddingModelSerializer, 202: EmbeddingModelSerializer}, 400, 403, 404),
    ),
    drop=extend_schema(
        operation_id="embedding_model_drop",
        summary="Delete the former model's vectors",
        request=None,
        responses=answers({200: EmbeddingModelSerializer}, 400, 403, 404),
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
    queryset = KnowledgeBase.objects.none()

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(reembedding_as_json(one(KnowledgeBase.objects.visible_to(self.principal), pk)))

    def create(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self._editable(pk)
        fields = self.checked(EmbeddingModelChangeSerializer)
        reembedding_start(kb, require_embedding_model(fields["model"]), swaps=fields["swap"])
        return Response(reembedding_as_json(kb), status=status.HTTP_202_ACCEPTED)

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        reembedding_cancel(self._editable(pk))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def swap(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self._editable(pk)
        return self._moved(kb, is_done=reembedding_swap(kb))

    @action(detail=True, methods=["post"])
    def rollback(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self._editable(pk)
        return self._moved(kb, is_done=reembedding_rollback(kb))

    @action(detail=True, methods=["post"])
    def drop(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self._editable(pk)
        reembedding_drop(kb)
        return Response(reembedding_as_json(kb))

    @action(detail=True, methods=["post"])
    def evaluate(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self._editable(pk)
        sets = EvalSet.objects.visible_to(self.principal).select_related("knowledge_base__profile")
        chosen = one(sets.filter(knowledge_base=kb), self.checked(EvaluateBothSerializer)["eval_set_id"])
        in_use, other = evaluate_both(self.principal, chosen)
        return Response({"run_in_use": in_use.pk, "run_other": other.pk}, status=status.HTTP_201_CREATED)

    def _editable(self, pk: int) -> KnowledgeBase:
        kb: KnowledgeBase = self.editable(KnowledgeBase.objects.visible_to(self.principal), pk)
        return kb

    def _moved(self, kb: KnowledgeBase, *, is_done: bool) -> Response:
        status_code = status.HTTP_200_OK if is_done else status.HTTP_202_ACCEPTED
        return Response(reembedding_as_json(kb), status=status_code)
