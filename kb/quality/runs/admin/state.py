"""How far an evaluation run is, in figures and in words, and what to do where it does not go on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.jobs.workers import workers
from kb.quality.models import EvalRun
from kb.quality.runs.services.runs import SILENT_LONG

UNFINISHED = (EvalRun.Status.PENDING, EvalRun.Status.RUNNING)
WAITED_LONG = timedelta(seconds=20)
LABELS = {
    EvalRun.Status.PENDING: "info",
    EvalRun.Status.RUNNING: "info",
    EvalRun.Status.DONE: "success",
    EvalRun.Status.CANCELLED: "warning",
    EvalRun.Status.FAILED: "danger",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        percent: 0 to 100, rounded down.
        rate: queries a second since it began; None before the first.
        seconds_left: at that rate; None while it is unknown.
    """

    done: int
    total: int
    percent: int
    rate: float | None
    seconds_left: float | None

    @property
    def rate_in_words(self) -> str:
        if self.rate is None:
            return ""
        return _("%(rate)s queries a second") % {"rate": f"{self.rate:.0f}" if self.rate >= 10 else f"{self.rate:.1f}"}

    @property
    def time_left_in_words(self) -> str:
        return "" if self.seconds_left is None else _("about %(time)s left") % {"time": duration(self.seconds_left)}


def progress_of(run: EvalRun) -> Progress:
    percent = 100 * run.done // run.total if run.total else 0
    if not run.done or run.started_at is None or run.heartbeat is None:
        return Progress(run.done, run.total, percent, None, None)
    seconds = (run.heartbeat - run.started_at).total_seconds()
    rate = run.done / seconds if seconds > 0 else None
    left = max(run.total - run.done, 0) / rate if rate else None
    return Progress(run.done, run.total, percent, rate, left)


def duration(seconds: float) -> str:
    """A span of time, rounded to what a reader needs."""
    if seconds < 90:
        whole = max(round(seconds), 1)
        return ngettext("%(count)d second", "%(count)d seconds", whole) % {"count": whole}
    minutes = round(seconds / 60)
    if minutes < 90:
        return ngettext("%(count)d minute", "%(count)d minutes", minutes) % {"count": minutes}
    hours = round(minutes / 60)
    return ngettext("%(count)d hour", "%(count)d hours", hours) % {"count": hours}


def took(run: EvalRun) -> str:
    """How long a run that has ended took; blank for one that never began."""
    if run.started_at is None or run.finished_at is None:
        return ""
    return duration((run.finished_at - run.started_at).total_seconds())


def is_unfinished(run: EvalRun) -> bool:
    return run.status in UNFINISHED


def unfinished_ids(runs: Sequence[EvalRun]) -> str:
    """The runs that a page has to ask about again, as the value of a query parameter."""
    return ",".join(str(run.pk) for run in runs if is_unfinished(run))


def standstill(run: EvalRun, *, ask_workers: bool) -> str:
    """Why a run does not go on, and what to do; blank while it does, or has ended.

    Args:
        run: as stored.
        ask_workers: whether workers are asked if they are there, which takes a second.
    """
    now = timezone.now()
    if run.status == EvalRun.Status.PENDING and _older(run.created_at, WAITED_LONG, now):
        return _waiting(ask_workers=ask_workers)
    if run.status == EvalRun.Status.RUNNING and _older(run.heartbeat or run.started_at, SILENT_LONG, now):
        return _(
            "Nothing has been heard of this run for %(time)s: its worker may have stopped. Cancel the run and start it again."
        ) % {"time": duration((now - (run.heartbeat or run.created_at)).total_seconds())}
    return ""


def _older(moment: datetime | None, span: timedelta, now: datetime) -> bool:
    return moment is not None and now - moment > span


def _waiting(*, ask_workers: bool) -> str:
    if not ask_workers:
        return _("No worker has taken this run up yet.")
    alive = workers()
    if not alive:
        return _(
            "No worker is running, so the run waits: “manage.py serve” runs one; alone: “celery -A config worker -B”. "
            "The run begins by itself as soon as one is there."
        )
    return _("The workers are busy with other tasks (%(names)s); the run begins when one is free.") % {
        "names": ", ".join(alive)
    }


def state_cell(run: EvalRun, *, swap: bool = False) -> SafeString:
    """Status and progress of a run; `swap` makes HTMX put it in the place of the one on the page."""
    context = {"run": run, "progress": progress_of(run), "label": LABELS[EvalRun.Status(run.status)], "swap": swap}
    return render_to_string("quality/runs/state.html", context)
