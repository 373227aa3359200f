"""Evaluation runs that are kept: started by a curator, carried out by a worker, watched and cancelled meanwhile."""

import logging
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotVisible, Rejected, ServiceError
from kb.jobs.leases import Job, LeaseLost, Queue
from kb.profiles.models import RetrievalProfile
from kb.quality.eval_sets.services.queries import require_editable
from kb.quality.models import EvalQuery, EvalRun, EvalRunQuery, EvalSet
from kb.quality.runs.services.report import model_ids, report_of
from kb.quality.runs.services.run import Measurement, Tick, query_count, wiring_of
from retrieval.errors import RetrievalError, ScopeOutdated
from retrieval.messages import message_of

logger = logging.getLogger(__name__)

REPORT_S = 0.5
SILENT_LONG = timedelta(minutes=2)
ROWS_AT_ONCE = 500
WORKER_LOST = gettext_noop(
    "The process that carried this run out has stopped, perhaps for want of memory; nothing of it was kept. Start the run again."
)
INTERNAL_ERROR = gettext_noop(
    "Something unexpected went wrong, and nothing of the run was kept. The worker’s log says what: mend it, then start the run again."
)
MOVED = gettext_noop(
    "The knowledge base moved to another tokenizer while it was evaluated, and nothing of the run was kept. Start the run again."
)


class RunCancelled(Exception):
    """Someone has asked for the run's end."""


RUNS = Queue(
    EvalRun,
    waiting=EvalRun.Status.PENDING,
    running=EvalRun.Status.RUNNING,
    lasts=lambda: SILENT_LONG,
    waits_since="created_at",
    attempts=False,  # one whose process died is given up
    stamp="heartbeat",
    related=("eval_set__knowledge_base__owner", "profile", "created_by"),
)


def start_run(
    principal: Principal,
    eval_set: EvalSet,
    *,
    profile: RetrievalProfile | None = None,
    overrides: Mapping[str, Any] | None = None,
    limit: int | None = None,
    embedding_model: str = "",
) -> EvalRun:
    """Starts a run, which a worker carries out once the transaction is committed.

    Args:
        principal: who starts it; the run has their rights.
        eval_set: with its knowledge base.
        profile: a version that is shared or the knowledge base's own; None: that which the knowledge base uses.
        overrides: unsaved settings over it.
        limit: only the first so many queries, with an answer and without.
        embedding_model: that the vectors searched are of; blank: that which the knowledge base uses when the run begins.

    Raises:
        NotVisible: the set or the profile does not exist for the principal.
        NotAllowed: the principal may see the set, but not change it.
        Rejected: there is nothing to measure, the profile belongs to another knowledge base, or there are no vectors of
            the model.
        InvalidConfiguration: an override is unknown or out of range.
    """
    run = _new_run(principal, eval_set, profile, overrides or {}, limit, embedding_model)
    run.save()
    return run


def evaluate_as_run(
    principal: Principal,
    eval_set: EvalSet,
    *,
    profile: RetrievalProfile | None = None,
    overrides: Mapping[str, Any] | None = None,
    limit: int | None = None,
    on_progress: Tick = lambda _: None,
) -> EvalRun:
    """Carries a run out in this process and keeps it; arguments and errors as `start_run` and `evaluate`.

    A run that fails is kept too, with its error, which is raised again.
    """
    run = _new_run(principal, eval_set, profile, overrides or {}, limit)
    lease, run.started_at = uuid.uuid4(), timezone.now()
    for name, value in RUNS.taken(lease).items():
        setattr(run, name, value)
    run.save()
    report = _carry_out(RunJob(run, lease, on_progress))
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
) -> EvalRun:
    require_editable(principal, eval_set)
    kb: KnowledgeBase = eval_set.knowledge_base
    profile = profile or kb.profile
    if not RetrievalProfile.objects.visible_to(principal).filter(pk=profile.pk).exists():
        raise NotVisible(_("There is no such retrieval profile: choose one of the list."))
    if profile.knowledge_base_id not in (None, kb.pk):
        message = _("The profile “%(name)s” belongs to another knowledge base: choose a shared one, or one of its own.")
        raise Rejected("profile_elsewhere", message % {"name": profile.name})
    total = query_count(eval_set, limit)
    if not total:
        message = _(
            "Nothing of the evaluation set “%(name)s” is judged yet: judge results of a search, or import judgments."
        )
        raise Rejected("nothing_judged", message % {"name": eval_set.name})
    run = EvalRun(
        eval_set=eval_set,
        profile=profile,
        overrides=dict(overrides),
        embedding_model=embedding_model,
        query_limit=limit,
        total=total,
        created_by_id=principal.user.pk,
    )
    run.configuration = wiring_of(principal, run).config.as_dict()
    return run


