"""Evaluation runs: their list and pages, and the page that changes the embedding model of a knowledge base."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.shortcuts import render
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_GET
from django.views.generic import TemplateView
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.widgets import RADIO_CLASSES, UnfoldAdminSelectWidget, UnfoldBooleanSwitchWidget

from kb.access.models import KnowledgeBase, Principal
from kb.base.text import csv_lines
from kb.index.services.reembedding import (
    reembedding_cancel,
    reembedding_drop,
    reembedding_rollback,
    reembedding_start,
    reembedding_swap,
)
from kb.profiles.admin.choices import profile_url
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, NOT_IN_NAMES, create_version
from kb.providers.embedding_models import (
    Choice,
    embedding_choices,
    label_of,
    recommended_embedding_models,
    require_embedding_model,
)
from kb.quality.models import EvalRun, EvalRunQuerySet, EvalSet
from kb.quality.runs.admin.pages import (
    HEADLINES,
    UNFINISHED,
    QueriesView,
    RunView,
    StartView,
    compare_url,
    is_unfinished,
    live_context,
    polled,
    state_cell,
    with_headlines,
)
from kb.quality.runs.admin.queries import asked_rows
from kb.quality.runs.admin.report import csv_rows, three_decimals
from kb.quality.runs.services.runs import cancel_run, evaluate_both, reembedding_state
from kb.web.admin.navigation import Section, add_hub_tab, add_tab
from kb.web.admin.parts import Chip, add_chips
from kb.web.admin.scoped import (
    Empty,
    KnowledgeBasePage,
    ScopedModelAdmin,
    ScopedRelatedFilter,
    column,
    principal,
    reporting,
    reporting_in,
    row_ids,
    visible,
)
from kb.web.admin.site import add_part


class SetFilter(ScopedRelatedFilter):
    """Sets with their knowledge bases, since several may have a set of one name."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:  # noqa: ARG002
        return [
            (row.pk, f"{row.name} · {row.knowledge_base.name}")
            for row in visible(EvalSet, request).select_related("knowledge_base")
        ]


def figure_cell(run: EvalRun, name: str, *, swap: bool = False) -> SafeString:
    oob = SafeString(' hx-swap-oob="true"') if swap else ""
    return format_html(
        '<span id="run-{}-{}" class="er-figure"{}>{}</span>', run.pk, name, oob, three_decimals(getattr(run, name))
    )


def figure_column(name: str, label: Promise) -> Callable[[Any, EvalRun], SafeString]:
    @column(label, ordering=F(name).asc(nulls_first=True))
    def figure(_admin: Any, run: EvalRun) -> SafeString:
        return figure_cell(run, name)

    return figure


