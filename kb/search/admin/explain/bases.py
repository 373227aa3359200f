"""Where an explained search has searched: each knowledge base, its settings, and how each channel fared in it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.access.models import KnowledgeBase
from kb.index.admin.tokenizer import tokenizer_url
from kb.profiles.admin.choices import profile_url
from kb.search.admin.labels import CHANNELS, STAND_INS, degradation_heading, fusion_text, milliseconds, stage_label
from kb.search.services.search import SearchOutcome
from retrieval.fusion import channel_weights
from retrieval.scope import Fallback, Scope
from retrieval.trace import Span
from retrieval.types import Analysis

LEAST_WAIT_SHOWN_MS = 1


def channels_asked(spans: Iterable[Span]) -> tuple[str, ...]:
    """The channels of a search in the order of the page: the standing ones, and the others that were asked."""
    spans = list(spans)
    asked = {span.stage for span in spans}
    named = dict.fromkeys(span.detail["channel"] for span in spans if "channel" in span.detail)
    usual = [each for each in (*CHANNELS, *STAND_INS) if each in asked or each in ("vector", "bm25")]
    # Sources elsewhere share a stage, and each has a ranking of its own.
    return (*(each for each in usual if each not in ("web", "external")), *named)


def searched_bases(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> list[dict[str, Any]]:
    """The knowledge bases in the order of the search, the settings each was searched under, and what its channels found.

    Args:
        outcome: of the search.
        bases: by id, with their profile and `has_chunks`.
    """
    named = outcome.wiring.profile if outcome.request.profile else None
    stages = channels_asked(outcome.result.spans)
    shown = []
    for scope in outcome.wiring.pipeline.scopes:
        kb = bases[scope.kb_id]
        spans = [span for span in outcome.result.spans if span.detail.get("kb_id") == kb.pk]
        keyword: Mapping[str, Any] = next((span.detail for span in spans if span.stage == "bm25"), {})
        tier = str(keyword.get("cache_tier", ""))
        shown.append(
            {
                "kb_id": kb.pk,
                "name": kb.name,
                "url": reverse("admin:kb_knowledgebase_change", args=[kb.pk]),
                "profile": str(named or kb.profile),
                "profile_url": profile_url(named or kb.profile),
                "model": scope.space,
                "fusion": fusion_text(scope.config),
                "channels": [_channel_run(stage, scope, spans, outcome.result.analysis) for stage in stages],
                "tier": tier,
                "tier_text": tier_text(tier),
                "index_notes": list(index_notes(keyword)),
                "tokenizer_url": tokenizer_url(kb) if "target_tokenizer" in keyword else "",
            }
        )
    return shown


def _channel_run(stage: str, scope: Scope, spans: Sequence[Span], analysis: Analysis) -> dict[str, Any]:
    """The searches of one channel, of the query and then of the sub-queries; none where it was not asked."""
    own = [span for span in spans if span.detail.get("channel", span.stage) == stage]
    notes = [*_why_fallback(stage, scope, spans)] if own else []
    details: Mapping[str, Any] = own[0].detail if own else {}
    if "keyword_share" in details:
        message = _("content and keyword vectors %(content)s / %(keywords)s")
        share = details["keyword_share"]
        notes.append(message % {"content": f"{1 - share:g}", "keywords": f"{share:g}"})
    searches = [
        {
            "query": analysis.queries[span.detail["query"]].text if span.detail.get("query") else "",
            "found": span.detail.get("found"),
            "milliseconds": milliseconds(span.milliseconds),
            "source": vector_source_text(str(span.detail.get("query_vector", ""))),
            "error": str(span.detail.get("error", "")),
            "error_text": degradation_heading(str(span.detail["error"])) if span.detail.get("error") else "",
        }
        for span in own
    ]
    weight = details.get("weight", channel_weights(scope.config).get(stage, 0))
    return {"stage": stage, "searches": searches, "weight": f"{weight:g}", "notes": notes}


def _why_fallback(stage: str, scope: Scope, spans: Sequence[Span]) -> Iterable[str]:
    """Why a stand-in was searched: a channel failed, or too little was found."""
    fallback: Fallback | None = next((each for each in scope.fallbacks if each.channel.name == stage), None)
    if fallback is None:
        return
    failed = [span.stage for span in spans if span.stage in fallback.failed and "error" in span.detail]
    for each in dict.fromkeys(failed):
        yield _("stood in: “%(channel)s” did not answer") % {"channel": stage_label(each)}
    if not failed:
        yield ngettext(
            "stood in: keywords found fewer than %(count)d chunk",
            "stood in: keywords found fewer than %(count)d chunks",
            fallback.below,
        ) % {"count": fallback.below}


def vector_source_text(source: str) -> str:
    return {
        "memory": _("query vector from this process’s memory"),
        "shared": _("query vector from Redis"),
        "model": _("query vector from the model"),
    }.get(source, source)


def index_notes(keyword: Mapping[str, Any]) -> Iterator[str]:
    """How large the keyword index was, and what it took to have it, from the detail of the channel's span."""
    if (indexed := keyword.get("indexed_chunks")) is not None:
        yield ngettext("%(count)d chunk indexed", "%(count)d chunks indexed", indexed) % {"count": indexed}
    if (allowed := keyword.get("allowed_chunks")) is not None:
        yield ngettext("the filters leave %(count)d chunk", "the filters leave %(count)d chunks", allowed) % {
            "count": allowed
        }
    if changed := keyword.get("changed_chunks"):
        yield ngettext(
            "%(count)d changed chunk read over the base", "%(count)d changed chunks read over the base", changed
        ) % {"count": changed}
    if keyword.get("waited_ms", 0) >= LEAST_WAIT_SHOWN_MS:
        yield _("waited %(ms)s ms for it") % {"ms": milliseconds(keyword["waited_ms"])}


def tier_text(tier: str) -> str:
    return {
        "process": _("from the memory of this process"),
        "redis": _("from Redis"),
        "database": _("from the database"),
        "build": _("built now from the stored postings"),
    }.get(tier, tier or _("no index was used"))


def response_cache_text(tier: str | None) -> str:
    """Whether an app that asks the same is answered by a search; the debug page itself always searches."""
    if not settings.CACHE_ENABLED:
        return _("Switched off (CACHE_ENABLED): whoever asks the same has a search of their own.")
    return {
        "memory": _("An app that asks the same now is answered from this process’s memory, without a search."),
        "shared": _("An app that asks the same now is answered from Redis, without a search."),
    }.get(tier or "", _("No response is kept: an app that asks the same now has a search of its own."))
