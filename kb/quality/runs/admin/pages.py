"""The pages of evaluation runs: the start of one, its progress, its report, and the table of its queries."""

from datetime import timedelta
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

from django.db.models import FloatField, QuerySet, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Coalesce
from django.http import HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.generic import FormView, TemplateView

from kb.access.models import Principal
from kb.base.errors import ServiceError
from kb.base.messages import shown
from kb.jobs.leases import workers
from kb.profiles.admin.choices import profile_url, setting_label, value_text
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, NOT_IN_NAMES, create_version
from kb.quality.models import EvalRun
from kb.quality.runs.admin.form import StartForm, again_parameters
from kb.quality.runs.admin.queries import misses_of, table_of, tally_of
from kb.quality.runs.admin.report import (
    change_between,
    chart_of,
    gate_figures,
    latency_figures,
    remarks,
    run_notices,
    settings_of,
    stage_rows,
    three_decimals,
    verdicts,
)
from kb.quality.runs.services.runs import SILENT_LONG, start_run
from kb.web.admin.scoped import ModelPage, principal
from retrieval.errors import InvalidConfiguration

# Where a report has the figures by which runs are distinguished.
HEADLINES = {
    "recall_figure": ("stages", "reranked", "recall@5"),
    "ndcg_figure": ("stages", "reranked", "ndcg@10"),
    "auroc_figure": ("gate", "auroc"),
}
NO_FIGURE = -1.0  # sorts runs without a figure below all others
LISTED = 8


def with_headlines(runs: QuerySet[EvalRun]) -> QuerySet[EvalRun]:
    """Runs with their headline figures; reports are long, and lists of runs defer them."""
    figures = {
        name: Coalesce(Cast(KT("__".join(("report", *keys))), FloatField()), Value(NO_FIGURE))
        for name, keys in HEADLINES.items()
    }
    annotated: QuerySet[EvalRun] = runs.annotate(**figures)
    return annotated


def headline(run: Any, name: str) -> float | None:
    figure: float = getattr(run, name)
    return None if figure == NO_FIGURE else figure


def neighbours_of(run: EvalRun, labels: dict[str, str]) -> list[dict[str, Any]]:
    """The latest other finished runs of a run's set, and how much better or worse the run is; one query.

    Where another run measured another number of queries, the means cannot be compared.

    Args:
        run: of `with_headlines`.
        labels: of the headline figures.
    """
    runs = EvalRun.objects.filter(eval_set=run.eval_set_id, status=EvalRun.Status.DONE).exclude(pk=run.pk)
    latest = with_headlines(runs).select_related("profile").defer("report", "configuration")
    rows = []
    for other in latest.order_by("-created_at", "-pk")[:LISTED]:
        same_queries = other.done == run.done
        standings = [
            {
                "label": label,
                "value": three_decimals(headline(other, name)),
                "change": change_between(headline(other, name), headline(run, name)) if same_queries else None,
            }
            for name, label in labels.items()
        ]
        rows.append(
            {
                "run": other,
                "standings": standings,
                "same_queries": same_queries,
                "compare_url": compare_url(*sorted((run, other), key=attrgetter("pk"))),
            }
        )
    return rows


def compare_url(before: EvalRun, after: EvalRun) -> str:
    return f"{reverse('admin:compare_runs')}?a={before.pk}&b={after.pk}"


UNFINISHED = (EvalRun.Status.PENDING, EvalRun.Status.RUNNING)
WAITED_LONG = timedelta(seconds=20)
LABELS = {
    EvalRun.Status.PENDING: "info",
    EvalRun.Status.RUNNING: "info",
    EvalRun.Status.DONE: "success",
    EvalRun.Status.CANCELLED: "warning",
    EvalRun.Status.FAILED: "danger",
}


def progress_of(run: EvalRun) -> dict[str, Any]:
    """How far a run is: `percent`, from 0 to 100, and `pace`, a text that is blank before the first query."""
    percent = 100 * run.done // run.total if run.total else 0
    seconds = (run.heartbeat - run.started_at).total_seconds() if run.started_at and run.heartbeat else 0
    if not run.done or seconds <= 0:
        return {"percent": percent, "pace": ""}
    rate = run.done / seconds
    speed = _("%(rate)s queries a second") % {"rate": f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"}
    left = _("about %(time)s left") % {"time": duration(max(run.total - run.done, 0) / rate)}
    return {"percent": percent, "pace": f"{speed} · {left}"}


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


def is_unfinished(run: EvalRun) -> bool:
    return run.status in UNFINISHED


def standstill(run: EvalRun, *, ask_workers: bool) -> str:
    """Why a run does not go on, and what to do; blank while it does, or has ended.

    Args:
        run: as stored.
        ask_workers: whether workers are asked if they are there, which takes a second.
    """
    silence = timezone.now() - (run.heartbeat or run.started_at or run.created_at)
    if run.status == EvalRun.Status.RUNNING and silence > SILENT_LONG:
        return _(
            "Nothing has been heard of this run for %(time)s: its worker may have stopped. Cancel the run and start it again."
        ) % {"time": duration(silence.total_seconds())}
    if run.status != EvalRun.Status.PENDING or timezone.now() - run.created_at <= WAITED_LONG:
        return ""
    if not ask_workers:
        return _("No worker has taken this run up yet.")
    if alive := workers():
        return _("The workers are busy with other tasks (%(names)s); the run begins when one is free.") % {
            "names": ", ".join(alive)
        }
    return _(
        "No worker is running, so the run waits: “manage.py serve” runs one; alone: “celery -A config worker -B”. "
        "The run begins by itself as soon as one is there."
    )


def state_cell(run: EvalRun, *, swap: bool = False) -> SafeString:
    """Status and progress of a run; `swap` makes HTMX put it in the place of the one on the page."""
    return render_to_string(
        "quality/runs/state.html",
        {"run": run, "progress": progress_of(run), "label": LABELS[EvalRun.Status(run.status)], "swap": swap},
    )


class StartView(ModelPage, FormView):  # type: ignore[type-arg]
    """Starts a run. The URL may fill the form in; a chosen set or profile shows what its empty fields inherit."""

    template_name = "quality/runs/start.html"
    form_class = StartForm

    title = gettext_lazy("Evaluate")

    def get_initial(self) -> dict[str, Any]:
        return {name: self.request.GET[name] for name in StartForm.base_fields if name in self.request.GET}

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "principal": principal(self.request)}

    def form_valid(self, form: StartForm) -> HttpResponse:
        values = form.cleaned_data
        try:
            run = start_run(
                principal(self.request),
                values["eval_set"],
                profile=form.chosen_profile if values["profile"] else None,
                overrides=form.overrides,
                limit=values["limit"],
            )
        except (ServiceError, InvalidConfiguration) as error:
            form.add_error(None, str(error))
            return self.form_invalid(form)
        return HttpResponseRedirect(reverse("admin:kb_evalrun_change", args=[run.pk]))


