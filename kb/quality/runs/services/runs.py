"""Evaluation runs that are kept: started by a curator, carried out by a worker, watched and cancelled meanwhile."""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce
from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotVisible, Rejected, ServiceError
from kb.profiles.models import RetrievalProfile
from kb.quality.eval_sets.services.queries import require_editable
from kb.quality.models import EvalQuery, EvalRun, EvalRunQuery, EvalSet
from kb.quality.runs.services.report import model_ids, report_of
from kb.quality.runs.services.run import Measurement, Subject, Tick, query_count
from retrieval.errors import RetrievalError, ScopeOutdated
from retrieval.messages import message_of

logger = logging.getLogger(__name__)

TELL_S = 0.5
WAITED_LONG = timedelta(minutes=2)
SILENT_LONG = timedelta(minutes=2)
SWEEP_LIMIT = 500
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


class RunLost(Exception):
    """The run is no longer this process's: it was given up or deleted, and nothing more may be written."""


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
    run.status, run.started_at = EvalRun.Status.RUNNING, timezone.now()
    run.heartbeat = run.started_at
    run.save()
    report = _carry_out(_Job(run, on_progress))
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
    run.configuration = _subject(run).wire(principal).config.as_dict()
    return run


def _subject(run: EvalRun) -> Subject:
    return Subject(
        run.eval_set, run.profile.name, run.profile.version, run.overrides, run.query_limit, run.embedding_model
    )


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
    idle = own.filter(Q(status=EvalRun.Status.PENDING) | _silent(now))
    if not idle.update(status=EvalRun.Status.CANCELLED, cancel_requested=True, finished_at=now):
        own.filter(status=EvalRun.Status.RUNNING).update(cancel_requested=True)
    run.refresh_from_db()


def _silent(now: datetime) -> Q:
    return Q(status=EvalRun.Status.RUNNING, heartbeat__lt=now - SILENT_LONG)


def sweep_runs() -> list[int]:
    """Gives up the runs whose process has died.

    Returns:
        The ids of those that wait for a task that may have been lost.
    """
    now = timezone.now()
    silent = EvalRun.objects.filter(_silent(now))
    silent.filter(cancel_requested=True).update(status=EvalRun.Status.CANCELLED, finished_at=now)
    silent.update(status=EvalRun.Status.FAILED, error=WORKER_LOST, finished_at=now)
    waiting = EvalRun.objects.filter(status=EvalRun.Status.PENDING)
    lost = waiting.annotate(told=Coalesce(F("heartbeat"), F("created_at"))).filter(told__lt=now - WAITED_LONG)
    ids = list(lost.order_by("pk").values_list("pk", flat=True)[:SWEEP_LIMIT])
    waiting.filter(pk__in=ids).update(heartbeat=now)  # so that the next sweep does not enqueue them once more
    return ids


def execute_run(run_id: int) -> None:
    """Carries out a run that waits; one that another process has taken, or that is over, is left alone."""
    now = timezone.now()
    waiting = EvalRun.objects.filter(pk=run_id, status=EvalRun.Status.PENDING)
    if not waiting.update(status=EvalRun.Status.RUNNING, started_at=now, heartbeat=now):
        return
    run = EvalRun.objects.select_related("eval_set__knowledge_base__owner", "profile", "created_by").get(pk=run_id)
    try:
        _carry_out(_Job(run))
    except Exception:
        logger.exception("evaluation run %s has failed", run_id)


class _Job:
    """This process's hold on a run, which ends when someone else has ended the run."""

    def __init__(self, run: EvalRun, on_progress: Tick = lambda _: None) -> None:
        self.run = run
        self.done = 0
        self._told_at = 0.0
        self._on_progress = on_progress
        self._own = EvalRun.objects.filter(pk=run.pk, status=EvalRun.Status.RUNNING, started_at=run.started_at)

    def tick(self, count: int) -> None:
        """Tells of progress, at most twice a second.

        Raises:
            RunCancelled: the run shall end.
            RunLost: it has ended.
        """
        self.done += count
        self._on_progress(count)
        if time.monotonic() - self._told_at >= TELL_S:
            self.tell(done=self.done)

    def tell(self, **fields: Any) -> None:
        """Writes fields of the run, and that its process is alive; raises as `tick`."""
        self._told_at = time.monotonic()
        if self._own.filter(cancel_requested=True).exists():
            raise RunCancelled
        if not self._own.update(heartbeat=timezone.now(), **fields):
            raise RunLost

    def end(self, status: EvalRun.Status, measurement: Measurement | None = None, **fields: Any) -> None:
        """Ends the run, together with what was measured."""
        rows = measurement.rows if measurement else []
        with transaction.atomic():
            if not self._own.update(status=status, done=len(rows), finished_at=timezone.now(), **fields):
                return
            known = self._known_queries(rows)
            for row in rows:
                row.run = self.run
                row.query_id = row.query_id if row.query_id in known else None
            EvalRunQuery.objects.bulk_create(rows, batch_size=ROWS_AT_ONCE)

    def _known_queries(self, rows: Sequence[EvalRunQuery]) -> set[int | None]:
        """The ids of the queries that were not deleted meanwhile; they stay until the transaction ends."""
        if not rows:
            return set()
        queries = EvalQuery.objects.filter(eval_set=self.run.eval_set_id).select_for_update(no_key=True)
        return set(queries.order_by("pk").values_list("pk", flat=True))


def _carry_out(job: _Job) -> dict[str, Any]:
    """Measures, and ends the run in any case.

    Returns:
        The report; empty where someone else has ended the run.

    Raises:
        Exception: what made the run fail.
    """
    measurement, report = None, {}
    try:
        # In English, which the pages translate, whatever language whoever runs it has.
        with translation.override(None):
            measurement = Measurement(_principal(job.run), _subject(job.run))
            job.tell(
                total=len(measurement.queries),
                configuration=measurement.config.as_dict(),
                model_ids=model_ids(measurement),
                kb_version=measurement.version.version,
                content_version=measurement.version.content_version,
            )
            measurement.run(job.tick)
            report = {**report_of(measurement), "run_id": job.run.pk}
    except RunLost:
        logger.info("evaluation run %s was ended or deleted while it was carried out", job.run.pk)
    except RunCancelled:
        job.end(EvalRun.Status.CANCELLED, measurement)
    except Exception as error:
        job.end(EvalRun.Status.FAILED, error=_in_words(error))
        raise
    else:
        job.end(EvalRun.Status.DONE, measurement, report=report)
    return report


def _principal(run: EvalRun) -> Principal:
    """Whoever started the run, in this knowledge base; its owner, where their account is gone."""
    kb = run.eval_set.knowledge_base
    return Principal(run.created_by or kb.owner, frozenset([kb.pk]))


def _in_words(error: Exception) -> str:
    if isinstance(error, ScopeOutdated):
        return MOVED
    return message_of(error) if isinstance(error, ServiceError | RetrievalError) else INTERNAL_ERROR


def require_no_run(kb: KnowledgeBase) -> None:
    """Raises `Rejected` while an evaluation of a knowledge base is running."""
    if EvalRun.objects.filter(eval_set__knowledge_base=kb, status=EvalRun.Status.RUNNING).exists():
        message = _(
            "An evaluation of this knowledge base is running and may read them: wait for its end, or cancel it."
        )
        raise Rejected("evaluation_running", message)
