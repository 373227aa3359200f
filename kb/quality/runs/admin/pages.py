"""The views of one evaluation run: its start, its page and the part of it that polls, and the table of its queries."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.views.generic import FormView, TemplateView
from unfold.views import UnfoldModelAdminViewMixin

from kb.access.models import Principal
from kb.base.errors import ServiceError
from kb.base.messages import shown
from kb.profiles.admin.setting_labels import setting_label, value_in_words
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, NOT_IN_NAMES, create_version
from kb.quality.models import EvalRun
from kb.quality.profiles.admin.pages import PAGE
from kb.quality.runs.admin.form import StartForm, again_parameters
from kb.quality.runs.admin.history import neighbours_of
from kb.quality.runs.admin.queries import misses_of, table_of, tally_of
from kb.quality.runs.admin.report import (
    chart_of,
    gate_figures,
    latency_figures,
    remarks,
    run_notices,
    settings_of,
    stage_rows,
    verdicts,
)
from kb.quality.runs.admin.state import is_unfinished, progress_of, standstill, took
from kb.quality.runs.services import start_run
from kb.web.admin.scoped import principal
from retrieval.errors import InvalidConfiguration


class StartView(UnfoldModelAdminViewMixin, FormView):  # type: ignore[misc,type-arg]
    """Starts a run. The URL may fill the form in; a chosen set or profile shows what its empty fields inherit."""

    permission_required = ()
    template_name = "quality/runs/start.html"
    form_class = StartForm

    @property
    def title(self) -> str:
        return _("Evaluate")

    def get_initial(self) -> dict[str, Any]:
        return {name: self.request.GET[name] for name in StartForm.base_fields if name in self.request.GET}

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "principal": principal(self.request)}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        form = kwargs.get("form") or self.get_form()
        return super().get_context_data(**{**kwargs, "form": form}, opts=self.model_admin.opts)

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


class OneRunView(UnfoldModelAdminViewMixin, TemplateView):  # type: ignore[misc]
    """A page of one run."""

    permission_required = ()

    @cached_property
    def run(self) -> EvalRun:
        found: EvalRun = self.model_admin.get_object_or_404(self.request, str(self.kwargs["object_id"]))
        return found

    @property
    def title(self) -> str:
        return _("Evaluation run #%(number)d of “%(name)s”") % {"number": self.run.pk, "name": self.run.eval_set.name}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            opts=self.model_admin.opts,
            original=self.run,
            run=self.run,
            eval_set=self.run.eval_set,
            kb=self.run.eval_set.knowledge_base,
        )


class RunView(OneRunView):
    """One run: its progress while it runs, then what it measured."""

    template_name = "quality/runs/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        run, report = self.run, self.run.report or {}
        may_edit = self.model_admin.has_change_permission(self.request, run)
        context = super().get_context_data(
            **{**kwargs, **live_context(run)},
            may_edit=may_edit,
            unsaved=[(setting_label(name), value_in_words(name, value)) for name, value in run.overrides.items()],
            again_url=again_url(run) if may_edit else "",
            took=took(run),
            error=shown(run.error),
            settings=settings_of(run),
            models=model_names(run),
            has_changed=has_changed(run),
            profile_url=reverse(PAGE, args=[run.profile_id]),
        )
        if run.status != EvalRun.Status.DONE:
            return context
        stages, tally = report.get("stages") or {}, tally_of(run)
        return context | {
            "report": report,
            "rows": stage_rows(stages),
            "verdicts": verdicts(stages, tally.moved),
            "remarks": remarks(report),
            "chart": chart_of(stages),
            "gate": gate_figures(report.get("gate")),
            "latency": latency_figures(report.get("latency_ms") or {}),
            "notices": run_notices(report),
            "misses": misses_of(run, tally.lost, self.request.GET),
            "headlines": headline_labels().values(),
            "neighbours": neighbours_of(run, headline_labels()),
        }


class QueriesView(OneRunView):
    """What a run measured of each query."""

    template_name = "quality/runs/queries.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, table=table_of(self.run, self.request.GET))


def live_context(run: EvalRun, *, ask_workers: bool = False) -> dict[str, Any]:
    """What the polled part of a run's page shows."""
    return {
        "is_unfinished": is_unfinished(run),
        "progress": progress_of(run),
        "standstill": standstill(run, ask_workers=ask_workers),
    }


def live_view(request: HttpRequest, run: EvalRun) -> HttpResponse:
    """How far a run is, for a page that polls; once the run has ended, the page is loaded anew."""
    response = render(request, "quality/runs/live.html", {"run": run, **live_context(run, ask_workers=True)})
    if not is_unfinished(run):
        response.headers["HX-Refresh"] = "true"
    return response


def again_url(run: EvalRun) -> str:
    given = again_parameters(run.profile_id, run.eval_set_id, run.overrides, run.query_limit)
    return f"{reverse('admin:kb_evalrun_add')}?{urlencode(given)}"


def has_changed(run: EvalRun) -> bool:
    """Whether the knowledge base is another one than the run measured."""
    if run.kb_version is None:
        return False
    now = run.eval_set.knowledge_base.version_row
    return (run.kb_version, run.content_version) != (now.version, now.content_version)


def save_as_draft(caller: Principal, run: EvalRun) -> RetrievalProfile:
    """The profile of a run with its unsaved settings as a further version, not published.

    Where the caller may not change that profile, it becomes one of the knowledge base's own, under its name.

    Raises:
        Rejected: there is a profile of that name elsewhere.
        NotAllowed: the caller may change neither.
        InvalidConfiguration: this version of the program does not take the settings.
    """
    profile, kb = run.profile, run.eval_set.knowledge_base
    may_change = RetrievalProfile.objects.editable_by(caller).filter(pk=profile.pk).exists()
    words = _("From evaluation run #%(number)d of “%(name)s”.") % {"number": run.pk, "name": run.eval_set.name}
    return create_version(
        caller,
        profile.name if may_change else profile_name(kb.name),
        {**profile.settings, **run.overrides},
        description=words,
        knowledge_base=profile.knowledge_base if may_change else kb,
    )


def profile_name(name: str) -> str:
    """A name as profiles may have it."""
    return "".join(each for each in name if each not in NOT_IN_NAMES)[:MAX_NAME_CHARACTERS]


def headline_labels() -> dict[str, str]:
    return {"recall_figure": _("Recall@5"), "ndcg_figure": _("NDCG@10"), "auroc_figure": _("AUROC")}


def model_names(run: EvalRun) -> list[tuple[str, str]]:
    """The models that answered, by role."""
    roles = {
        "embedding": _("Embedding"),
        "tokenizer": _("Tokenizer"),
        "reranker": _("Reranker"),
        "rerank_server": _("Rerank server"),
        "llm": _("Language model"),
    }
    return [(roles.get(role, role), name) for role, name in run.model_ids.items() if name]
