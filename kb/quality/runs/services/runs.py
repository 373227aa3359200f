"""Evaluation runs: started by a curator, carried out by a worker, watched, cancelled; also of two embedding models."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Annotated, Any

from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone, translation
from django.utils.translation import gettext as _, gettext_noop
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotVisible, Rejected, ServiceError
from kb.base.messages import shown
from kb.content.models import Chunk
from kb.index.models import ChunkEmbedding, Reembedding
from kb.index.services.reembedding import profile_after
from kb.jobs.leases import Job, LeaseLost, Queue, watching
from kb.profiles.models import RetrievalProfile
from kb.quality.eval_sets.services.sets import require_editable
from kb.quality.models import EvalQuery, EvalRun, EvalRunQuery, EvalSet
from kb.quality.runs.services.report import model_ids, report_of
from kb.quality.runs.services.run import Measurement, Tick, query_count, wiring_of
from retrieval.errors import RequestWithdrawn, RetrievalError, ScopeOutdated, message_of

logger = logging.getLogger(__name__)

REPORT_S = 0.5
SILENT_LONG = timedelta(minutes=2)
ROWS_AT_ONCE = 500
WORKER_LOST = gettext_noop(
    "The process that carried this run out has stopped, perhaps for want of memory; nothing of it was kept. Start the run again."
)
INTERNAL_ERROR = gettext_noop(
    "Something unexpected went wrong, and nothing of the run was kept. The worker’s log says what: fix it, then start the run again."
)
MOVED = gettext_noop(
    "The knowledge base moved to another tokenizer while it was evaluated, and nothing of the run was kept. Start the run again."
)


Measure = Callable[[Principal, EvalRun], Measurement]


class RunCancelled(RequestWithdrawn):
    """Someone has asked for the run's end."""


RUNS = Queue(
    EvalRun,
    waiting=EvalRun.Status.PENDING,
    running=EvalRun.Status.RUNNING,
    lasts=lambda: SILENT_LONG,
    waits_since="created_at",
    attempts=False,
    stamp="heartbeat",
    related=("eval_set__knowledge_base__owner", "profile", "created_by"),
    owner="eval_set__knowledge_base__owner",
    resumes=False,  # what was measured is lost
)


def start_run(
    principal: Principal,
    eval_set: EvalSet,
    *,
    profile: RetrievalProfile | None = None,
    overrides: Mapping[str, Any] | None = None,
    limit: int | None = None,
    embedding_model: str = "",
    folds: int | None = None,
) -> EvalRun:
    """Starts a run with the principal's rights, which a worker carries out once the transaction is committed.

    The set comes with its knowledge base. The profile is a version that is shared or the knowledge base's own (None:
    that which it uses), under unsaved settings, `overrides`; `limit` leaves the first so many queries, with an answer
    and without. `embedding_model` is that which the vectors searched are of; blank: that in use when the run begins.
    `folds` are those of a fitting; None: nothing is fitted.

    Raises as `require_editable` and `wiring_of`, and `Rejected` where there is nothing to measure or the profile
    belongs to another knowledge base.
    """
    run = _new_run(principal, eval_set, profile, overrides or {}, limit, embedding_model, folds)
    run.save()
    return run


def evaluate_as_run(
    principal: Principal,
    eval_set: EvalSet,
    *,
    profile: RetrievalProfile | None = None,
    overrides: Mapping[str, Any] | None = None,
    limit: int | None = None,
    folds: int | None = None,
    measure: Measure = Measurement,
    on_progress: Tick = lambda _: None,
) -> EvalRun:
    """Carries a run out in this process and keeps it; arguments and errors as `start_run`, `execute_run` and `evaluate`.

    A run that fails is kept too, with its error, which is raised again.
    """
    run = _new_run(principal, eval_set, profile, overrides or {}, limit, folds=folds)
    lease, run.started_at = uuid.uuid4(), timezone.now()
    for name, value in RUNS.taken(lease).items():
        setattr(run, name, value)
    run.save()
    report = _carry_out(RunJob(run, lease, on_progress), measure)
    run.refresh_from_db()
    run.report = report  # the database keeps no order of keys
    return run


