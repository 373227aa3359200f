"""What the stages of an explained search did, in words and figures: time, knowledge bases, degradations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.admin.tokenizer import tokenizer_url
from kb.models import KnowledgeBase, RetrievalProfile
from kb.services.search import SearchOutcome
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.pipeline import Scope
from retrieval.trace import Degradation, DegradationCode, Span
from retrieval.types import Result

CHANNELS = ("vector", "bm25")
LONG_ENOUGH_TO_TELL_MS = 1
STAGES = ("analysis", "channels", "fusion", "passages", "rerank", "gate", "other")


@dataclass(frozen=True, slots=True)
class StageTime:
    """A part of the bar.

    Attributes:
        share: of the whole, in per cent, for the width.
        lanes: stages that ran side by side within this one; their shares are of the longest of them.
    """

    stage: str
    label: str
    milliseconds: str
    share: str
    lanes: tuple["StageTime", ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelRun:
    """How one channel fared in one knowledge base.

    Attributes:
        found: candidates; None when it did not answer.
        error: code of the degradation that kept it from answering.
    """

    stage: str
    label: str
    found: int | None
    milliseconds: str
    weight: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class SearchedBase:
    """One knowledge base of the search: the settings it was searched under, and what its channels found.

    Attributes:
        index_notes: how the keyword index came to be as it was searched.
        tokenizer_url: of the page that shows how far the tokenising is; blank where none goes on.
    """

    kb_id: int
    name: str
    url: str
    profile: str
    model: str
    channels: tuple[ChannelRun, ...]
    tier: str
    tier_words: str
    index_notes: tuple[str, ...]
    tokenizer_url: str
    is_empty: bool
    upload_url: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Degradations of one kind.

    Attributes:
        details: one sentence for each place it struck, with the remedy, in pieces of words and of code.
        reasons: what it means here.
    """

    code: str
    heading: str
    details: tuple[tuple[tuple[str, bool], ...], ...]
    reasons: tuple[str, ...] = ()


def stage_label(stage: str) -> str:
    return {
        "analysis": _("Analysis"),
        "channels": _("Channels"),
        "vector": _("Vector"),
        "bm25": _("BM25"),
        "fusion": _("Fusion"),
        "passages": _("Passages"),
        "rerank": _("Rerank"),
        "gate": _("Gate"),
        "other": _("Other"),
    }.get(stage, stage)


def stage_times(timings: Mapping[str, float]) -> tuple[StageTime, ...]:
    """The parts of the total in order; the channels ran side by side and count with the slower one."""
    spent = {stage: timings[stage] for stage in STAGES if stage in timings}
    spent["channels"] = max((timings.get(channel, 0.0) for channel in CHANNELS), default=0.0)
    spent["other"] = max(timings["total"] - sum(spent.values()), 0.0)
    total = sum(spent.values()) or 1.0
    lanes = _parts({stage: timings[stage] for stage in CHANNELS if stage in timings}, spent["channels"] or 1.0)
    return _parts({stage: spent[stage] for stage in STAGES if stage in spent}, total, lanes)


def _parts(spent: Mapping[str, float], whole: float, lanes: tuple[StageTime, ...] = ()) -> tuple[StageTime, ...]:
    return tuple(
        StageTime(
            stage,
            stage_label(stage),
            milliseconds(time),
            f"{100 * time / whole:.2f}",
            lanes if stage == "channels" else (),
        )
        for stage, time in spent.items()
    )


