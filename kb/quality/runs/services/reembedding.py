"""How far a knowledge base is on its way to another embedding model, and how its models compare."""

from dataclasses import dataclass
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
class ReembeddingState:
    """What searches use, what is on its way, and what is kept.

    Attributes:
        model: that searches use.
        target: on its way; blank: none.
        previous: kept for a return; blank: none.
        status: of the last change; blank: there was none.
        done: chunks that have the target's vector, of `total`.
        per_second: chunks embedded a second in this run of the work; None: not known yet.
        swaps: whether searches change over by themselves.
        missing: chunks without the former model's vector, which a return has to embed.
    """

    model: str
    dimension: int | None
    target: str
    target_dimension: int | None
    previous: str
    status: str
    swaps: bool
    error: str
    done: int
    total: int
    per_second: float | None
    missing: int
    swapped_at: datetime | None

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 100

    @property
    def seconds_left(self) -> int | None:
        if not self.per_second or self.status != Reembedding.Status.BUILDING:
            return None
        return round((self.total - self.done) / self.per_second)

    @property
    def is_unfinished(self) -> bool:
        return bool(self.target) and self.status in UNFINISHED

    @property
    def is_ready(self) -> bool:
        return bool(self.target) and self.status == Reembedding.Status.READY

    @property
    def other(self) -> str:
        """The model whose figures can be held against those of the one in use; blank: none has all its vectors."""
        return self.target if self.is_ready else self.previous


def reembedding_state(kb: KnowledgeBase) -> ReembeddingState:
    """As stored now, so that every process shows the same."""
    row = Reembedding.objects.filter(knowledge_base=kb).first()
    total = Chunk.objects.filter(knowledge_base=kb).count()
    embedded = _embedded(kb)
    done = embedded.get(kb.target_embedding_model, 0)
    return ReembeddingState(
        model=kb.embedding_model,
        dimension=kb.dimension,
        target=kb.target_embedding_model,
        target_dimension=row.dimension if row and kb.target_embedding_model else None,
        previous=kb.previous_embedding_model,
        status=row.status if row else "",
        swaps=bool(row and row.swaps),
        error=shown(row.error) if row else "",
        done=done,
        total=total,
        per_second=_rate(row, done),
        missing=total - embedded.get(kb.previous_embedding_model, 0) if kb.previous_embedding_model else 0,
        swapped_at=row.swapped_at if row else None,
    )


@dataclass(frozen=True, slots=True)
class ReembeddingProgress:
    """How far the chunks are."""

    done: Annotated[int, Doc("Chunks that have their vector of the target model.")]
    total: Annotated[int, Doc("Chunks in all.")]
    per_second: Annotated[float | None, Doc("Chunks a second, since this run of the work began.")]
    seconds_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
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


def embedding_model_of(kb: KnowledgeBase) -> EmbeddingModel:
    state = reembedding_state(kb)
    per_second = None if state.per_second is None else round(state.per_second, 2)
    progress = ReembeddingProgress(state.done, state.total, per_second, state.seconds_left)
    return EmbeddingModel(
        model=state.model,
        dimension=state.dimension,
        target=state.target or None,
        target_dimension=state.target_dimension,
        previous=state.previous or None,
        status=Reembedding.Status(state.status) if state.status else None,
        swaps=state.swaps,
        error=state.error,
        progress=progress if state.target else None,
        swapped_at=state.swapped_at,
    )


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
        message = _("There is no second model to compare with: start a change, and wait until every chunk is embedded.")
        raise Rejected("no_second_model", message)
    other = find_version(principal, profile_after(kb, state.other), scope=[kb.pk])
    return (
        start_run(principal, eval_set, embedding_model=state.model),
        start_run(principal, eval_set, profile=other, embedding_model=state.other),
    )


def _embedded(kb: KnowledgeBase) -> dict[str, int]:
    models = [model for model in (kb.target_embedding_model, kb.previous_embedding_model) if model]
    if not models:
        return {}
    kind = ChunkEmbedding.Kind.CONTENT
    rows = ChunkEmbedding.objects.filter(knowledge_base=kb, model__in=models, kind=kind).order_by().values("model")
    return dict(rows.annotate(chunks=Count("pk")).values_list("model", "chunks"))


def _rate(row: Reembedding | None, done: int) -> float | None:
    if row is None or row.status != Reembedding.Status.BUILDING:
        return None
    seconds = (row.told_at - row.counted_at).total_seconds()
    return (done - row.counted_from) / seconds if seconds > 0 and done > row.counted_from else None