@admin.register(EvalRun)
class EvalRunAdmin(ScopedModelAdmin):
    empty = Empty(
        gettext_lazy(
            "A run searches every query of an evaluation set and says at which stage the right passages were lost."
        ),
        gettext_lazy("For example before and after a change of the retrieval profile, to see whether it got better."),
        "speed",
    )
    add_title = gettext_lazy("Run an evaluation set")
    unfinished = UNFINISHED
    list_display = ("name", "searched_with", "queries", "recall", "ndcg", "auroc", "state", "started")
    list_filter = (("eval_set", SetFilter), ("profile", ScopedRelatedFilter), ("status", ChoicesDropdownFilter))
    show_full_result_count = False
    list_before_template = "quality/runs/list_styles.html"
    list_after_template = "quality/runs/poll.html"
    actions: ClassVar[Sequence[str]] = ("compare", "delete_selected")
    ordering = ("-created_at", "-pk")

    def get_queryset(self, request: HttpRequest) -> EvalRunQuerySet:
        related = ("eval_set__knowledge_base__version_row", "profile", "created_by")
        return with_headlines(super().get_queryset(request).select_related(*related))

    def completed(self, request: HttpRequest, rows: Any) -> Any:  # noqa: ARG002
        """Reads of the reports, which are long, only the figures that the list shows."""
        return rows.without_documents()

    # -- Pages -----------------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("progress/", require_GET(self.progress_view), "progress"),
            self.row_page("live", self.live_view, "GET"),
            self.row_page("cancel", self.cancel_view, "POST"),
            self.row_page("draft", self.draft_view, "POST"),
            self.page("<int:object_id>/queries/", QueriesView.as_view(model_admin=self), "queries"),
            self.row_page("queries/csv", self.csv_view, "GET", name="csv"),
            *super().get_urls(),
        ]

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        return cast(HttpResponse, StartView.as_view(model_admin=self)(request))

    def change_view(self, request: HttpRequest, object_id: str, *_args: Any, **_kwargs: Any) -> HttpResponse:
        return RunView.as_view(model_admin=self)(request, object_id=object_id)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        """A run never changes, so its page says all there is."""
        return HttpResponseRedirect(reverse("admin:kb_evalrun_change", args=[object_id]))

    def progress_view(self, request: HttpRequest) -> HttpResponse:
        """The cells of runs that were unfinished, for a list that polls; it asks again while one still is."""
        asked = row_ids(request.GET.get("ids", "").split(","))[: self.list_per_page]
        runs = list(self.get_queryset(request).without_documents().filter(pk__in=asked))
        cells = [
            cell
            for run in runs
            for cell in (state_cell(run, swap=True), *(figure_cell(run, name, swap=True) for name in HEADLINES))
        ]
        return render(
            request, "quality/runs/progress.html", {"cells": cells, "unfinished_ids": self.unfinished_ids(runs)}
        )

    def live_view(self, request: HttpRequest, run: EvalRun) -> HttpResponse:
        context = {"run": run, **live_context(run, ask_workers=True)}
        return polled(request, "quality/runs/live.html", context, goes_on=is_unfinished(run))

    def cancel_view(self, request: HttpRequest, run: EvalRun) -> HttpResponse:
        if is_unfinished(run):
            cancel_run(principal(request), run)
            self.message_user(request, _("The run is being cancelled; what it has measured so far stays."))
        return HttpResponseRedirect(reverse("admin:kb_evalrun_change", args=[run.pk]))

    def csv_view(self, request: HttpRequest, run: EvalRun) -> Any:
        return StreamingHttpResponse(
            csv_lines(csv_rows(asked_rows(run, request.GET))),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="evaluation-run-{run.pk}.csv"'},
        )

    def draft_view(self, request: HttpRequest, run: EvalRun) -> HttpResponse:
        """Saves the settings that a run was made with as a draft of its profile, or of one of its knowledge base."""
        with reporting(request):
            draft = save_as_draft(principal(request), run)
            self.message_user(
                request,
                _("The settings were saved as the draft %(profile)s; publish it to search by it.") % {"profile": draft},
                messages.SUCCESS,
            )
            return HttpResponseRedirect(profile_url(draft))
        return HttpResponseRedirect(reverse("admin:kb_evalrun_change", args=[run.pk]))

    # -- Writes ----------------------------------------------------------------------------------------------------------
    @admin.action(description=gettext_lazy("Compare two runs"))
    def compare(self, request: HttpRequest, queryset: QuerySet[EvalRun]) -> HttpResponse | None:
        chosen = list(queryset.order_by("created_at", "pk"))
        if len(chosen) != 2:
            message = _("Choose exactly two runs to compare.")
        elif unfinished := [str(run.pk) for run in chosen if run.status != EvalRun.Status.DONE]:
            message = _("Only finished runs can be compared: run #%(ids)s is not. Choose others, or wait for it.")
            message %= {"ids": ", #".join(unfinished)}
        else:
            return HttpResponseRedirect(compare_url(*chosen))
        self.message_user(request, message, messages.WARNING)
        return None

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("evaluation set"), ordering="eval_set__name")
    def name(self, run: EvalRun) -> str:
        text = '<span class="kb-name">{} <small>#{}</small></span><small class="er-under">{}</small>'
        return format_html(text, run.eval_set.name, run.pk, run.eval_set.knowledge_base)

    @column(gettext_lazy("profile"), ordering="profile__name")
    def searched_with(self, run: EvalRun) -> str:
        if not run.overrides:
            return str(run.profile)
        count = len(run.overrides)
        unsaved = ngettext("+ %(count)d unsaved setting", "+ %(count)d unsaved settings", count) % {"count": count}
        return format_html('{} <small class="er-unsaved">{}</small>', run.profile, unsaved)

    @column(gettext_lazy("queries"), ordering="total")
    def queries(self, run: EvalRun) -> str:
        return f"{run.total:,}" if run.total else "–"

    recall = figure_column("recall_figure", gettext_lazy("Recall@5"))
    ndcg = figure_column("ndcg_figure", gettext_lazy("NDCG@10"))
    auroc = figure_column("auroc_figure", gettext_lazy("AUROC"))

    @column(gettext_lazy("status"), ordering="status")
    def state(self, run: EvalRun) -> SafeString:
        return state_cell(run)

    @column(gettext_lazy("started"), ordering="created_at")
    def started(self, run: EvalRun) -> str:
        return format_html(
            '<span class="er-when">{}</span><small class="er-under">{}</small>',
            date_format(timezone.localtime(run.created_at), "SHORT_DATETIME_FORMAT"),
            run.created_by or "",
        )