def cancel_run(principal: Principal, run: EvalRun) -> None:
    """Ends a run: one that waits at once, one that is under way within a second or so; what it has measured stays.

    A run that has ended stays as it is.

    Raises:
        NotVisible: the run's set does not exist for the principal.
        NotAllowed: the principal may see it, but not change it.
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
    """Gives up the runs whose process has died.

    Returns:
        The ids of those that wait for a task that may have been lost.
    """
    now = timezone.now()
    dead = EvalRun.objects.filter(pk__in=RUNS.lost(now).filter(status=EvalRun.Status.RUNNING).values("pk"))
    ended: dict[str, Any] = {"lease": None, "lease_until": None, "finished_at": now}
    dead.filter(cancel_requested=True).update(status=EvalRun.Status.CANCELLED, **ended)
    dead.update(status=EvalRun.Status.FAILED, error=WORKER_LOST, **ended)
    return RUNS.sweep()


def execute_run(run_id: int) -> None:
    """Carries out a run that waits; one that another process has taken, or that is over, is left alone."""
    if job := RUNS.claim(Q(pk=run_id, status=EvalRun.Status.PENDING), started_at=timezone.now()):
        try:
            _carry_out(RunJob(job.row, job.lease))
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
        """Reports progress, at most twice a second.

        Raises:
            RunCancelled: the run shall end.
            LeaseLost: it has ended.
        """
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
            self.leave(status, done=len(rows), heartbeat=now, finished_at=now, **fields)
            # Queries that were not deleted meanwhile; they stay until the transaction ends.
            queries = EvalQuery.objects.filter(eval_set=self.row.eval_set_id).select_for_update(no_key=True)
            known = set(queries.order_by("pk").values_list("pk", flat=True)) if rows else set()
            for row in rows:
                row.run = self.row
                row.query_id = row.query_id if row.query_id in known else None
            EvalRunQuery.objects.bulk_create(rows, batch_size=ROWS_AT_ONCE)


def _carry_out(job: RunJob) -> dict[str, Any]:
    """Measures, and ends the run in any case.

    Returns:
        The report; empty where someone else has ended the run.

    Raises:
        Exception: what made the run fail.
    """
    measurement, report = None, {}
    kb = job.row.eval_set.knowledge_base
    # Whoever started the run, in this knowledge base; its owner, where their account was deleted.
    principal = Principal(job.row.created_by or kb.owner, frozenset([kb.pk]))
    try:
        # In English, which the pages translate, whatever language whoever runs it has.
        with translation.override(None):
            measurement = Measurement(principal, job.row)
            job.report(
                total=len(measurement.queries),
                configuration=measurement.config.as_dict(),
                model_ids=model_ids(measurement),
                kb_version=measurement.version.version,
                content_version=measurement.version.content_version,
            )
            measurement.run(job.tick)
            report = {**report_of(measurement), "run_id": job.row.pk}
    except LeaseLost:
        logger.info("evaluation run %s was ended or deleted while it was carried out", job.row.pk)
    except RunCancelled:
        job.end(EvalRun.Status.CANCELLED, measurement)
    except Exception as error:
        job.end(EvalRun.Status.FAILED, error=_as_text(error))
        raise
    else:
        job.end(EvalRun.Status.DONE, measurement, report=report)
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
