"""The overview of Quality: how searches went lately."""

from collections.abc import Sequence
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase
from kb.quality.statistics import DAYS, WEEK, Day, SearchStatistics, search_statistics, statistics_scope
from kb.search.admin.labels import degradation_heading
from kb.web.admin.charts import Chart, Series, percentage
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import principal
from kb.web.admin.site import AdminPage, admin_page

# At most, in a chart of kinds.
BARS = 7
# By so much the share of searches without a result may differ from one week to the next without a word.
NOTICEABLE = 0.02


@admin_page("quality/", name="quality_overview")
class QualityOverview(AdminPage):
    template_name = "dashboard/charts.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller = principal(self.request)
        visible = KnowledgeBase.objects.visible_to(caller).values_list("pk", flat=True)
        statistics = search_statistics(statistics_scope(caller, tuple(visible)))
        charts = [_searches(statistics), _without_result(statistics.days), _degradations(statistics)]
        return super().get_context_data(**kwargs, title=_("Overview"), charts=charts)


def _searches(statistics: SearchStatistics) -> Chart:
    title, days = _("Searches per day"), statistics.days
    if not statistics.searches:
        return Chart(
            "searches",
            title,
            _("No search in %(days)d days.") % {"days": DAYS},
            link=(reverse("admin:search_debug"), _("Retrieval test")),
        )
    verdict = _("%(count)s in %(days)d days. Those that were answered from the cache are not counted.")
    return Chart(
        "searches",
        title,
        verdict % {"count": f"{statistics.searches:,}", "days": DAYS},
        labels=[f"{day.day:%m-%d}" for day in days],
        series=[
            Series(_("with results"), [day.searches - day.without_result for day in days], "primary-500"),
            Series(_("all below the threshold"), [day.gated for day in days], "orange-400"),
            Series(_("nothing found"), [day.nothing for day in days], "red-500"),
        ],
        is_stacked=True,
        link=(reverse("admin:kb_searchlog_changelist"), _("Search log")),
    )


def _without_result(days: Sequence[Day]) -> Chart:
    title = _("Searches without a result: fewer is better")
    before, now = _share(days[:WEEK]), _share(days[WEEK:])
    if not any(day.searches for day in days):
        return Chart("without-result", title, _("No search in %(days)d days.") % {"days": DAYS})
    verdict, tone = _compared(before, now)
    return Chart(
        "without-result",
        title,
        verdict,
        tone,
        labels=[f"{day.day:%m-%d}" for day in days],
        series=[Series(_("share of the day’s searches"), [_share([day]) for day in days], "red-500")],
        is_line=True,
        is_share=True,
        link=(reverse("admin:kb_failedquery_changelist"), _("Failed queries")),
    )


def _share(days: Sequence[Day]) -> float | None:
    """Of searches without a result; None where there were none."""
    searches = sum(day.searches for day in days)
    return sum(day.without_result for day in days) / searches if searches else None


def _compared(before: float | None, now: float | None) -> tuple[str, str]:
    if now is None:
        return _("No search in the last 7 days."), ""
    if before is None:
        return _("%(now)s in the last 7 days.") % {"now": percentage(now)}, ""
    verdict, tone = _("Steady: %(now)s in the last 7 days, %(before)s in the 7 before."), ""
    if now > before + NOTICEABLE:
        verdict = _("Rising: %(now)s in the last 7 days, %(before)s in the 7 before. See the failed queries.")
        tone = "bad"
    if now < before - NOTICEABLE:
        verdict, tone = _("Falling: %(now)s in the last 7 days, %(before)s in the 7 before."), "good"
    return verdict % {"now": percentage(now), "before": percentage(before)}, tone


def _degradations(statistics: SearchStatistics) -> Chart:
    title = _("Degraded searches: fewer is better")
    if not statistics.searches:
        return Chart("degradations", title, _("No search in %(days)d days.") % {"days": DAYS})
    if not statistics.degradations:
        verdict = _("No search in %(days)d days ran degraded.")
        return Chart("degradations", title, verdict % {"days": DAYS}, "good")
    verdict = _("%(share)s of the searches in %(days)d days ran degraded.")
    shown = list(statistics.degradations.items())[:BARS]
    return Chart(
        "degradations",
        title,
        verdict % {"share": percentage(statistics.degraded / statistics.searches), "days": DAYS},
        "bad",
        labels=[degradation_heading(code) for code, _count in shown],
        series=[Series(_("searches"), [count for _code, count in shown], "orange-400")],
        is_horizontal=True,
        link=(f"{reverse('admin:kb_searchlog_changelist')}?degraded=yes", _("Degraded searches")),
    )


add_tab(Section.QUALITY, gettext_lazy("Overview"), "quality_overview", order=60)
