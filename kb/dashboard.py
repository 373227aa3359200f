"""The first page: how searches go, what is there, and, where there is nothing yet, what to do first."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.db.models import Count, Exists, OuterRef, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _, ngettext

from kb.access.models import KnowledgeBase
from kb.base.models import count_of
from kb.content.admin import invitation_notice
from kb.content.models import Chunk, Document
from kb.providers.embedding_models import tokenizer
from kb.quality.statistics import (
    DAYS,
    Day,
    SearchStatistics,
    cache_hits,
    search_statistics,
    statistics_scope,
    waiting_failures,
)
from kb.search.admin.labels import degradation_heading, milliseconds, stage_label
from kb.web.admin.charts import Chart, Series, percentage
from kb.web.admin.scoped import principal
from retrieval.model_files import libraries_available

# At most, in a chart of kinds.
BARS = 7
WEEK = 7
# By so much the share of searches without a result may differ from one week to the next without a word.
NOTICEABLE = 0.02
COLOURS = {
    Document.Status.READY: "green-500",
    Document.Status.PROCESSING: "blue-500",
    Document.Status.PENDING: "blue-300",
    Document.Status.FAILED: "red-500",
}


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    caller = principal(request)
    editable = KnowledgeBase.objects.editable_by(caller).filter(pk=OuterRef("pk"))
    visible: QuerySet[Any] = KnowledgeBase.objects.visible_to(caller).only("pk", "name", "target_embedding_model")
    bases = visible.annotate(chunk_count=count_of(Chunk.objects, "knowledge_base"), is_editable=Exists(editable))
    counts = Document.objects.visible_to(caller).order_by().values_list("status").annotate(count=Count("pk"))
    by_status = dict.fromkeys(Document.Status.values, 0) | dict(counts)
    scope = statistics_scope(caller, tuple(kb.pk for kb in bases))
    statistics = search_statistics(scope)
    waiting, mine = waiting_failures(scope, caller)
    chunk_count = sum(kb.chunk_count for kb in bases)
    return context | {
        "title": _("Overview"),
        "degraded": list(_degraded()),
        "moving": [kb for kb in bases if kb.target_embedding_model],
        "invitation_notice": invitation_notice(request),
        "knowledge_base_count": len(bases),
        "may_upload": any(kb.is_editable for kb in bases),
        "document_count": sum(by_status.values()),
        "failed_count": by_status[Document.Status.FAILED],
        "unfinished_count": sum(by_status[status] for status in Document.UNFINISHED),
        "chunk_count": chunk_count,
        "waiting_count": waiting,
        "mine_count": mine,
        "is_new": not (chunk_count and statistics.searches),
        "charts": [  # the most telling first
            _searches(statistics),
            _without_result(statistics.days),
            _stages(statistics),
            _caches(),
            _documents(by_status),
            _degradations(statistics),
        ]
        if chunk_count or statistics.searches
        else [],
    }


def _searches(statistics: SearchStatistics) -> Chart:
    title, days = _("Searches a day"), statistics.days
    if not statistics.searches:
        return Chart(
            "searches",
            title,
            _("No search in %(days)d days.") % {"days": DAYS},
            link=(reverse("admin:search_debug"), _("Search debug")),
        )
    verdict = _("%(count)s in %(days)d days. Those that were answered from the cache are not counted.")
    return Chart(
        "searches",
        title,
        verdict % {"count": f"{statistics.searches:,}", "days": DAYS},
        labels=[f"{day.day:%m-%d}" for day in days],
        series=[
            Series(_("with results"), [day.searches - day.without_result for day in days], "primary-500"),
            Series(_("all below the gate"), [day.gated for day in days], "orange-400"),
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


def _stages(statistics: SearchStatistics) -> Chart:
    title = _("Time by stage: shorter is better")
    total, shown = statistics.total, statistics.stages[:BARS]
    if total is None:
        return Chart("stages", title, _("No search in %(days)d days.") % {"days": DAYS})
    verdict = ngettext(
        "The newest search took %(p50)s ms.",
        "Of the newest %(count)s searches half took %(p50)s ms or less in all, and 95 of 100 took %(p95)s ms or less.",
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
        link=(reverse("admin:search_debug"), _("Search debug")),
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


def _degradations(statistics: SearchStatistics) -> Chart:
    title = _("Degraded searches: fewer is better")
    if not statistics.searches:
        return Chart("degradations", title, _("No search in %(days)d days.") % {"days": DAYS})
    if not statistics.degradations:
        verdict = _("None in %(days)d days: every search did all that it should.")
        return Chart("degradations", title, verdict % {"days": DAYS}, "good")
    verdict = _("%(share)s of the searches of %(days)d days could not do all that they should.")
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


def _degraded() -> Iterator[str]:
    """What this server cannot do, with the remedy of each."""
    if not libraries_available():
        sentence = _(
            "Embedding models cannot run on this server, because sentence-transformers or torch is not installed."
        )
        yield f"{sentence} pip install 'zhiku[models]'"
    if tokenizer() is None:
        sentence = _("Keyword search is off, because rank-bm25 or jieba is not installed.")
        yield f"{sentence} pip install rank-bm25 jieba"