def _new_run(
    principal: Principal,
    eval_set: EvalSet,
    profile: RetrievalProfile | None,
    overrides: Mapping[str, Any],
    limit: int | None,
    embedding_model: str = "",
    folds: int | None = None,
) -> EvalRun:
    require_editable(principal, eval_set)
    kb: KnowledgeBase = eval_set.knowledge_base
    profile = profile or kb.profile
    if not RetrievalProfile.objects.visible_to(principal).filter(pk=profile.pk).exists():
        raise NotVisible(_("There is no such retrieval profile: choose one of the list."))
    if profile.knowledge_base_id not in (None, kb.pk):
        message = _("The profile “%(name)s” belongs to another knowledge base: choose a shared one, or one of its own.")
        raise Rejected("profile_elsewhere", message, name=profile.name)
    total = query_count(eval_set, limit)
    if not total:
        message = _(
            "Nothing of the evaluation set “%(name)s” is judged yet: judge results of a search, or import judgments."
        )
        raise Rejected("nothing_judged", message, name=eval_set.name)
    run = EvalRun(
        eval_set=eval_set,
        profile=profile,
        overrides=dict(overrides),
        embedding_model=embedding_model,
        query_limit=limit,
        folds=folds,
        total=total,
        created_by_id=principal.user.pk,
    )
    run.configuration = wiring_of(principal, run).config.as_dict()
    return run


def cancel_run(principal: Principal, run: EvalRun) -> None:
    """Ends a run: one that waits at once, one that is under way within a second or so; what it has measured stays.

    A run that has ended stays as it is. Raises as `require_editable`.
    """
    require_editable(principal, run.eval_set)
    now = timezone.now()
    own = EvalRun.objects.filter(pk=run.pk)
    idle = own.filter(Q(status=EvalRun.Status.PENDING) | Q(status=EvalRun.Status.RUNNING, lease_until__lt=now))
    if not idle.update(
        status=EvalRun.Status.CANCELLED, cancel_requested=True, lease=None, lease_until=None, finished_at=now
    ):
        own.filter(status=EvalRun.Status.RUNNING).update(cancel_requested=True)
    run.refresh_from_db()


def sweep_runs() -> list[int]:
    """Gives up the runs whose process has died; returns the ids of those that wait and whose task may be lost."""
    now = timezone.now()
    dead = EvalRun.objects.filter(pk__in=RUNS.lost(now).filter(status=EvalRun.Status.RUNNING).values("pk"))
    ended: dict[str, Any] = {"lease": None, "lease_until": None, "finished_at": now}
    dead.filter(cancel_requested=True).update(status=EvalRun.Status.CANCELLED, **ended)
    dead.update(status=EvalRun.Status.FAILED, error=WORKER_LOST, **ended)
    return RUNS.sweep()


def execute_run(run_id: int, measure: Measure = Measurement) -> None:
    """Carries out a run that waits; one that another process has taken, or that is over, is left alone.

    `measure` makes what searches for its queries.
    """
    if job := RUNS.claim(Q(pk=run_id), started_at=timezone.now()):
        try:
            _carry_out(RunJob(job.row, job.lease), measure)
        except Exception:
            logger.exception("evaluation run %s has failed", run_id)


class RunJob(Job[EvalRun]):
    """This process's hold on a run, which ends when someone else has ended the run."""

    def __init__(self, run: EvalRun, lease: uuid.UUID, on_progress: Tick = lambda _: None) -> None:
        super().__init__(RUNS, run, lease)
        self.done = 0
        self._reported_at = 0.0
        self._on_progress = on_progress

    def tick(self, count: int) -> None:
        """Reports progress, at most twice a second; `RunCancelled`: the run is to end; `LeaseLost`: it has ended."""
        self.done += count
        self._on_progress(count)
        if time.monotonic() - self._reported_at >= REPORT_S:
            self.report(done=self.done)

    def report(self, **fields: Any) -> None:
        """Writes fields of the run, and that its process is alive; raises as `tick`."""
        self._reported_at = time.monotonic()
        if self.own.filter(cancel_requested=True).exists():
            raise RunCancelled
        self.renew(**fields)

    def end(self, status: EvalRun.Status, measurement: Measurement | None = None, **fields: Any) -> None:
        """Ends the run, together with what was measured; nothing is written where someone else has ended it."""
        rows = measurement.rows if measurement else []
        with suppress(LeaseLost), transaction.atomic():
            now = timezone.now()
            if measurement and status == EvalRun.Status.DONE:
                fields |= measurement.conclude()
            self.leave(status, done=len(rows), heartbeat=now, finished_at=now, **fields)
            # Queries that were not deleted meanwhile; they stay until the transaction ends.
            queries = EvalQuery.objects.filter(eval_set=self.row.eval_set_id).select_for_update(no_key=True)
            known = set(queries.order_by("pk").values_list("pk", flat=True)) if rows else set()
            for row in rows:
                row.run = self.row
                row.query_id = row.query_id if row.query_id in known else None
            EvalRunQuery.objects.bulk_create(rows, batch_size=ROWS_AT_ONCE)