def milliseconds(value: float) -> str:
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def searched_bases(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> tuple[SearchedBase, ...]:
    """The knowledge bases in the order of the search; `bases` carry `has_chunks` and their profile."""
    named = outcome.wiring.profile if outcome.request.profile else None
    return tuple(
        _searched_base(scope, bases[scope.kb_id], named, outcome.result) for scope in outcome.wiring.pipeline.scopes
    )


def _searched_base(scope: Scope, kb: KnowledgeBase, profile: RetrievalProfile | None, result: Result) -> SearchedBase:
    spans = {span.stage: span for span in result.spans if span.detail.get("kb_id") == kb.pk}
    keyword = spans["bm25"].detail if "bm25" in spans else {}
    tier = str(keyword.get("cache_tier", ""))
    weights = {"vector": scope.config.vector_weight, "bm25": scope.config.keyword_weight}
    return SearchedBase(
        kb_id=kb.pk,
        name=kb.name,
        url=reverse("admin:kb_knowledgebase_change", args=[kb.pk]),
        profile=str(profile or kb.profile),
        model=scope.space,
        channels=tuple(_channel_run(spans[stage], weights[stage]) for stage in CHANNELS if stage in spans),
        tier=tier,
        tier_words=tier_in_words(tier),
        index_notes=index_notes(keyword),
        tokenizer_url=tokenizer_url(kb) if "target_tokenizer" in keyword else "",
        is_empty=is_empty(kb),
        upload_url=upload_url(kb),
    )


def index_notes(keyword: Mapping[str, Any]) -> tuple[str, ...]:
    """How large the keyword index was, and what it took to have it, from the detail of the channel's span."""
    notes = []
    if (indexed := keyword.get("indexed_chunks")) is not None:
        notes.append(ngettext("%(count)d chunk indexed", "%(count)d chunks indexed", indexed) % {"count": indexed})
    if changed := keyword.get("changed_chunks"):
        words = ngettext(
            "%(count)d changed chunk read over the base", "%(count)d changed chunks read over the base", changed
        )
        notes.append(words % {"count": changed})
    if keyword.get("waited_ms", 0) >= LONG_ENOUGH_TO_TELL_MS:
        notes.append(_("waited %(ms)s ms for it") % {"ms": milliseconds(keyword["waited_ms"])})
    return tuple(notes)


def _channel_run(span: Span, weight: float) -> ChannelRun:
    return ChannelRun(
        span.stage,
        stage_label(span.stage),
        span.detail.get("found"),
        milliseconds(span.milliseconds),
        f"{weight:g}",
        str(span.detail.get("error", "")),
    )


def is_empty(kb: KnowledgeBase) -> bool:
    return not getattr(kb, "has_chunks", True)


def upload_url(kb: KnowledgeBase) -> str:
    return f"{reverse('admin:kb_document_upload')}?kb={kb.pk}"


def tier_in_words(tier: str) -> str:
    """Which tier of the BM25 cache answered."""
    return {
        "process": _("from the memory of this process"),
        "redis": _("from Redis"),
        "database": _("from the database"),
        "build": _("built now from the stored postings"),
    }.get(tier, tier or _("no index was used"))


def notices(
    degraded: Iterable[Degradation], scopes: Sequence[Scope], bases: Mapping[int, KnowledgeBase]
) -> tuple[Notice, ...]:
    """Degradations, grouped by code, in the order in which they were met."""
    details: dict[DegradationCode, list[str]] = {}
    for degradation in degraded:
        details.setdefault(degradation.code, []).append(degradation.detail)
    return tuple(
        Notice(code.value, degradation_heading(code), tuple(map(_with_code, found)), _reasons(code, scopes, bases))
        for code, found in details.items()
    )


def _with_code(detail: str) -> tuple[tuple[str, bool], ...]:
    """A sentence, with what stands between backticks told apart."""
    return tuple((words, bool(index % 2)) for index, words in enumerate(detail.split("`")) if words)


def degradation_heading(code: DegradationCode) -> str:
    headings: Mapping[str, str] = {
        DegradationCode.BM25_INDEX_BUILDING: _("Searched without keywords: the keyword index is still being built"),
        DegradationCode.BM25_DEPENDENCIES_MISSING: _("Searched without keywords: packages are missing"),
        DegradationCode.BM25_POSTINGS_OUTDATED: _("Searched without keywords: the keyword index is out of date"),
        DegradationCode.CHANNEL_FAILED: _("A channel failed"),
        DegradationCode.EMBEDDER_FAILED: _("Searched without vectors: the model gave no usable vector"),
        DegradationCode.HASHING_EMBEDDER: _("Searched without a language model: vectors compare words, not meaning"),
        DegradationCode.MODEL_UNAVAILABLE: _("Searched without vectors: the embedding model cannot be loaded"),
    }
    return headings.get(code) or code.value.replace("_", " ").capitalize()


def _reasons(code: DegradationCode, scopes: Sequence[Scope], bases: Mapping[int, KnowledgeBase]) -> tuple[str, ...]:
    if code is not DegradationCode.HASHING_EMBEDDER:
        return ()
    meaning = _(
        "The hashing embedder needs no model: its vectors tell which words and word parts two texts share. A question "
        "that is worded differently from the text is not found by it. At the usual weight it would push better keyword "
        "matches down, and so a knowledge base on it starts with a profile in which keywords lead."
    )
    in_force = _("In “%(kb)s” this search weighed vectors %(vector)s and keywords %(keyword)s.")
    return (
        meaning,
        *(
            in_force
            % {
                "kb": bases[scope.kb_id].name,
                "vector": f"{scope.config.vector_weight:g}",
                "keyword": f"{scope.config.keyword_weight:g}",
            }
            for scope in scopes
            if scope.space == HASHING_MODEL_ID
        ),
    )
