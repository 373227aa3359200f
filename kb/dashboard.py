"""The workbench: the user's knowledge bases, what there is to do, and, where there is nothing yet, what to do first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db.models import Count, Exists, OuterRef, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.base.findings import State
from kb.content.hub import failed_documents_page
from kb.content.models import Document
from kb.operations.services.bootstrap import DEMOS
from kb.operations.services.health.health import keyword_packages, libraries
from kb.providers.embedding_models import default_embedding_model, generator
from kb.providers.endpoints import rows
from kb.quality.statistics import DAYS, AnsweredStatistics, Asked, answered_statistics, statistics_scope
from kb.search.admin.chips import by_words_chip
from kb.web.admin.charts import Chart, Series, percentage
from kb.web.admin.current import is_curator, recent_first
from kb.web.admin.parts import Chip, Task, add_tasks, tasks
from kb.web.admin.scoped import principal, row_id, signed_in
from retrieval.embedders.hashing import HASHING_MODEL_ID

CARDS: Final = 12
# Shown at once; the others are unfolded.
TASKS: Final = 6


@dataclass(frozen=True, slots=True)
class Card:
    """A knowledge base on the workbench; `asked` is of the last week."""

    kb: Any
    documents: int
    failed: int
    asked: Asked
    chips: tuple[Chip, ...]
    is_demo: bool

    @property
    def failed_url(self) -> str:
        return failed_documents_page(self.kb.pk)

    @property
    def answered(self) -> str:
        return percentage(self.asked.answered / self.asked.count) if self.asked.count else ""


@dataclass(frozen=True, slots=True)
class Step:
    """One of the first steps: done, the next one (`is_next`), or later. Without an address it cannot be taken yet."""

    text: str
    action: str
    url: str
    icon: str
    is_done: bool
    is_next: bool


def workbench(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    caller = principal(request)
    visible = KnowledgeBase.objects.visible_to(caller)
    ids = list(recent_first(request, visible).values_list("pk", flat=True))
    last_page = max(1, -(-len(ids) // CARDS))
    page = min(max(1, row_id(request.GET.get("page", "")) or 1), last_page)
    statistics = answered_statistics(statistics_scope(caller, tuple(ids)))
    cards = _cards(request, visible, ids[(page - 1) * CARDS : page * CARDS], statistics)
    may_curate = is_curator(request)
    to_do = tasks(request)
    return context | {
        "title": _("Workbench"),
        "is_title_said": True,
        "name": signed_in(request).get_short_name() or signed_in(request).get_username(),
        "cards": cards,
        "page": page,
        "pages": range(1, last_page + 1),
        "may_curate": may_curate,
        "tasks": to_do[:TASKS],
        "more_tasks": to_do[TASKS:],
        "steps": list(_steps(cards)) if may_curate and page == 1 else [],
        "chart": _answered(statistics) if may_curate and statistics.searches else None,
    }


def _cards(
    request: HttpRequest, visible: "QuerySet[KnowledgeBase]", ids: Sequence[int], statistics: AnsweredStatistics
) -> list[Card]:
    """Knowledge bases in the order of their ids; the current one of the user is read along, for the frame of the page."""
    caller, current = principal(request), signed_in(request).last_knowledge_base_id or 0
    editable = KnowledgeBase.objects.editable_by(caller).filter(pk=OuterRef("pk"))
    rows = visible.filter(pk__in=[*ids, current]).select_related("owner", "version_row", "profile")
    found = {kb.pk: kb for kb in rows.annotate(may_edit=Exists(editable))}
    request.__dict__["_current_knowledge_base"] = found.get(current)
    counts: dict[tuple[int, str], int] = {}
    for kb_id, status, count in (
        Document.objects.filter(knowledge_base__in=ids)
        .order_by()
        .values_list("knowledge_base_id", "status")
        .annotate(count=Count("pk"))
    ):
        counts[kb_id, status] = count
    return [
        Card(
            kb=found[kb_id],
            documents=sum(counts.get((kb_id, status), 0) for status in Document.Status.values),
            failed=counts.get((kb_id, Document.Status.FAILED), 0),
            asked=statistics.by_base.get(kb_id, Asked()),
            chips=tuple(_chips(found[kb_id])),
            is_demo=_is_demo(found[kb_id]),
        )
        for kb_id in ids
        if kb_id in found
    ]


def _chips(kb: Any) -> Iterator[Chip]:
    """What a row of it says, without another query: the head of its pages says more."""
    yield Chip(kb.get_language_display())
    if kb.target_embedding_model:
        url = reverse("admin:kb_knowledgebase_reembedding", args=[kb.pk]) if kb.may_edit else ""
        yield Chip(_("Changing its model"), "warning", url)
    elif kb.may_edit:
        yield from by_words_chip(kb)


def _is_demo(kb: KnowledgeBase) -> bool:
    """Whether it is one that the first start has made; one that was given another name or description is none any more."""
    return any(kb.name == demo["name"] and kb.description == demo["description"] for demo in DEMOS.values())


def _steps(cards: Sequence[Card]) -> Iterator[Step]:
    """What somebody does first; nothing once a knowledge base of one's own has documents and was searched, or is old."""
    own = [card for card in cards if not card.is_demo]
    filled = [card for card in own if card.documents]
    searched = any(card.asked.count for card in own)
    if filled and (searched or min(card.kb.created_at for card in filled) < timezone.now() - timedelta(days=DAYS)):
        return
    kb_id = (filled or own)[0].kb.pk if own else None
    by_kb = f"?kb={kb_id}" if kb_id else ""
    planned = [
        (_("Create a knowledge base for documents of one topic."), _("New knowledge base"), "kb_knowledgebase_add", "", "add"),
        (_("Upload files, or paste a text."), _("Upload"), "kb_document_upload", by_kb, "upload"),
        (_("Search it, and see why each result stands where it does."), _("Retrieval test"), "search_debug", by_kb, "troubleshoot"),
        (_("Ask, and get an answer with its sources."), _("Ask"), "ask", by_kb, "forum"),
    ]  # fmt: skip
    done = [bool(own), bool(filled), searched, False]
    for place, (text, action, name, query, icon) in enumerate(planned):
        is_open = all(done[:place]) or (place == len(planned) - 1 and bool(filled))
        url = reverse(f"admin:{name}") + query if is_open else ""
        yield Step(text, action, url, icon, is_done=done[place], is_next=place == done.index(False))


