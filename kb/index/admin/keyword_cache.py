"""Where the indexes of knowledge bases are: the tiers of the keyword cache, and the store that searches use."""

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _, ngettext
from django.views.generic import TemplateView

from kb.access.models import KnowledgeBase
from kb.base.errors import ServiceError
from kb.base.metrics import SHARED_FOLDER, cache_counters
from kb.index.admin.tokenizer import tokenizers_text
from kb.index.bm25 import BM25Store
from kb.index.models import StoreState
from kb.index.services.reindex import IndexState, add_index_state, database_bytes, indexed_knowledge_bases
from kb.index.services.stores.migration import migration_cancel, migration_start, store_rebuild, stores_state
from kb.web.admin.scoped import KnowledgeBasePage, principal
from kb.web.admin.site import AdminPage, admin_page
from retrieval.cache import PROCESS_TIER
from retrieval.errors import RetrievalError

INDEX_LABELS: Mapping[str, str] = {
    IndexState.CURRENT: "success",
    IndexState.CHANGED: "success",
    IndexState.BUILDING: "info",
    IndexState.MISSING: "info",
    IndexState.OUTDATED: "info",
    IndexState.EMPTY: "warning",
}


@admin_page("keyword-cache/", name="keyword_cache")
class KeywordCacheView(AdminPage):
    template_name = "index/keyword_cache/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller = principal(self.request)
        page = Paginator(indexed_knowledge_bases(caller), 50).get_page(self.request.GET.get("page"))
        bases: list[Any] = list(page.object_list)
        add_index_state(bases)
        editable = KnowledgeBase.objects.editable_by(caller).in_bulk([kb.pk for kb in bases])
        named = tokenizers_text({kb.tokenizer_id for kb in bases})
        rows = [
            {
                "kb": kb,
                "tokenizer": named[kb.tokenizer_id],
                "state": index_state_text(kb.index_state, kb.changes),
                "label": INDEX_LABELS[kb.index_state],
                "may_drop": kb.pk in editable,
            }
            for kb in bases
        ]
        return super().get_context_data(
            **kwargs,
            title=_("Keyword index cache"),
            cards=_tier_cards(database_bytes(caller)),
            counts_all_processes=bool(os.environ.get(SHARED_FOLDER)),
            page=page,
            rows=rows,
            is_redis_down=any(kb.redis_bytes is None for kb in bases),
        )


@admin_page("keyword-cache/<int:kb_id>/invalidate/", name="keyword_cache_invalidate")
class InvalidateView(AdminPage):
    template_name = "index/keyword_cache/confirm.html"

    @cached_property
    def kb(self) -> KnowledgeBase:
        caller = principal(self.request)
        kb: KnowledgeBase = get_object_or_404(KnowledgeBase.objects.visible_to(caller), pk=self.kwargs["kb_id"])
        if not KnowledgeBase.objects.editable_by(caller).filter(pk=kb.pk).exists():
            raise PermissionDenied
        return kb

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs, title=_("Drop the keyword index of “%(name)s”?") % {"name": self.kb.name}, kb=self.kb
        )

    def post(self, *_args: Any, **_kwargs: Any) -> HttpResponse:
        BM25Store().invalidate(self.kb.pk)
        messages.success(
            self.request,
            _("The keyword index of “%(name)s” was dropped; the next search builds it again.") % {"name": self.kb.name},
        )
        return redirect("admin:keyword_cache")


def index_state_text(state: IndexState, changes: int) -> str:
    changed = ngettext("current: %(count)d change over the base", "current: %(count)d changes over the base", changes)
    return {
        IndexState.EMPTY: _("no chunks"),
        IndexState.BUILDING: _("being built now"),
        IndexState.CURRENT: _("current"),
        IndexState.CHANGED: changed % {"count": changes},
        IndexState.MISSING: _("none yet: built at the next search"),
        IndexState.OUTDATED: _("rebuilt at the next search"),
    }[state]


def _tier_cards(stored_bytes: int) -> list[dict[str, Any]]:
    """What the page shows of each tier: its hit ratio in per cent (a dash before the first look-up), and its counts."""
    counters = cache_counters()
    labels = {"hits": _("hits"), "misses": _("misses"), "stores": _("stores"), "errors": _("errors")}
    cards: list[dict[str, Any]] = [
        {
            "tier": PROCESS_TIER,
            "name": _("Process memory"),
            "what": _("Indexes ready to be searched; each process holds its own."),
            "counts": labels | {"builds": _("built again"), "updates": _("changes read over a base")},
            "bytes": _("memory"),
            "sizes": {_("limit of each process"): settings.BM25_MEMORY_BYTES},
        },
        {
            "tier": "redis",
            "name": _("Redis"),
            "what": _("Sealed payloads that all processes share, with a time to live."),
            "counts": labels,
            "bytes": _("read and written"),
            "sizes": {},
        },
        {
            "tier": "database",
            "name": _("PostgreSQL"),
            "what": _("One signed payload for each knowledge base, which outlives restarts."),
            "counts": labels,
            "bytes": _("read and written"),
            "sizes": {_("stored for what you may see"): stored_bytes},
        },
    ]
    for card in cards:
        counted = Counter(counters.get(card["tier"], {}))
        sizes = {card["bytes"]: counted["nbytes"], **card["sizes"]}
        card["figures"] = {label: f"{counted[field]:,}" for field, label in card["counts"].items()}
        card["figures"] |= {label: filesizeformat(size) for label, size in sizes.items()}
        looked_up = counted["hits"] + counted["misses"]
        card["hit_ratio"] = f"{100 * counted['hits'] / looked_up:.0f}%" if looked_up else "–"
    return cards


class StoresView(KnowledgeBasePage, TemplateView):
    template_name = "index/stores/page.html"

    @property
    def title(self) -> str:
        return _("Store of “%(name)s”") % {"name": self.kb.name}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, state=stores_state(self.kb))

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        if not self.may_edit:
            raise PermissionDenied
        try:
            match request.POST.get("action"):
                case "cancel":
                    migration_cancel(self.kb)
                    messages.success(request, _("The move was cancelled: the present store stays."))
                case "rebuild":
                    store_rebuild(self.kb)
                    messages.success(
                        request, _("A worker fills the copy again; PostgreSQL answers until it is complete.")
                    )
                case _:
                    migration_start(self.kb, request.POST.get("store", ""))  # the page itself says how far it is
        except (ServiceError, RetrievalError) as error:
            messages.error(request, str(error))
        return HttpResponseRedirect(stores_url(self.kb))


def stores_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_stores", args=[kb.pk])


def stores_progress_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    """How far the move is, for a page that polls; once nothing goes on any more, the page is reloaded."""
    state = stores_state(kb)
    response = render(request, "index/stores/progress.html", {"kb": kb, "state": state})
    if state["target"] is None or state["target"].status == StoreState.Status.FAILED:
        response.headers["HX-Refresh"] = "true"
    return response