def save_as_draft(caller: Principal, run: EvalRun) -> RetrievalProfile:
    """The profile of a run with its unsaved settings as a further version, not published.

    Where the caller may not change that profile, it becomes one of the knowledge base's own, under its name. Raises
    `Rejected` where there is a profile of that name elsewhere, `NotAllowed` where the caller may change neither, and
    `InvalidConfiguration` where this version of the program does not take the settings.
    """
    profile, kb = run.profile, run.eval_set.knowledge_base
    name, place = profile.name, profile.knowledge_base
    if not RetrievalProfile.objects.editable_by(caller).filter(pk=profile.pk).exists():
        name, place = "".join(each for each in kb.name if each not in NOT_IN_NAMES)[:MAX_NAME_CHARACTERS], kb
    message = _("From evaluation run #%(number)d of “%(name)s”.") % {"number": run.pk, "name": run.eval_set.name}
    return create_version(
        caller,
        name,
        {**profile.settings, **run.overrides},
        description=message,
        knowledge_base=place,
        begun_with=profile,
    )


RUNS_SHOWN = 6
METRICS = ("recall@5", "ndcg@10")


class ChangeForm(forms.Form):
    model = forms.CharField(label=gettext_lazy("New embedding model"), max_length=255)
    swaps = forms.BooleanField(
        label=gettext_lazy("Change searches over as soon as it is ready"),
        required=False,
        initial=True,
        widget=UnfoldBooleanSwitchWidget,
    )


