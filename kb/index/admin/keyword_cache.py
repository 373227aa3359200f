"""The keyword index cache: what its tiers did and hold, and a way to have an index built anew.

The page of a knowledge base's store: which one searches use, how far its copy is, and the move to another one.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.generic import TemplateView

from kb.access.models import KnowledgeBase
from kb.base.errors import ServiceError
from kb.base.metrics import SHARED_FOLDER, cache_counters
from kb.index.admin.tokenizer import tokenizer_url, tokenizers_text
from kb.index.bm25 import BM25Store
from kb.index.services.keyword_cache import (
    IndexState,
    KeywordIndex,
    database_bytes,
    indexed_knowledge_bases,
    keyword_indexes,
)
from kb.index.services.stores.checking import stores_state
from kb.index.services.stores.migration import migration_cancel, migration_start, store_rebuild
from kb.web.admin.scoped import KnowledgeBasePage, principal
from kb.web.admin.site import AdminPage
from kb.web.admin.site import page as admin_page
from retrieval.cache import PROCESS_TIER
from retrieval.errors import RetrievalError

ROWS_A_PAGE = 50
INDEX_LABELS: Mapping[str, str] = {
    IndexState.CURRENT: "success",
    IndexState.CHANGED: "success",
    IndexState.BUILDING: "info",
    IndexState.MISSING: "info",
    IndexState.OUTDATED: "info",
    IndexState.EMPTY: "warning",
}


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class TierCard:
    """One tier: what it is, its hit ratio in per cent (a dash before the first look-up), and its counts."""

    tier: str
    name: str
    what: str
    hit_ratio: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One knowledge base of the table; sizes are in words, a blank `drop_url` means that the caller may not drop it."""

    index: KeywordIndex
    kb_url: str
    tokenizer: str
    tokenizer_url: str
    state: str
    state_label: str
    base_bytes: str
    redis_bytes: str
    drop_url: str


@admin_page("keyword-cache/", name="keyword_cache")
class KeywordCacheView(AdminPage):
    template_name = "index/keyword_cache/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller = principal(self.request)
        page = Paginator(indexed_knowledge_bases(caller), ROWS_A_PAGE).get_page(self.request.GET.get("page"))
        indexes = keyword_indexes(list(page.object_list))
        in_page = [index.kb.pk for index in indexes]
        editable = frozenset(
            KnowledgeBase.objects.editable_by(caller).filter(pk__in=in_page).values_list("pk", flat=True)
        )
        named = tokenizers_text({index.kb.tokenizer_id for index in indexes})
        return super().get_context_data(
            **kwargs,
            title=_("Keyword index cache"),
            cards=tier_cards(cache_counters(), database_bytes(caller)),
            counts_all_processes=bool(os.environ.get(SHARED_FOLDER)),
            page=page,
            rows=[_row(index, named, is_editable=index.kb.pk in editable) for index in indexes],
            is_redis_down=any(index.redis_bytes is None for index in indexes),
        )


@admin_page("keyword-cache/<int:kb_id>/invalidate/", name="keyword_cache_invalidate")
class InvalidateView(AdminPage):
    """Asks on GET, drops the index on POST."""

    template_name = "index/keyword_cache/confirm.html"

    @cached_property
    def kb(self) -> KnowledgeBase:
        """The knowledge base of the URL.

        Raises:
            Http404: it does not exist for this user.
            PermissionDenied: the user may see but not change it.
        """
        rows = KnowledgeBase.objects.filter(pk=self.kwargs["kb_id"])
        caller = principal(self.request)
        kb: KnowledgeBase | None = rows.visible_to(caller).first()
        if kb is None:
            raise Http404
        if not rows.editable_by(caller).exists():
            raise PermissionDenied
        return kb

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            title=_("Drop the keyword index of “%(name)s”?") % {"name": self.kb.name},
            kb=self.kb,
        )

    def post(self, *_args: Any, **_kwargs: Any) -> HttpResponse:
        BM25Store().invalidate(self.kb.pk)
        done = _("The keyword index of “%(name)s” was dropped; the next search builds it anew.")
        messages.success(self.request, done % {"name": self.kb.name})
        return HttpResponseRedirect(reverse("admin:keyword_cache"))


def index_state_text(state: IndexState, changes: int) -> str:
    if state is IndexState.CHANGED:
        message = ngettext(
            "current: %(count)d change over the base", "current: %(count)d changes over the base", changes
        )
        return message % {"count": changes}
    return {
        IndexState.EMPTY: _("no chunks"),
        IndexState.BUILDING: _("being built now"),
        IndexState.CURRENT: _("current"),
        IndexState.MISSING: _("none yet: built at the next search"),
        IndexState.OUTDATED: _("rebuilt at the next search"),
    }[state]