def _answered(statistics: AnsweredStatistics) -> Chart:
    shares = [1 - day.without_result / day.searches if day.searches else None for day in statistics.days]
    answered = statistics.searches - sum(day.without_result for day in statistics.days)
    verdict = _("%(share)s of %(count)s questions in %(days)d days found something.")
    figures = {"share": percentage(answered / statistics.searches), "count": f"{statistics.searches:,}", "days": DAYS}
    return Chart(
        "answered",
        _("Questions with an answer"),
        verdict % figures,
        labels=[f"{day.day:%m-%d}" for day in statistics.days],
        series=[Series(_("share of the day’s questions"), shares, "primary-500")],
        is_line=True,
        is_share=True,
        link=(reverse("admin:quality_overview"), _("More figures")),
    )


@add_tasks
def _set_up(request: HttpRequest) -> Iterator[Task]:
    """What a superuser has to set up before all of the product works."""
    if not request.user.is_superuser:
        return
    if any(look().state is not State.OK for look in (libraries, keyword_packages)):
        text = _("A library is missing on this server.")
        yield Task(text, reverse("admin:system_status"), _("See which"), order=10, is_urgent=True)
    if default_embedding_model() == HASHING_MODEL_ID:
        text = _("There is no embedding model yet: searches compare words, not meanings.")
        yield Task(text, reverse("admin:kb_providermodel_changelist"), _("Set it up"), order=60)
    if locked := [each.name for each in rows().endpoints if not each.is_readable]:
        text = _("The key of a model cannot be read: enter it again (%(names)s).") % {"names": ", ".join(locked)}
        yield Task(text, reverse("admin:kb_providermodel_changelist"), _("Set it up"), order=11, is_urgent=True)
    if generator() is None:
        text = _("There is no chat model yet: answers are passages.")
        yield Task(text, reverse("admin:kb_providermodel_changelist"), _("Set it up"), order=61)
