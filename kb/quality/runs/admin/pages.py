"""The pages of evaluation runs: the form that starts one, its progress, its report, and the table of its queries."""

import json
import re
from collections.abc import Iterable
from datetime import timedelta
from operator import attrgetter
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import FloatField, Q, QuerySet
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.generic import FormView, TemplateView

from kb.access.models import Principal
from kb.base.messages import shown
from kb.base.models import count_of
from kb.jobs.leases import LONG_QUEUE, workers
from kb.profiles.admin.choices import (
    choices_of,
    configuration_error,
    profile_state,
    profile_url,
    setting_label,
    value_text,
)
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import configuration_of
from kb.quality.models import EvalQuery, EvalRun, EvalRunQuerySet, EvalSet
from kb.quality.runs.admin.queries import misses_of, table_of, tally_of
from kb.quality.runs.admin.report import (
    change_between,
    chart_of,
    gate_figures,
    latency_figures,
    model_text,
    remarks,
    role_label,
    run_notices,
    settings_of,
    stage_rows,
    three_decimals,
    verdicts,
)
from kb.quality.runs.services.report import models_of
from kb.quality.runs.services.runs import SILENT_LONG, start_run
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.fields import select, setting_field, text_input, textarea
from kb.web.admin.scoped import ModelPage, principal, reporting_in, row_ids
from retrieval.config import SETTINGS
from retrieval.errors import InvalidConfiguration

# Where a report has the figures by which runs are distinguished.
HEADLINES = {
    "recall_figure": ("stages", "reranked", "recall@5"),
    "ndcg_figure": ("stages", "reranked", "ndcg@10"),
    "auroc_figure": ("gate", "auroc"),
}
LISTED = 8


def with_headlines(runs: QuerySet[EvalRun]) -> EvalRunQuerySet:
    """Runs with their headline figures; reports are long, and lists of runs defer them."""
    figures = {name: Cast(KT("__".join(("report", *keys))), FloatField()) for name, keys in HEADLINES.items()}
    return cast(EvalRunQuerySet, runs.annotate(**figures))