def _carry_out(job: RunJob, measure: Measure) -> dict[str, Any]:
    """Measures, and ends the run in any case; what made it fail is raised.

    Returns the report, empty where someone else has ended the run.
    """
    measurement, report = None, {}
    kb = job.row.eval_set.knowledge_base
    # Whoever started the run, in this knowledge base; its owner, where their account was deleted.
    principal = Principal(job.row.created_by or kb.owner, frozenset([kb.pk]))
    try:
        # In English, which the pages translate, whatever language whoever runs it has.
        is_wanted = job.own.filter(cancel_requested=False).exists
        with translation.override(None), watching(is_wanted, error=RunCancelled):
            measurement = measure(principal, job.row)
            job.report(
                total=len(measurement.queries),
                configuration=measurement.config.as_dict(),
                model_ids=model_ids(measurement),
                kb_version=measurement.version.version,
                content_version=measurement.version.content_version,
            )
            measurement.run(job.tick)
            report = {**report_of(measurement), "run_id": job.row.pk}
            job.end(EvalRun.Status.DONE, measurement, report=report)
    except LeaseLost:
        logger.info("evaluation run %s was ended or deleted while it was carried out", job.row.pk)
    except RunCancelled:
        job.end(EvalRun.Status.CANCELLED, measurement)
    except Exception as error:
        job.end(EvalRun.Status.FAILED, error=_as_text(error))
        raise
    return report


def _as_text(error: Exception) -> str:
    if isinstance(error, ScopeOutdated):
        return MOVED
    return message_of(error) if isinstance(error, ServiceError | RetrievalError) else INTERNAL_ERROR


def require_no_run(kb: KnowledgeBase) -> None:
    """Raises `Rejected` while an evaluation of a knowledge base is running."""
    if EvalRun.objects.filter(eval_set__knowledge_base=kb, status=EvalRun.Status.RUNNING).exists():
        raise Rejected(
            "evaluation_running",
            _("An evaluation of this knowledge base is running and may read them: wait for its end, or cancel it."),
        )


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
    """What the page shows besides: `missing` chunks lack the former model's vector, and a return has to embed them."""

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

    Returns them in this order; the other model is the target or, where there is none, the former one. Raises as
    `start_run`, and `Rejected` where there is no second model.
    """
    kb: KnowledgeBase = eval_set.knowledge_base
    state = reembedding_state(kb)
    if not state.other:
        raise Rejected(
            "no_second_model",
            _("There is no second model to compare with: start a change, and wait until every chunk is embedded."),
        )
    return (
        start_run(principal, eval_set, embedding_model=state.model),
        start_run(principal, eval_set, profile=profile_after(kb, state.other), embedding_model=state.other),
    )


def _embedded(kb: KnowledgeBase) -> dict[str, int]:
    models = {kb.target_embedding_model, kb.previous_embedding_model} - {""}
    rows = ChunkEmbedding.objects.filter(knowledge_base=kb, model__in=models, kind=ChunkEmbedding.Kind.CONTENT)
    return dict(rows.order_by().values_list("model").annotate(Count("pk")))


def _rate(row: Reembedding | None, done: int) -> float | None:
    if row is None or row.status != Reembedding.Status.BUILDING:
        return None
    seconds = (row.told_at - row.counted_at).total_seconds()
    return (done - row.counted_from) / seconds if seconds > 0 and done > row.counted_from else None
