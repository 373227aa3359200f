"""Where an explained search has searched: each knowledge base, its settings, and how each channel fared in it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.access.models import KnowledgeBase
from kb.index.admin.tokenizer import tokenizer_url
from kb.profiles.admin.choices import profile_url
from kb.profiles.models import RetrievalProfile
from kb.search.admin.labels import CHANNELS, STAND_INS, degradation_heading, fusion_text, milliseconds, stage_label
from kb.search.services.search import SearchOutcome
from retrieval.fusion import channel_weights
from retrieval.scope import Fallback, Scope
from retrieval.trace import Span
from retrieval.types import Analysis

LONG_ENOUGH_TO_TELL_MS = 1


@dataclass(frozen=True, slots=True)
class ChannelSearch:
    """One search of a channel.

    Attributes:
        query: the sub-query that was searched for; blank for the query itself.
        found: candidates; None when it did not answer.
        source: where the query's vector came from; blank where the channel needs none.
        error: code of the degradation that kept it from answering.
        error_text: the same as text.
    """

    query: str
    found: int | None
    milliseconds: str
    source: str
    error: str
    error_text: str


@dataclass(frozen=True, slots=True)
class ChannelRun:
    """How one channel fared in one knowledge base.

    Attributes:
        searches: of the query, then of the sub-queries; none where the channel was not asked.
        notes: what else the trace tells of it, above all why a stand-in was asked.
    """

    stage: str
    searches: tuple[ChannelSearch, ...]
    weight: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchedBase:
    """One knowledge base of the search: the settings it was searched under, and what its channels found.

    Attributes:
        channels: one for each channel that was asked in any of the knowledge bases.
        index_notes: how the keyword index came to be as it was searched.
        tokenizer_url: of the page that shows how far the tokenising is; blank where none goes on.
    """

    kb_id: int
    name: str
    url: str
    profile: str
    profile_url: str
    model: str
    fusion: str
    channels: tuple[ChannelRun, ...]
    tier: str
    tier_text: str
    index_notes: tuple[str, ...]
    tokenizer_url: str
    is_empty: bool
    upload_url: str


def channels_asked(spans: Iterable[Span]) -> tuple[str, ...]:
    """The channels of a search in the order of the page: the standing ones, and the others that were asked."""
    spans = list(spans)
    asked = {span.stage for span in spans}
    named = dict.fromkeys(span.detail["channel"] for span in spans if "channel" in span.detail)
    usual = [each for each in (*CHANNELS, *STAND_INS) if each in asked or each in ("vector", "bm25")]
    # Sources elsewhere share a stage, and each has a ranking of its own.
    return (*(each for each in usual if each not in ("web", "external")), *named)


def searched_bases(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> tuple[SearchedBase, ...]:
    """The knowledge bases in the order of the search; `bases` carry `has_chunks` and their profile."""
    named = outcome.wiring.profile if outcome.request.profile else None
    stages = channels_asked(outcome.result.spans)
    return tuple(
        _searched_base(scope, bases[scope.kb_id], named, stages, outcome) for scope in outcome.wiring.pipeline.scopes
    )


def _searched_base(
    scope: Scope,
    kb: KnowledgeBase,
    profile: RetrievalProfile | None,
    stages: Sequence[str],
    outcome: SearchOutcome,
) -> SearchedBase:
    spans = [span for span in outcome.result.spans if span.detail.get("kb_id") == kb.pk]
    keyword: Mapping[str, Any] = next((span.detail for span in spans if span.stage == "bm25"), {})
    tier = str(keyword.get("cache_tier", ""))
    return SearchedBase(
        kb_id=kb.pk,
        name=kb.name,
        url=reverse("admin:kb_knowledgebase_change", args=[kb.pk]),
        profile=str(profile or kb.profile),
        profile_url=profile_url(profile or kb.profile),
        model=scope.space,
        fusion=fusion_text(scope.config),
        channels=tuple(_channel_run(stage, scope, spans, outcome.result.analysis) for stage in stages),
        tier=tier,
        tier_text=tier_text(tier),
        index_notes=index_notes(keyword),
        tokenizer_url=tokenizer_url(kb) if "target_tokenizer" in keyword else "",
        is_empty=is_empty(kb),
        upload_url=upload_url(kb),
    )


def _channel_run(stage: str, scope: Scope, spans: Sequence[Span], analysis: Analysis) -> ChannelRun:
    own = [span for span in spans if span.detail.get("channel", span.stage) == stage]
    notes = [*_why_fallback(stage, scope, spans)] if own else []
    details: Mapping[str, Any] = own[0].detail if own else {}
    if "keyword_share" in details:
        message = _("content and keyword vectors %(content)s / %(keywords)s")
        share = details["keyword_share"]
        notes.append(message % {"content": f"{1 - share:g}", "keywords": f"{share:g}"})
    return ChannelRun(
        stage,
        tuple(_channel_search(span, analysis) for span in own),
        f"{details.get('weight', channel_weights(scope.config).get(stage, 0)):g}",
        tuple(notes),
    )


def _channel_search(span: Span, analysis: Analysis) -> ChannelSearch:
    place, error = span.detail.get("query", 0), str(span.detail.get("error", ""))
    return ChannelSearch(
        analysis.queries[place].text if place else "",
        span.detail.get("found"),
        milliseconds(span.milliseconds),
        vector_source_text(str(span.detail.get("query_vector", ""))),
        error,
        degradation_heading(error) if error else "",
    )


def _why_fallback(stage: str, scope: Scope, spans: Sequence[Span]) -> Iterable[str]:
    """Why a stand-in was searched: a channel failed, or too little was found."""
    fallback: Fallback | None = next((each for each in scope.fallbacks if each.channel.name == stage), None)
    if fallback is None:
        return
    failed = [span.stage for span in spans if span.stage in fallback.failed and "error" in span.detail]
    for each in dict.fromkeys(failed):
        yield _("stood in: “%(channel)s” did not answer") % {"channel": stage_label(each)}
    if not failed:
        message = ngettext(
            "stood in: keywords found fewer than %(count)d chunk",
            "stood in: keywords found fewer than %(count)d chunks",
            fallback.below,
        )
        yield message % {"count": fallback.below}


def vector_source_text(source: str) -> str:
    """Where the query's vector came from."""
    return {
        "memory": _("query vector from this process’s memory"),
        "shared": _("query vector from Redis"),
        "model": _("query vector from the model"),
    }.get(source, source)