def neighbours_of(run: EvalRun, labels: dict[str, str]) -> list[dict[str, Any]]:
    """The latest other finished runs of the set of a run of `with_headlines`, and how much better the run is.

    One query. Where another run measured another number of queries, the means cannot be compared.
    """
    runs = EvalRun.objects.filter(eval_set=run.eval_set_id, status=EvalRun.Status.DONE).exclude(pk=run.pk)
    latest = with_headlines(runs).select_related("profile").without_documents()
    rows = []
    for other in latest[:LISTED]:
        same_queries = other.done == run.done
        standings = [
            {
                "label": label,
                "value": three_decimals(getattr(other, name)),
                "change": change_between(getattr(other, name), getattr(run, name)) if same_queries else None,
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
    """Why a run does not go on, and what to do; blank while it does or has ended. To ask the workers takes a second."""
    silence = timezone.now() - (run.heartbeat or run.started_at or run.created_at)
    if run.status == EvalRun.Status.RUNNING and silence > SILENT_LONG:
        return _(
            "Nothing has been heard of this run for %(time)s: its worker may have stopped. Cancel the run and start it again."
        ) % {"time": duration(silence.total_seconds())}
    if run.status != EvalRun.Status.PENDING or timezone.now() - run.created_at <= WAITED_LONG:
        return ""
    if not ask_workers:
        return _("No worker has taken this run up yet.")
    if alive := workers(LONG_QUEUE):
        return _("The workers are busy with other tasks (%(names)s); the run begins when one is free.") % {
            "names": ", ".join(alive)
        }
    return _(
        "No worker for long work is running, so the run waits: “manage.py serve” runs one; alone: “celery -A config worker -Q long,moves”. "
        "The run begins by itself as soon as one is there."
    )


def state_cell(run: EvalRun, *, swap: bool = False) -> SafeString:
    """Status and progress of a run; `swap` makes HTMX put it in the place of the one on the page."""
    return render_to_string(
        "quality/runs/state.html",
        {"run": run, "progress": progress_of(run), "label": LABELS[EvalRun.Status(run.status)], "swap": swap},
    )


# -- The form that starts a run -----------------------------------------------------------------------------------------
WEIGHTS = ("vector_weight", "keyword_weight", "question_weight", "hybrid_vector_weight", "hybrid_text_weight")
RERANKING = ("fusion", "candidate_floor", "rerank_candidates", "top_k", "score_threshold")
COMMON = (*RERANKING, *WEIGHTS, "rrf_k")
# Another set has other profiles, and another profile other values behind the empty fields: the page is asked for them.
RELOADING = {
    "hx-get": "",
    "hx-include": "#er-fields",
    "hx-target": "#er-fields",
    "hx-select": "#er-fields",
    "hx-swap": "outerHTML",
    "hx-vals": "js:{unfolded: document.querySelector('#er-fields details').open ? 'yes' : ''}",
}
LINE = re.compile(r"\s*(\w+)\s*[=:]\s*(.+?)\s*")


class SetField(forms.ModelChoiceField):  # type: ignore[type-arg]
    def label_from_instance(self, obj: Any) -> str:
        size = ngettext("%(count)d query", "%(count)d queries", obj.query_count) % {"count": obj.query_count}
        return f"{obj.name} · {obj.knowledge_base.name} · {size}"


class SetForm(forms.Form):
    eval_set = SetField(
        EvalSet.objects.none(),
        label=gettext_lazy("Evaluation set"),
        empty_label=gettext_lazy("Choose a set"),
        widget=select(),
    )

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sets = EvalSet.objects.editable_by(principal).select_related("knowledge_base__profile")
        cast(SetField, self.fields["eval_set"]).queryset = sets.annotate(
            query_count=count_of(EvalQuery.objects, "eval_set")
        )
        self.chosen_set = sets.filter(pk__in=row_ids([str(self["eval_set"].value() or "")])).first()

    @property
    def has_sets(self) -> bool:
        """Whether there is any set that the user may run; counted by the choices that the page shows anyway."""
        return len(cast(Any, self.fields["eval_set"]).choices) > 1


class StartForm(SetForm):
    """Where a setting is left empty, the run inherits it from the profile."""

    profile = forms.ChoiceField(label=gettext_lazy("Profile"), required=False, widget=select(**RELOADING))
    limit = forms.IntegerField(
        label=gettext_lazy("Only the first"),
        required=False,
        min_value=1,
        max_value=10_000_000,
        widget=text_input(inputmode="numeric", placeholder=gettext_lazy("all")),
    )
    other = forms.CharField(
        label=gettext_lazy("Other settings"),
        required=False,
        max_length=4_000,
        widget=textarea(3, is_code=True),
    )

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, principal=principal, **kwargs)
        self.fields["eval_set"].widget.attrs.update(RELOADING)
        self.overrides: dict[str, Any] = {}
        self.profiles = {str(row.pk): row for row in _offered(principal, self.chosen_set)}
        own = _("The knowledge base’s own")
        if self.chosen_set is not None:
            own = _("The knowledge base’s own (%(profile)s)") % {"profile": self.chosen_set.knowledge_base.profile}
        self.offer("profile", [("", own), *_grouped(self.profiles.values())])
        # Empty fields show what they stand for under the chosen profile
        inherited = configuration_of(self.chosen_profile.settings if self.chosen_profile else {}).as_dict()
        fusions = choices_of("fusion")
        self.offer(
            "fusion", [("", _("Default (%(value)s)") % {"value": fusions[inherited["fusion"]]}), *fusions.items()]
        )
        for name in COMMON[1:]:
            self.fields[name].widget.attrs["title"] = _(SETTINGS[name].help)
            self.fields[name].widget.attrs["placeholder"] = value_text(name, inherited[name])

    def offer(self, name: str, choices: list[Any]) -> None:
        cast(forms.ChoiceField, self.fields[name]).choices = choices

    @property
    def chosen_profile(self) -> RetrievalProfile | None:
        """The profile that the run would have; None before a set is chosen."""
        named = self.profiles.get(str(self["profile"].value() or ""))
        return named or (self.chosen_set.knowledge_base.profile if self.chosen_set else None)

    @property
    def is_unfolded(self) -> bool:
        return any(self[name].errors or self[name].value() not in (None, "") for name in (*COMMON, "other"))

    @property
    def groups(self) -> dict[str, list[forms.BoundField]]:
        groups = {
            _("Candidates, reranking and threshold"): RERANKING,
            _("Fusion by reciprocal ranks (RRF)"): (*WEIGHTS[:3], "rrf_k"),
            _("Fusion by weighted sum"): WEIGHTS[3:],
        }
        return {title: [self[name] for name in names] for title, names in groups.items()}

    def clean_other(self) -> dict[str, Any]:
        """Settings, one a line, with their values as in JSON.

        Raises:
            ValidationError: a line, which is named, is no setting.
        """
        values = {}
        for number, line in enumerate(self.cleaned_data["other"].splitlines(), 1):
            if found := LINE.fullmatch(line):
                values[found[1]] = _json_or_text(found[2])
            elif line.strip():
                raise ValidationError(
                    _("Line %(number)d is no setting: write it as “name = value”.") % {"number": number}
                )
        return values

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if self.errors:
            return values
        self.overrides = {name: values[name] for name in COMMON if values[name] not in (None, "")} | values["other"]
        # What is wrong with the resolved settings is said beside its field.
        try:
            configuration_of({**(self.chosen_profile.settings if self.chosen_profile else {}), **self.overrides})
        except InvalidConfiguration as error:
            self.add_error(error.field if error.field in COMMON else "other", configuration_error(error))
        return values


StartForm.base_fields.update({name: setting_field(SETTINGS[name], may_be_empty=True) for name in COMMON})


def again_parameters(run: EvalRun) -> dict[str, str]:
    """The fields of the form that start the same run again."""
    other = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in run.overrides.items()
        if name not in COMMON
    ]
    given = {
        "eval_set": run.eval_set_id,
        "profile": run.profile_id,
        "limit": run.query_limit,
        **{name: run.overrides.get(name) for name in COMMON},
        "other": "\n".join(other),
    }
    return {name: str(value) for name, value in given.items() if value not in (None, "")}


