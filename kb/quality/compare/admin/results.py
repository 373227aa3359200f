"""Two searches side by side, in words: where each result stands on either side, and what took how long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.access.models import KnowledgeBase
from kb.quality.compare.admin.settings import SettingChange, setting_changes
from kb.quality.compare.services import ComparedResult, SearchComparison
from kb.quality.debug.admin.log import debug_url
from kb.quality.runs.admin.report import lost_label
from kb.search.admin.explain.analysis import cutters
from kb.search.admin.explain.rows import found_url
from kb.search.admin.labels import Notice, milliseconds, notices, stage_label
from kb.search.services.search import SearchOutcome
from retrieval.highlight import Segment, excerpt, highlight
from retrieval.protocols import Tokenizer

EXCERPT_CHARACTERS = 160
STAGES = (
    "analysis",
    "vector",
    "bm25",
    "question",
    "fts",
    "lexical",
    "dedupe",
    "fusion",
    "passages",
    "rerank",
    "gate",
    "selection",
    "facts",
    "total",
)


@dataclass(frozen=True, slots=True)
class Movement:
    """Where a result stands on the other side.

    Attributes:
        direction: from A to B: "up", "down", "same", or "gone" where the other side has it not.
        sign: the same in a few characters.
        words: the same in a sentence.
        reason: what lost it on the other side; blank unless it is gone.
    """

    direction: str
    sign: str
    words: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A result on one side."""

    chunk_id: int
    rank: int
    title: str
    place: tuple[str, ...]
    text: tuple[Segment, ...]
    score: str
    kb_name: str
    url: str
    movement: Movement


@dataclass(frozen=True, slots=True)
class Side:
    """What one side found."""

    letter: str
    profile: str
    total_ms: str
    scale: str
    threshold: str
    cards: tuple[Card, ...]
    notices: tuple[Notice, ...]
    debug_url: str


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Milliseconds of a stage on either side; a dash where it did not run."""

    label: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class ShownComparison:
    """What the page says of two searches."""

    sides: tuple[Side, Side]
    summary: str
    is_identical: bool
    changes: tuple[SettingChange, ...]
    times: tuple[StageTimes, ...]
    has_several_bases: bool


def shown(comparison: SearchComparison, bases: Mapping[int, KnowledgeBase]) -> ShownComparison:
    """What the page shows.

    Args:
        comparison: of two searches.
        bases: the searched knowledge bases by id.
    """
    a, b = comparison.a, comparison.b
    return ShownComparison(
        sides=(_side("A", a, comparison.results, bases), _side("B", b, comparison.results, bases)),
        summary=_summary(comparison),
        is_identical=comparison.is_identical,
        changes=setting_changes(comparison.settings),
        times=_times(a.result.timings_ms, b.result.timings_ms),
        has_several_bases=len(a.knowledge_bases) > 1,
    )


def _summary(comparison: SearchComparison) -> str:
    """How much the sides differ, in one sentence."""
    results = comparison.results
    if not results:
        return _("Neither side found anything.")
    if comparison.is_identical:
        return _("Both sides give the same results in the same order.")
    counts = {
        "moved": sum(bool(result.moved) for result in results),
        "only_a": sum(result.rank_b is None for result in results),
        "only_b": sum(result.rank_a is None for result in results),
    }
    return _("%(moved)d in another place, %(only_a)d only in A, %(only_b)d only in B.") % counts


def _side(
    letter: str, outcome: SearchOutcome, results: Sequence[ComparedResult], bases: Mapping[int, KnowledgeBase]
) -> Side:
    result = outcome.result
    ranks = {each.hit.passage.chunk_id: each for each in results}
    tokenizers = cutters(outcome)
    request = outcome.request
    asked = {
        "profile": request.profile,
        "profile_version": request.profile_version,
        "overrides": request.overrides,
        "filters": request.filters.as_dict() if request.filters else None,
        "latency_budget_ms": request.latency_budget_ms,
    }
    return Side(
        letter=letter,
        profile=str(outcome.wiring.profile),
        total_ms=milliseconds(result.timings_ms["total"]),
        scale=result.score_scale,
        threshold=f"{result.threshold:g}",
        cards=tuple(
            _card(letter, rank, ranks[hit.passage.chunk_id], outcome, bases, tokenizers)
            for rank, hit in enumerate(result.hits, start=1)
        ),
        notices=notices(result.degraded, outcome.wiring.pipeline.scopes, bases),
        debug_url=debug_url(request.knowledge_base_ids, request.query, asked),
    )


def _card(
    letter: str,
    rank: int,
    result: ComparedResult,
    outcome: SearchOutcome,
    bases: Mapping[int, KnowledgeBase],
    tokenizers: Mapping[int, Tokenizer],
) -> Card:
    hit = outcome.result.hits[rank - 1]
    passage = hit.passage
    place = [passage.source] if passage.source and passage.title else []
    if passage.page:
        place.append(_("page %(page)d") % {"page": passage.page})
    tokenizer = tokenizers.get(passage.kb_id)
    text = (
        highlight(passage.searched, hit.matched_terms, tokenizer)
        if tokenizer
        else [Segment(passage.searched, is_match=False)]
    )
    return Card(
        chunk_id=passage.chunk_id,
        rank=rank,
        title=passage.title or passage.source or _("untitled"),
        place=tuple(place) if passage.origin else (*place, _("chunk %(number)d") % {"number": passage.position + 1}),
        text=tuple(excerpt(text, EXCERPT_CHARACTERS)),
        score=f"{hit.score:.4f}",
        kb_name=bases[passage.kb_id].name,
        url=found_url(passage),
        movement=_movement(letter, result),
    )


def _movement(letter: str, result: ComparedResult) -> Movement:
    """Where a result of one side stands on the other."""
    other = "B" if letter == "A" else "A"
    rank, cut_by = (result.rank_b, result.cut_in_b) if letter == "A" else (result.rank_a, result.cut_in_a)
    if rank is None or result.moved is None:
        words = _("not among the results of %(side)s") % {"side": other}
        return Movement("gone", _("only %(side)s") % {"side": letter}, words, _why_lost(cut_by))
    if result.moved == 0:
        return Movement("same", "=", _("at the same place in %(side)s") % {"side": other})
    places = abs(result.moved)
    at = {"rank": rank, "side": other, "n": places}
    if letter == "A":
        direction = "up" if result.moved > 0 else "down"
        return Movement(direction, _("B: %(rank)d") % at, _("at rank %(rank)d in %(side)s") % at)
    if result.moved > 0:
        words = ngettext("up %(n)d place from rank %(rank)d in A", "up %(n)d places from rank %(rank)d in A", places)
        return Movement("up", f"▲{places}", words % at)
    words = ngettext("down %(n)d place from rank %(rank)d in A", "down %(n)d places from rank %(rank)d in A", places)
    return Movement("down", f"▼{places}", words % at)


def _why_lost(stage: str) -> str:
    """What lost a result of the other side."""
    others = {
        "dedupe": _("Another chunk of the same content stands for it"),
        "vector_only": _("Without a reranker only what vectors find counts"),
        "passages": _("It was gone when its text was read"),
        "parent": _("Another chunk of the same longer passage stands for it"),
    }
    return others.get(stage) or lost_label(stage)


def _times(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[StageTimes, ...]:
    known = [stage for stage in STAGES if stage in a or stage in b]
    labels = {"total": _("Total")}
    return tuple(
        StageTimes(
            labels.get(stage) or stage_label(stage),
            *(milliseconds(side[stage]) if stage in side else "–" for side in (a, b)),
        )
        for stage in known
    )