def index_notes(keyword: Mapping[str, Any]) -> tuple[str, ...]:
    """How large the keyword index was, and what it took to have it, from the detail of the channel's span."""
    notes = []
    if (indexed := keyword.get("indexed_chunks")) is not None:
        notes.append(ngettext("%(count)d chunk indexed", "%(count)d chunks indexed", indexed) % {"count": indexed})
    if (allowed := keyword.get("allowed_chunks")) is not None:
        message = ngettext("the filters leave %(count)d chunk", "the filters leave %(count)d chunks", allowed)
        notes.append(message % {"count": allowed})
    if changed := keyword.get("changed_chunks"):
        message = ngettext(
            "%(count)d changed chunk read over the base", "%(count)d changed chunks read over the base", changed
        )
        notes.append(message % {"count": changed})
    if keyword.get("waited_ms", 0) >= LONG_ENOUGH_TO_TELL_MS:
        notes.append(_("waited %(ms)s ms for it") % {"ms": milliseconds(keyword["waited_ms"])})
    return tuple(notes)


def is_empty(kb: KnowledgeBase) -> bool:
    return not getattr(kb, "has_chunks", True)


def upload_url(kb: KnowledgeBase) -> str:
    return f"{reverse('admin:kb_document_upload')}?kb={kb.pk}"


def tier_text(tier: str) -> str:
    """Which tier of the BM25 cache answered."""
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
