"""The performance of the system: how long searches take, what caches hold, and how documents stand."""

from typing import Any

from django.db.models import Count
from django.urls import reverse
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from kb.content.models import Document
from kb.operations.admin.status import SystemPage
from kb.quality.statistics import DAYS, SearchStatistics, cache_hits, search_statistics, statistics_scope
from kb.search.admin.labels import milliseconds, stage_label
from kb.web.admin.charts import Chart, Series
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import principal
from kb.web.admin.site import admin_page

# At most, in a chart of kinds.
BARS = 7
COLOURS = {
    Document.Status.READY: "green-500",
    Document.Status.PROCESSING: "blue-500",
    Document.Status.PENDING: "blue-300",
    Document.Status.FAILED: "red-500",
}


@admin_page("system/", name="system_overview")
class SystemOverview(SystemPage):
    template_name = "dashboard/charts.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller = principal(self.request)
        counts = Document.objects.visible_to(caller).order_by().values_list("status").annotate(count=Count("pk"))
        statistics = search_statistics(statistics_scope(caller, ()))
        charts = [
            _stages(statistics),
            _caches(),
            _documents(dict.fromkeys(Document.Status.values, 0) | dict(counts)),
        ]
        return super().get_context_data(**kwargs, title=_("Performance"), charts=charts)


def _stages(statistics: SearchStatistics) -> Chart:
    title = _("Time by stage: shorter is better")
    total, shown = statistics.total, statistics.stages[:BARS]
    if total is None:
        return Chart("stages", title, _("No search in %(days)d days.") % {"days": DAYS})
    verdict = ngettext(
        "The newest search took %(p50)s ms.",
        "The newest %(count)s searches: P50 %(p50)s ms, P95 %(p95)s ms.",
        statistics.sampled,
    )
    figures = {"count": f"{statistics.sampled:,}", "p50": milliseconds(total.p50), "p95": milliseconds(total.p95)}
    return Chart(
        "stages",
        title,
        verdict % figures,
        labels=[stage_label(each.stage) for each in shown],
        series=[
            Series(_("p50"), [round(each.p50, 2) for each in shown], "primary-500"),
            Series(_("p95"), [round(each.p95, 2) for each in shown], "orange-400"),
        ],
        is_horizontal=True,
        unit="millisecond",
        link=(reverse("admin:search_debug"), _("Retrieval test")),
    )


def _caches() -> Chart:
    title, tiers = _("Cache hits by tier: more is better"), cache_hits()
    link = (reverse("admin:keyword_cache"), _("Keyword index cache"))
    if not tiers:
        return Chart("caches", title, _("No cache has been asked since the server started."), link=link)
    caches = {"bm25": _("Keyword index"), "hot_queries": _("Responses"), "query_vectors": _("Query vectors")}
    names = {
        "process": _("process"),
        "memory": _("process"),
        "redis": _("Redis"),
        "shared": _("Redis"),
        "database": _("PostgreSQL"),
    }
    return Chart(
        "caches",
        title,
        _(
            "Share of look-ups that were hits, of all users since the server started. A tier is asked where the one before it missed."
        ),
        labels=[f"{caches[each.cache]} · {names.get(each.tier, each.tier)}" for each in tiers],
        series=[Series(_("hits"), [round(each.ratio, 3) for each in tiers], "green-500")],
        is_horizontal=True,
        is_share=True,
        link=link,
    )


def _documents(by_status: dict[str, int]) -> Chart:
    title, count = _("Documents by status: all ready is good"), sum(by_status.values())
    failed = by_status[Document.Status.FAILED]
    unfinished = sum(by_status[status] for status in Document.UNFINISHED)
    documents_url = reverse("admin:kb_document_changelist")
    link, tone = (documents_url, _("Documents")), ""
    if not count:
        verdict = _("There are no documents yet.")
    elif failed:
        message = ngettext(
            "%(count)s document failed: open it, and retry.",
            "%(count)s documents failed: open them, and retry.",
            failed,
        )
        verdict, tone = message % {"count": f"{failed:,}"}, "bad"
        link = (f"{documents_url}?status__exact={Document.Status.FAILED}", _("Failed documents"))
    elif unfinished:
        message = ngettext(
            "%(count)s document is being processed.", "%(count)s documents are being processed.", unfinished
        )
        verdict = message % {"count": f"{unfinished:,}"}
    else:
        verdict, tone = _("All are ready: %(count)s.") % {"count": f"{count:,}"}, "good"
    return Chart(
        "documents",
        title,
        verdict,
        tone,
        labels=[_("Documents")] if count else [],
        series=[Series(str(status.label), [by_status[status]], colour) for status, colour in COLOURS.items() if count],
        is_horizontal=True,
        is_stacked=True,
        link=link,
    )


add_tab(Section.SYSTEM, gettext_lazy("Performance"), "system_overview", order=60)
