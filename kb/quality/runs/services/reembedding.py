"""How far a knowledge base is on its way to another embedding model, and how its models compare."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated

from django.db.models import Count
from django.utils.translation import gettext as _
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import Rejected
from kb.base.messages import shown
from kb.content.models import Chunk
from kb.index.models import ChunkEmbedding, Reembedding
from kb.index.services.reembedding import profile_after
from kb.profiles.services import find_version
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.services.runs import start_run

UNFINISHED = (Reembedding.Status.BUILDING, Reembedding.Status.INDEXING)


@dataclass(frozen=True, slots=True)
class ReembeddingProgress:
    """How far the chunks are."""

    done: Annotated[int, Doc("Chunks that have their vector of the target model.")]
    total: Annotated[int, Doc("Chunks in all.")]
    per_second: Annotated[float | None, Doc("Chunks a second, since this run of the work began.")]
    seconds_left: int | None

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 100


@dataclass(frozen=True, kw_only=True)
class EmbeddingModel:
    """The response of GET /api/v1/knowledge-bases/{id}/embedding-model/."""

    model: Annotated[str, Doc("That searches use.")]
    dimension: int | None
    target: Annotated[str | None, Doc("The model that the knowledge base is on its way to.")]
    target_dimension: int | None
    previous: Annotated[
        str | None, Doc("The former model, whose vectors are kept for a return until they are dropped.")
    ]
    status: Annotated[Reembedding.Status | None, Doc("Of the last change.")]
    swaps: Annotated[bool, Doc("Whether searches change over by themselves when every chunk is embedded.")]
    error: str
    progress: ReembeddingProgress | None
    swapped_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ReembeddingState(EmbeddingModel):
    """What the page of a knowledge base's model shows besides.

    Attributes:
        missing: chunks without the former model's vector, which a return has to embed.
    """

    missing: int

    @property
    def is_unfinished(self) -> bool:
        return bool(self.target) and self.status in UNFINISHED

    @property
    def is_ready(self) -> bool:
        return bool(self.target) and self.status == Reembedding.Status.READY

    @property
    def other(self) -> str | None:
        """The model whose figures can be held against those of the one in use; None: none has all its vectors."""
        return self.target if self.is_ready else self.previous


def reembedding_state(kb: KnowledgeBase) -> ReembeddingState:
    """As stored now, so that every process shows the same."""
    row = Reembedding.objects.filter(knowledge_base=kb).first()
    total = Chunk.objects.filter(knowledge_base=kb).count()
    embedded = _embedded(kb)
    target, previous = kb.target_embedding_model or None, kb.previous_embedding_model or None
    progress = None
    if target:
        done = embedded.get(target, 0)
        rate = _rate(row, done)
        left = round((total - done) / rate) if rate else None
        progress = ReembeddingProgress(done, total, round(rate, 2) if rate else None, left)
    return ReembeddingState(
        model=kb.embedding_model,
        dimension=kb.dimension,
        target=target,
        target_dimension=row.dimension if row and target else None,
        previous=previous,
        status=Reembedding.Status(row.status) if row else None,
        swaps=bool(row and row.swaps),
        error=shown(row.error) if row else "",
        progress=progress,
        swapped_at=row.swapped_at if row else None,
        missing=total - embedded.get(previous, 0) if previous else 0,
    )


def embedding_model_of(kb: KnowledgeBase) -> EmbeddingModel:
    state = reembedding_state(kb)
    return EmbeddingModel(**{each.name: getattr(state, each.name) for each in fields(EmbeddingModel)})


def evaluate_both(principal: Principal, eval_set: EvalSet) -> tuple[EvalRun, EvalRun]:
    """Starts a run with the model in use and one with the other model, each under the profile that goes with it.

    Args:
        principal: who starts them; they have their rights.
        eval_set: with its knowledge base.

    Returns:
        The run of the model in use, and that of the target or, where there is none, of the former model.

    Raises:
        NotVisible: the set does not exist for the principal.
        NotAllowed: the principal may see it, but not change it.
        Rejected: there is nothing to measure, or no second model.
    """
    kb: KnowledgeBase = eval_set.knowledge_base
    state = reembedding_state(kb)
    if not state.other:
        raise Rejected(
            "no_second_model",
            _("There is no second model to compare with: start a change, and wait until every chunk is embedded."),
        )
    other = find_version(principal, profile_after(kb, state.other), scope=[kb.pk])
    return (
        start_run(principal, eval_set, embedding_model=state.model),
        start_run(principal, eval_set, profile=other, embedding_model=state.other),
    )


def _embedded(kb: KnowledgeBase) -> dict[str, int]:
    models = [model for model in (kb.target_embedding_model, kb.previous_embedding_model) if model]
    if not models:
        return {}
    rows = (
        ChunkEmbedding.objects.filter(knowledge_base=kb, model__in=models, kind=ChunkEmbedding.Kind.CONTENT)
        .order_by()
        .values("model")
    )
    return dict(rows.annotate(chunks=Count("pk")).values_list("model", "chunks"))


def _rate(row: Reembedding | None, done: int) -> float | None:
    if row is None or row.status != Reembedding.Status.BUILDING:
        return None
    seconds = (row.told_at - row.counted_at).total_seconds()
    return (done - row.counted_from) / seconds if seconds > 0 and done > row.counted_from else None
