"""Evaluation runs: their list, the page that starts one, one run's page, and what it measured of each query."""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_GET, require_POST
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.views import ChangeList

from kb.base.errors import ServiceError
from kb.profiles.admin.choices import profile_url
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.admin.pages import (
    HEADLINES,
    QueriesView,
    RunView,
    StartView,
    compare_url,
    headline,
    is_unfinished,
    live_context,
    save_as_draft,
    state_cell,
    unfinished_ids,
    with_headlines,
)
from kb.quality.runs.admin.queries import asked_rows
from kb.quality.runs.admin.report import csv_lines, three_decimals
from kb.quality.runs.services.runs import cancel_run
from kb.web.admin.scoped import ScopedModelAdmin, ScopedRelatedFilter, column, principal, row_ids, visible
from retrieval.errors import InvalidConfiguration


class SetFilter(ScopedRelatedFilter):
    """Sets with their knowledge bases, since several may have a set of one name."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:  # noqa: ARG002
        return [
            (row.pk, f"{row.name} · {row.knowledge_base.name}")
            for row in visible(EvalSet, request).select_related("knowledge_base")
        ]


class RunChangeList(ChangeList):  # type: ignore[misc]
    """Reads of the reports, which are long, only the figures that it shows."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[EvalRun]:
        return cast("QuerySet[EvalRun]", super().get_queryset(*args, **kwargs).defer("report", "configuration"))

    @property
    def unfinished_ids(self) -> str:
        return unfinished_ids(self.result_list)


@admin.register(EvalRun)
class EvalRunAdmin(ScopedModelAdmin):
    list_display = (
        "name",
        "searched_with",
        "queries",
        "recall",
        "ndcg",
        "auroc",
        "state",
        "started",
    )
    list_filter = (
        ("eval_set", SetFilter),
        ("profile", ScopedRelatedFilter),
        ("status", ChoicesDropdownFilter),
    )
    list_filter_submit = True
    show_full_result_count = False
    list_before_template = "quality/runs/list_styles.html"
    list_after_template = "quality/runs/poll.html"
    actions: ClassVar[Sequence[str]] = ("compare", "delete_selected")
    ordering = ("-created_at", "-pk")

    def get_queryset(self, request: HttpRequest) -> QuerySet[EvalRun]:
        return with_headlines(
            super()
            .get_queryset(request)
            .select_related("eval_set__knowledge_base__version_row", "profile", "created_by")
        )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:  # noqa: ARG002
        return RunChangeList

    # -- Pages -----------------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("progress/", require_GET(self.progress_view), "progress"),
            self.page("<int:object_id>/live/", require_GET(self.live_view), "live"),
            self.page("<int:object_id>/cancel/", require_POST(self.cancel_view), "cancel"),
            self.page("<int:object_id>/draft/", require_POST(self.draft_view), "draft"),
            self.page("<int:object_id>/queries/", QueriesView.as_view(model_admin=self), "queries"),
            self.page("<int:object_id>/queries/csv/", require_GET(self.csv_view), "csv"),
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
        runs = list(self.get_queryset(request).defer("report", "configuration").filter(pk__in=asked))
        cells = [
            cell
            for run in runs
            for cell in (state_cell(run, swap=True), *(figure_cell(run, name, swap=True) for name in HEADLINES))
        ]
        return render(request, "quality/runs/progress.html", {"cells": cells, "unfinished_ids": unfinished_ids(runs)})

    def live_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """How far a run is, for a page that polls; once the run has ended, the page is loaded again."""
        run = self.get_object_or_404(request, str(object_id))
        html = render_to_string("quality/runs/live.html", {"run": run, **live_context(run, ask_workers=True)}, request)
        return HttpResponse(html, headers=None if is_unfinished(run) else {"HX-Refresh": "true"})

    def cancel_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        run = self.get_object_or_404(request, str(object_id), to_change=True)
        if is_unfinished(run):
            cancel_run(principal(request), run)
            self.message_user(request, _("The run is being cancelled; what it has measured so far stays."))
        return HttpResponseRedirect(reverse("admin:kb_evalrun_change", args=[run.pk]))

    def csv_view(self, request: HttpRequest, object_id: int) -> StreamingHttpResponse:
        run = self.get_object_or_404(request, str(object_id))
        return StreamingHttpResponse(
            csv_lines(asked_rows(run, request.GET)),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="evaluation-run-{run.pk}.csv"'},
        )

    def draft_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """Saves the settings that a run was made with as a draft of its profile, or of one of its knowledge base."""
        run = self.get_object_or_404(request, str(object_id), to_change=True)
        try:
            draft = save_as_draft(principal(request), run)
        except (ServiceError, InvalidConfiguration) as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(reverse("admin:kb_evalrun_change", args=[run.pk]))
        self.message_user(
            request,
            _("The settings were saved as the draft %(profile)s; publish it to search by it.") % {"profile": draft},
            messages.SUCCESS,
        )
        return HttpResponseRedirect(profile_url(draft))

    # -- Writes ----------------------------------------------------------------------------------------------------------
    @admin.action(description=gettext_lazy("Compare two runs"))
    def compare(self, request: HttpRequest, queryset: QuerySet[EvalRun]) -> HttpResponse | None:
        chosen = list(queryset.order_by("created_at", "pk"))
        if len(chosen) != 2:
            self.message_user(request, _("Choose exactly two runs to compare."), messages.WARNING)
            return None
        if unfinished := [str(run.pk) for run in chosen if run.status != EvalRun.Status.DONE]:
            self.message_user(
                request,
                _("Only finished runs can be compared: run #%(ids)s is not. Choose others, or wait for it.")
                % {"ids": ", #".join(unfinished)},
                messages.WARNING,
            )
            return None
        return HttpResponseRedirect(compare_url(*chosen))

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

    @column(gettext_lazy("Recall@5"), ordering="recall_figure")
    def recall(self, run: EvalRun) -> SafeString:
        return figure_cell(run, "recall_figure")

    @column(gettext_lazy("NDCG@10"), ordering="ndcg_figure")
    def ndcg(self, run: EvalRun) -> SafeString:
        return figure_cell(run, "ndcg_figure")

    @column(gettext_lazy("AUROC"), ordering="auroc_figure")
    def auroc(self, run: EvalRun) -> SafeString:
        return figure_cell(run, "auroc_figure")

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


def figure_cell(run: EvalRun, name: str, *, swap: bool = False) -> SafeString:
    oob = SafeString(' hx-swap-oob="true"') if swap else ""
    return format_html(
        '<span id="run-{}-{}" class="er-figure"{}>{}</span>', run.pk, name, oob, three_decimals(headline(run, name))
    )