def tier_cards(counters: Mapping[str, Mapping[str, int]], stored_bytes: int) -> list[TierCard]:
    """What the page shows of each tier.

    Args:
        counters: from `kb.base.metrics.cache_counters`.
        stored_bytes: of the payloads in PostgreSQL.
    """
    names = {
        PROCESS_TIER: (_("Process memory"), _("Indexes ready to be searched; each process holds its own.")),
        "redis": (_("Redis"), _("Sealed payloads that all processes share, with a time to live.")),
        "database": (_("PostgreSQL"), _("One sealed payload for each knowledge base, which outlives restarts.")),
    }
    return [
        TierCard(
            tier, *names[tier], _hit_ratio(counters.get(tier, {})), _figures(tier, counters.get(tier, {}), stored_bytes)
        )
        for tier in names
    ]


def _figures(tier: str, counts: Mapping[str, int], stored_bytes: int) -> tuple[Figure, ...]:
    labels = {"hits": _("hits"), "misses": _("misses"), "stores": _("stores"), "errors": _("errors")}
    if tier == PROCESS_TIER:
        labels |= {"builds": _("built anew"), "updates": _("changes read over a base")}
    sizes = [(_("memory") if tier == PROCESS_TIER else _("read and written"), counts.get("nbytes", 0))]
    if tier == PROCESS_TIER:
        sizes.append((_("limit of each process"), settings.BM25_MEMORY_BYTES))
    if tier == "database":
        sizes.append((_("stored for what you may see"), stored_bytes))
    return (
        *(Figure(label, f"{counts.get(field, 0):,}") for field, label in labels.items()),
        *(Figure(label, filesizeformat(size)) for label, size in sizes),
    )


def _hit_ratio(counts: Mapping[str, int]) -> str:
    hits, misses = counts.get("hits", 0), counts.get("misses", 0)
    return f"{100 * hits / (hits + misses):.0f}%" if hits + misses else "–"


def _row(index: KeywordIndex, tokenizers: Mapping[str, str], *, is_editable: bool) -> Row:
    kb = index.kb
    return Row(
        index=index,
        kb_url=reverse("admin:kb_knowledgebase_change", args=[kb.pk]),
        tokenizer=tokenizers[kb.tokenizer_id],
        tokenizer_url=tokenizer_url(kb),
        state=index_state_text(index.state, index.changes),
        state_label=INDEX_LABELS[index.state],
        base_bytes="–" if index.base_bytes is None else filesizeformat(index.base_bytes),
        redis_bytes=filesizeformat(index.redis_bytes) if index.redis_bytes else "–",
        drop_url=reverse("admin:keyword_cache_invalidate", args=[kb.pk]) if is_editable else "",
    )


class StoresView(KnowledgeBasePage, TemplateView):
    template_name = "index/stores/page.html"

    @property
    def title(self) -> str:
        return _("Store of “%(name)s”") % {"name": self.kb.name}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            opts=self.model_admin.opts,
            original=self.kb,
            kb=self.kb,
            may_edit=self.may_edit,
            state=stores_state(self.kb),
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        if not self.may_edit:
            raise PermissionDenied
        actions: dict[str, Callable[[], None]] = {"cancel": self._cancel, "rebuild": self._rebuild}
        try:
            actions.get(request.POST.get("action", ""), self._start)()
        except (ServiceError, RetrievalError) as error:
            messages.error(request, str(error))
        return HttpResponseRedirect(stores_url(self.kb))

    def _start(self) -> None:
        migration_start(self.kb, self.request.POST.get("store", ""))  # the page itself says how far it is

    def _cancel(self) -> None:
        migration_cancel(self.kb)
        messages.success(self.request, _("The move was cancelled: the present store stays."))

    def _rebuild(self) -> None:
        store_rebuild(self.kb)
        messages.success(self.request, _("A worker fills the copy anew; PostgreSQL answers until it is complete."))


def stores_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_stores", args=[kb.pk])


def stores_progress_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    """How far the move is, for a page that polls; once nothing goes on any more, the page is loaded anew."""
    state = stores_state(kb)
    response = render(request, "index/stores/progress.html", {"kb": kb, "state": state})
    if state.target is None or state.target.has_failed:
        response.headers["HX-Refresh"] = "true"
    return response