class OneRunView(ModelPage, TemplateView):
    @cached_property
    def run(self) -> Any:
        return self.model_admin.get_object_or_404(self.request, str(self.kwargs["object_id"]))

    @property
    def title(self) -> str:
        return _("Evaluation run #%(number)d of “%(name)s”") % {"number": self.run.pk, "name": self.run.eval_set.name}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            original=self.run,
            run=self.run,
            eval_set=self.run.eval_set,
            kb=self.run.eval_set.knowledge_base,
        )


class RunView(OneRunView):
    template_name = "quality/runs/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        run, report = self.run, self.run.report or {}
        may_edit = self.model_admin.has_change_permission(self.request, run)
        roles = {
            "embedding": _("Embedding"),
            "tokenizer": _("Tokenizer"),
            "reranker": _("Reranker"),
            "rerank_server": _("Rerank server"),
            "llm": _("Language model"),
        }
        now = run.eval_set.knowledge_base.version_row
        seconds = (run.finished_at - run.started_at).total_seconds() if run.started_at and run.finished_at else None
        context = super().get_context_data(
            **kwargs,
            **live_context(run),
            may_edit=may_edit,
            unsaved=[(setting_label(name), value_text(name, value)) for name, value in run.overrides.items()],
            again_url=f"{reverse('admin:kb_evalrun_add')}?{urlencode(again_parameters(run))}" if may_edit else "",
            took="" if seconds is None else duration(seconds),
            error=shown(run.error),
            settings=settings_of(run),
            models=[(roles.get(role, role), name) for role, name in run.model_ids.items() if name],
            has_changed=run.kb_version is not None
            and (run.kb_version, run.content_version) != (now.version, now.content_version),
            profile_url=profile_url(run.profile),
        )
        if run.status != EvalRun.Status.DONE:
            return context
        stages, (moved, lost) = report.get("stages") or {}, tally_of(run)
        headlines = {"recall_figure": _("Recall@5"), "ndcg_figure": _("NDCG@10"), "auroc_figure": _("AUROC")}
        return context | {
            "report": report,
            "rows": stage_rows(stages),
            "verdicts": verdicts(stages, moved),
            "remarks": list(remarks(report)),
            "chart": chart_of(stages),
            "gate": gate_figures(report.get("gate")),
            "latency": latency_figures(report.get("latency_ms") or {}),
            "notices": run_notices(report),
            "misses": misses_of(run, lost, self.request.GET),
            "headlines": headlines.values(),
            "neighbours": neighbours_of(run, headlines),
        }


class QueriesView(OneRunView):
    template_name = "quality/runs/queries.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, table=table_of(self.run, self.request.GET))


def live_context(run: EvalRun, *, ask_workers: bool = False) -> dict[str, Any]:
    return {
        "is_unfinished": is_unfinished(run),
        "progress": progress_of(run),
        "standstill": standstill(run, ask_workers=ask_workers),
    }


def save_as_draft(caller: Principal, run: EvalRun) -> RetrievalProfile:
    """The profile of a run with its unsaved settings as a further version, not published.

    Where the caller may not change that profile, it becomes one of the knowledge base's own, under its name.

    Raises:
        Rejected: there is a profile of that name elsewhere.
        NotAllowed: the caller may change neither.
        InvalidConfiguration: this version of the program does not take the settings.
    """
    profile, kb = run.profile, run.eval_set.knowledge_base
    name, place = profile.name, profile.knowledge_base
    if not RetrievalProfile.objects.editable_by(caller).filter(pk=profile.pk).exists():
        name, place = "".join(each for each in kb.name if each not in NOT_IN_NAMES)[:MAX_NAME_CHARACTERS], kb
    message = _("From evaluation run #%(number)d of “%(name)s”.") % {"number": run.pk, "name": run.eval_set.name}
    return create_version(
        caller, name, {**profile.settings, **run.overrides}, description=message, knowledge_base=place
    )