class SetForm(forms.Form):
    eval_set = forms.ModelChoiceField(
        EvalSet.objects.none(), label=gettext_lazy("Evaluation set"), empty_label=None, widget=UnfoldAdminSelectWidget
    )

    def __init__(self, *args: Any, kb: KnowledgeBase, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["eval_set"]
        field.queryset = EvalSet.objects.filter(knowledge_base=kb).select_related("knowledge_base__profile")
        field.choices = [(each.pk, str(each)) for each in field.queryset]  # read once, however often the page asks
        self.has_any = bool(field.choices)


USED = gettext_lazy("Searches use “%(model)s” now.")
BEHIND = gettext_lazy("Chunks were written since: a worker embeds them first, then searches change over by themselves.")
# By action: what it does, and the message once it is done, or once a worker has to do it.
ACTIONS: dict[str, tuple[Callable[[KnowledgeBase], int | None], Promise, Promise]] = {
    "swap": (reembedding_swap, USED, BEHIND),
    "rollback": (reembedding_rollback, USED, BEHIND),
    "drop": (reembedding_drop, gettext_lazy("The former vectors are gone."), BEHIND),
    "cancel": (reembedding_cancel, gettext_lazy("The change was cancelled: the present model stays."), BEHIND),
}


class ReembeddingView(KnowledgeBasePage, TemplateView):
    template_name = "quality/reembedding/page.html"

    @property
    def title(self) -> str:
        return _("Embedding model")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        state = reembedding_state(self.kb)
        return super().get_context_data(
            **{"form": ChangeForm(), "sets": SetForm(kb=self.kb), **kwargs},
            state=state,
            models=self.models,
            can_start=any(each.usable for each in self.models),
            advised=recommended_embedding_models(self.kb.language)[0],
            radio_classes=" ".join(RADIO_CLASSES),
            labels={name: label_of(getattr(state, name)) for name in ("model", "target", "previous")},
            figures=_figures(self.request, self.kb),
        )

    @cached_property
    def models(self) -> list[Choice]:
        """Those that it may move to: without its own, and those that other knowledge bases use among them."""
        used = visible(KnowledgeBase, self.request).order_by().values_list("embedding_model", flat=True).distinct()
        return [each for each in embedding_choices(used) if each.id != self.kb.embedding_model]

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        if not self.may_edit:
            raise PermissionDenied
        asked = request.POST.get("action", "")
        with reporting(request):
            if asked == "evaluate":
                return self._evaluate()
            if asked not in ACTIONS:
                return self._start()
            act, done, begun = ACTIONS[asked]
            # A swap and a return give False where chunks were written since
            level, message = (messages.INFO, begun) if act(self.kb) is False else (messages.SUCCESS, done)
            messages.add_message(request, level, str(message) % {"model": label_of(self.kb.embedding_model)})
        return HttpResponseRedirect(reembedding_url(self.kb))

    def _start(self) -> HttpResponse:
        form = ChangeForm(self.request.POST)
        if form.is_valid():
            given = form.cleaned_data
            with reporting_in(form, "model"):
                reembedding_start(self.kb, require_embedding_model(given["model"]), swaps=given["swaps"])
                return HttpResponseRedirect(reembedding_url(self.kb))  # the page itself says how far it is
        return self.render_to_response(self.get_context_data(form=form))

    def _evaluate(self) -> HttpResponse:
        sets = SetForm(self.request.POST, kb=self.kb)
        if not sets.is_valid():
            return self.render_to_response(self.get_context_data(sets=sets))
        return HttpResponseRedirect(compare_url(*evaluate_both(principal(self.request), sets.cleaned_data["eval_set"])))


def reembedding_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_reembedding", args=[kb.pk])


def progress_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    state = reembedding_state(kb)
    context = {"kb": kb, "state": state}
    return polled(request, "quality/reembedding/progress.html", context, goes_on=state.is_unfinished)


def _figures(request: HttpRequest, kb: KnowledgeBase) -> list[dict[str, Any]]:
    runs = visible(EvalRun, request).filter(eval_set__knowledge_base=kb).exclude(embedding_model="")
    return [
        {
            "run": run,
            "cells": [
                three_decimals(run.report.get("stages", {}).get(stage, {}).get(metric))
                for stage in ("vector", run.report.get("final_stage", "reranked"))
                for metric in METRICS
            ],
        }
        for run in runs.select_related("eval_set", "profile").order_by("-pk")[:RUNS_SHOWN]
    ]


def reembedding_pages(model_admin: Any) -> list[URLPattern]:
    view = ReembeddingView.as_view(model_admin=model_admin)
    return [
        model_admin.page("<int:object_id>/embedding-model/", view, "reembedding"),
        model_admin.row_page("embedding-model/progress", progress_view, "GET", name="reembedding_progress"),
    ]


add_part(KnowledgeBase, pages=reembedding_pages)

add_tab(Section.QUALITY, gettext_lazy("Runs"), "kb_evalrun_changelist", order=30)
add_hub_tab(
    "reembedding", gettext_lazy("Embedding model"), order=30, under="settings", covers=("kb_knowledgebase_reembedding",)
)


@add_chips
def move_chip(_request: HttpRequest, kb: KnowledgeBase) -> Iterator[Chip]:
    if kb.target_embedding_model:
        text = _("moving to %(model)s") % {"model": kb.target_embedding_model}
        yield Chip(text, "warning", reembedding_url(kb))