def _json_or_text(value: str) -> Any:
    """A value as JSON has it; a bare word is a text, and words with commas between them are a list."""
    try:
        return json.loads(value)
    except ValueError:
        return [each.strip() for each in value.split(",")] if "," in value else value


def _offered(principal: Principal, eval_set: EvalSet | None) -> Iterable[RetrievalProfile]:
    """Every version of the profiles that may serve a set: shared ones, and those of its knowledge base."""
    profiles = RetrievalProfile.objects.visible_to(principal).select_related("knowledge_base")
    own = [eval_set.knowledge_base_id] if eval_set else []
    return profiles.filter(Q(knowledge_base=None) | Q(knowledge_base__in=own))


def _grouped(profiles: Iterable[RetrievalProfile]) -> list[tuple[str, list[tuple[str, str]]]]:
    by_name: dict[str, list[tuple[str, str]]] = {}
    for profile in profiles:
        by_name.setdefault(profile.name, []).append((str(profile.pk), f"{profile} · {profile_state(profile)}"))
    return list(by_name.items())


# -- The pages ---------------------------------------------------------------------------------------------------------
def polled(request: HttpRequest, template: str, context: dict[str, Any], *, goes_on: bool) -> HttpResponse:
    """A part of a page that polls; once nothing goes on any more, the page is loaded again."""
    html = render_to_string(template, context, request)
    return HttpResponse(html, headers=None if goes_on else {"HX-Refresh": "true"})


class StartView(ModelPage, FormView):  # type: ignore[type-arg]
    """Starts a run. The URL may fill the form in, else a set of the current knowledge base is chosen.

    A chosen set or profile shows what its empty fields inherit.
    """

    template_name = "quality/runs/start.html"
    form_class = StartForm

    title = gettext_lazy("Evaluate")

    def get_initial(self) -> dict[str, Any]:
        given = {name: self.request.GET[name] for name in StartForm.base_fields if name in self.request.GET}
        current = current_knowledge_base(self.request)
        if given or current is None:
            return given
        sets = EvalSet.objects.editable_by(principal(self.request)).filter(knowledge_base=current)
        newest = sets.order_by("-pk").values_list("pk", flat=True).first()
        return {} if newest is None else {"eval_set": str(newest)}

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "principal": principal(self.request)}

    def form_valid(self, form: StartForm) -> HttpResponse:
        values = form.cleaned_data
        with reporting_in(form):
            run = start_run(
                principal(self.request),
                values["eval_set"],
                profile=form.chosen_profile if values["profile"] else None,
                overrides=form.overrides,
                limit=values["limit"],
            )
            return HttpResponseRedirect(reverse("admin:kb_evalrun_change", args=[run.pk]))
        return self.form_invalid(form)


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
        now = run.eval_set.knowledge_base.version_row
        seconds = (run.finished_at - run.started_at).total_seconds() if run.started_at and run.finished_at else None
        context = super().get_context_data(
            **kwargs,
            **live_context(run),
            **self.model_admin.form_context(self.request, run),
            may_edit=may_edit,
            unsaved=[(setting_label(name), value_text(name, value)) for name, value in run.overrides.items()],
            again_url=f"{reverse('admin:kb_evalrun_add')}?{urlencode(again_parameters(run))}" if may_edit else "",
            took="" if seconds is None else duration(seconds),
            error=shown(run.error),
            settings=settings_of(run),
            models=[(role_label(role), model_text(name)) for role, name in models_of(run).items()],
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
