"""One row for each candidate of an explained search: where it stands, why, and where it was found.

What each stage of an explained search dropped, chunk by chunk.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from kb.access.models import KnowledgeBase, Principal
from kb.content.models import Chunk
from kb.search.admin.explain.analysis import KeywordScore, cutters, keyword_scores
from kb.search.admin.explain.bases import channels_asked
from kb.search.admin.labels import fusion_text, listed, source_caps, source_label, stage_label
from kb.search.services.search import SearchOutcome
from retrieval.config import RetrievalConfig
from retrieval.highlight import Segment, excerpt, highlight
from retrieval.recall import RANKS_A_CANDIDATE
from retrieval.selection import result_count, stands_for_parent
from retrieval.trace import Dropped
from retrieval.types import Candidate, Passage, Provenance, Result

_LABELS = {
    "fusion": gettext_lazy("Fusion"),
    "gate": gettext_lazy("Gate"),
    "parent": gettext_lazy("Passage"),
    "per_source": gettext_lazy("Kind of source"),
    "top_k": gettext_lazy("Top K"),
}


def cut_label(stage: str | None) -> str:
    return str(_LABELS.get(stage or "", stage or ""))


def gated_stage(result: Result) -> str:
    """The stage whose scores meet the threshold."""
    if any("rerank" in candidate.scores for candidate in result.candidates):
        return "rerank"
    return "vector" if result.score_scale == "cosine" else "fused"


def why_cut(outcome: SearchOutcome, candidate: Candidate, place: int) -> str:
    """Why a candidate is no result, with the figures; blank where it is one.

    Args:
        outcome: of the search.
        candidate: of its candidates.
        place: among those that are left after the gate and the caps of the kinds of sources, or were cut by neither.
    """
    config, result = outcome.wiring.config, outcome.result
    if candidate.cut_by == "fusion":
        depth = max(config.rerank_candidates, config.top_k)
        message = _("Fused rank %(rank)d: only the first %(depth)d go on.")
        return message % {"rank": candidate.ranks["fused"], "depth": depth}
    if candidate.cut_by == "gate":
        message = _("Score %(score)s is below the threshold %(threshold)s.")
        score = candidate.scores[gated_stage(result)]
        return message % {"score": f"{score:.4f}", "threshold": f"{result.threshold:g}"}
    if candidate.cut_by == "parent":
        message = _("Chunk %(id)d stands for the longer passage that both were cut from.")
        return message % {"id": stands_for_parent(result.candidates, candidate)}
    if candidate.cut_by == "per_source":
        kind = candidate.passage.source_type if candidate.passage else ""
        caps = source_caps(config)
        message = _("The places for its kind of source, “%(kind)s”, are taken: %(count)d.")
        return message % {"kind": source_label(kind), "count": caps.get(kind, caps["book"])}
    if candidate.cut_by == "top_k":
        message = _("Rank %(rank)d: only the first %(count)d become results.")
        return message % {"rank": place, "count": result_count(config)}
    return ""


FINAL = "final"
_LATER = ("fused", "rerank")


@dataclass(frozen=True, slots=True)
class Move:
    """How far a stage moved a candidate, from the stage before it: up is positive."""

    places: int
    description: str

    @property
    def distance(self) -> int:
        return abs(self.places)


def moves(candidate: Candidate, final_rank: int | None) -> dict[str, Move]:
    """The moves of a candidate, by the stage that moved it; `FINAL` is the last one of a result.

    Args:
        candidate: with its ranks.
        final_rank: its place among the results; None: it is none of them.
    """
    return {
        stage: _move(before, rank_before, rank)
        for (before, rank_before), (stage, rank) in _steps(candidate, final_rank)
    }


def _steps(candidate: Candidate, final_rank: int | None) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    channels = [(rank, stage) for stage, rank in candidate.ranks.items() if stage not in _LATER]
    way = [(stage, rank) for rank, stage in sorted(channels)[:1]]
    way += [(stage, candidate.ranks[stage]) for stage in _LATER if stage in candidate.ranks]
    if final_rank is not None:
        way.append((FINAL, final_rank))
    return pairwise(way)


def _move(before: str, rank_before: int, rank: int) -> Move:
    places = rank_before - rank
    known = {"n": abs(places), "rank": rank_before, "stage": stage_label("fusion" if before == "fused" else before)}
    if places == 0:
        return Move(0, _("the same rank as in “%(stage)s”") % known)
    if places > 0:
        message = ngettext(
            "up %(n)d place from rank %(rank)d in “%(stage)s”",
            "up %(n)d places from rank %(rank)d in “%(stage)s”",
            places,
        )
    else:
        message = ngettext(
            "down %(n)d place from rank %(rank)d in “%(stage)s”",
            "down %(n)d places from rank %(rank)d in “%(stage)s”",
            -places,
        )
    return Move(places, message % known)


EXCERPT_CHARACTERS = 200
ROWS_AT_FIRST = 25
ABSENT = "–"
# Enough to tell neighbours apart: neighbouring ranks differ by 0.00002 in their fused score.
DECIMALS = {"fused": 5}
USUAL_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A stage of the table; `note` says what its second line is."""

    stage: str
    label: str
    note: str


@dataclass(frozen=True, slots=True)
class Cell:
    """Rank and score of a candidate in one stage.

    Attributes:
        note: says more, above all why there is none.
        move: how far the stage moved it; None for a channel.
    """

    stage: str
    label: str
    rank: str
    score: str
    note: str
    move: Move | None

    @property
    def is_absent(self) -> bool:
        return self.rank == ABSENT and self.score == ABSENT


@dataclass(frozen=True, slots=True)
class Place:
    """Where a candidate was found.

    Attributes:
        query: the sub-query; blank for the query itself.
        double_url: of the chunk with the same content that was found there; blank where it is the candidate itself.
    """

    channel: str
    kb_name: str
    query: str
    rank: int
    score: str
    double_id: int | None
    double_url: str


@dataclass(frozen=True, slots=True)
class Row:
    """A candidate.

    Attributes:
        name: its title and place as text.
        rank: its place among the results; a dash when it was cut.
        matched: the terms that the chunk or its title holds.
        missing: the query's others; empty when it is not known.
        keyword_score: how its BM25 score adds up; None where it has none, or the index has not answered.
        move: how far the last stage moved a result.
        cut_by: the stage that dropped it, or blank.
        cut_text: why it did, with the figures.
        found_at: every place where it, or a chunk of the same content, was found.
        doubles: how many chunks of the same content it stands for.
        neighbours: the chunks before and after it, where they were asked for.
        url: of its chunk, or of where it was found elsewhere; blank where that is no web address.
        is_stored: whether it is a chunk; what was found elsewhere is none.
    """

    chunk_id: int
    kb_id: int
    kb_name: str
    name: str
    rank: str
    title: tuple[Segment, ...]
    place: tuple[str, ...]
    headings: tuple[Segment, ...]
    text: tuple[Segment, ...]
    excerpt: tuple[Segment, ...]
    matched: tuple[str, ...]
    missing: tuple[str, ...]
    keyword_score: KeywordScore | None
    cells: tuple[Cell, ...]
    move: Move | None
    cut_by: str
    cut_label: str
    cut_text: str
    found_at: tuple[Place, ...]
    doubles: int
    neighbours: tuple[Passage, ...]
    url: str
    is_stored: bool
    starts_hidden: bool

    @property
    def is_shortened(self) -> bool:
        return self.text != self.excerpt


def columns(outcome: SearchOutcome) -> tuple[Column, ...]:
    """The stages that rank candidates: the channels that were asked, the fusion, and the reranker."""
    notes = {"vector": _("rank, cosine"), "question": _("rank, cosine"), "fused": _fused_note(outcome)}
    stages = (*channels_asked(outcome.result.spans), "fused", "rerank")
    return tuple(Column(stage, stage_label(stage), notes.get(stage, _("rank, score"))) for stage in stages)


def _fused_note(outcome: SearchOutcome) -> str:
    methods = {scope.config.fusion for scope in outcome.wiring.pipeline.scopes}
    return {frozenset({"rrf"}): _("rank, RRF"), frozenset({"weighted"}): _("rank, sum")}.get(
        frozenset(methods), _("rank, score")
    )


def rows(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> list[Row]:
    """The candidates in their final order."""
    return _Rows(outcome, bases).all()


class _Rows:
    """Rows of one search; holds what all of them need."""

    def __init__(self, outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> None:
        self._result = outcome.result
        self._config: RetrievalConfig = outcome.wiring.config
        self._configs = {scope.kb_id: scope.config for scope in outcome.wiring.pipeline.scopes}
        self._bases = bases
        self._cutters = cutters(outcome)
        self._stages = [column.stage for column in columns(outcome)]
        spans = [span for span in self._result.spans if "kb_id" in span.detail]
        self._answered = {
            (span.detail.get("channel", span.stage), span.detail["kb_id"]) for span in spans if "found" in span.detail
        }
        self._has_lexicon = {kb_id for stage, kb_id in self._answered if stage == "bm25"}
        self._keyword_scores = keyword_scores(self._result)
        self._outcome = outcome

    def all(self) -> list[Row]:
        shown, place = [], 0
        for number, candidate in enumerate(self._result.candidates, start=1):
            # What the caps of the kinds of sources cut takes no place among the results.
            place += candidate.cut_by in {None, "top_k"}
            shown.append(self._row(place, candidate, starts_hidden=number > ROWS_AT_FIRST))
        return shown

    def _row(self, place: int, candidate: Candidate, *, starts_hidden: bool) -> Row:
        passage = candidate.passage
        if passage is None:
            raise ValueError("rows are made from an explained search, which loads every passage")
        matched = candidate.matched_terms
        final = None if candidate.cut_by else place
        moved = moves(candidate, final)
        title = passage.title or passage.source or _("untitled")
        is_stored = passage.origin is None
        own = self._result.analysis.terms(candidate.kb_id)
        text = self._mark(passage.text, candidate)
        return Row(
            chunk_id=candidate.chunk_id,
            kb_id=candidate.kb_id,
            kb_name=self._bases[candidate.kb_id].name,
            name=_("%(title)s, chunk %(number)d") % {"title": title, "number": passage.position + 1}
            if is_stored
            else title,
            rank=str(final or ABSENT),
            title=self._mark(title, candidate),
            place=_place(passage),
            headings=self._mark(" > ".join(passage.heading_path), candidate),
            text=text,
            excerpt=tuple(excerpt(text, EXCERPT_CHARACTERS)),
            matched=matched,
            missing=tuple(t for t in own if t not in matched) if candidate.kb_id in self._has_lexicon else (),
            keyword_score=self._keyword_scores.get(candidate.chunk_id),
            cells=tuple(self._cell(stage, candidate, moved.get(stage)) for stage in self._stages),
            move=moved.get(FINAL),
            cut_by=candidate.cut_by or "",
            cut_label=cut_label(candidate.cut_by),
            cut_text=why_cut(self._outcome, candidate, place),
            found_at=tuple(self._found_at(each, candidate) for each in candidate.provenance),
            doubles=len({each.chunk_id for each in candidate.provenance} - {candidate.chunk_id}),
            neighbours=candidate.neighbours,
            url=found_url(passage),
            is_stored=is_stored,
            starts_hidden=starts_hidden,
        )

    def _mark(self, text: str, candidate: Candidate) -> tuple[Segment, ...]:
        is_known = candidate.kb_id in self._has_lexicon
        terms = candidate.matched_terms if is_known else self._result.analysis.terms(candidate.kb_id)
        cutter = self._cutters.get(candidate.kb_id)
        if cutter is None:
            return (Segment(text, is_match=False),) if text else ()
        return tuple(highlight(text, terms, cutter))

    def _found_at(self, found: Provenance, candidate: Candidate) -> Place:
        is_double = found.chunk_id != candidate.chunk_id
        return Place(
            stage_label(found.channel),
            self._bases[found.kb_id].name,
            self._result.analysis.queries[found.query].text if found.query else "",
            found.rank,
            f"{found.score:.{USUAL_DECIMALS}f}",
            found.chunk_id if is_double and found.chunk_id >= 0 else None,
            _chunk_url(found.chunk_id) if is_double and found.chunk_id >= 0 else "",
        )

    # -- Cells ---------------------------------------------------------------------------------------------------------
    def _cell(self, stage: str, candidate: Candidate, move: Move | None) -> Cell:
        rank, score = candidate.ranks.get(stage), candidate.scores.get(stage)
        shown = ABSENT if score is None else f"{score:.{DECIMALS.get(stage, USUAL_DECIMALS)}f}"
        exact = "" if score is None else f"{score!r}"
        note = self._note(stage, candidate)
        message = _("%(score)s: %(note)s") % {"score": exact, "note": note} if exact and note else exact or note
        return Cell(stage, stage_label(stage), str(rank or ABSENT), shown, message, move)

    def _note(self, stage: str, candidate: Candidate) -> str:
        if stage == "fused":
            return fusion_text(self._configs[candidate.kb_id])
        if stage == "rerank":
            return self._why_not_reranked(candidate)
        if stage not in candidate.ranks:
            return self._why_not_found(stage, candidate)
        if math.isnan(candidate.scores.get(stage, math.nan)):
            return _("the rank of a double in another knowledge base, whose score does not count here")
        return ""

    def _why_not_found(self, stage: str, candidate: Candidate) -> str:
        if (stage, candidate.kb_id) not in self._answered:
            return _("this channel did not answer")
        if ":" in stage or candidate.chunk_id < 0:
            # A source elsewhere knows no chunks, and no index here knows what was found there.
            return _("only what is elsewhere is ranked here") if ":" in stage else _("found elsewhere, so in no index")
        if stage != "vector" and not self._config.use_rerank:
            return _("without a reranker only the vector channel counts")
        if stage == "bm25" and not candidate.matched_terms:
            return _("holds none of the query's terms")
        config = self._configs[candidate.kb_id]
        depth = config.vector_candidates if stage in ("vector", "question") else config.bm25_candidates
        message = _("not among the first %(depth)d of this channel") % {"depth": RANKS_A_CANDIDATE * depth}
        if stage in candidate.scores:
            return _("%(reason)s; scored exactly for the weighted sum") % {"reason": message}
        return message

    def _why_not_reranked(self, candidate: Candidate) -> str:
        if "rerank" in candidate.scores:
            return ""
        if not self._config.use_rerank:
            return _("the reranker is off")
        if candidate.cut_by == "fusion":
            return _("not among the candidates that are reranked")
        return _("no reranker could answer")


def _chunk_url(chunk_id: int) -> str:
    return reverse("admin:kb_chunk_change", args=[chunk_id])


def found_url(passage: Passage) -> str:
    """Of the chunk, or the address of what was found elsewhere, where a browser may open it."""
    if passage.origin is None:
        return _chunk_url(passage.chunk_id)
    return passage.origin.url if passage.origin.url.startswith(("https://", "http://")) else ""


def _place(passage: Passage) -> tuple[str, ...]:
    """Where the chunk comes from: source, page, position; or the source elsewhere and the address."""
    if passage.origin is not None:
        told = _("from %(source)s, place %(rank)d") % {"source": passage.origin.source, "rank": passage.origin.rank}
        return tuple(filter(None, (told, passage.origin.url, passage.origin.published)))
    parts = [passage.source] if passage.source and passage.title else []
    if passage.page:
        parts.append(_("page %(page)d") % {"page": passage.page})
    return (*parts, _("chunk %(number)d") % {"number": passage.position + 1})


MOST_LISTED = 100
# The stage of the page, where it is not what cut a candidate or dropped a chunk.
_SHOWN_AT = {"parent": "selection", "per_source": "selection", "top_k": "selection", "vector_only": "fusion"}


@dataclass(frozen=True, slots=True)
class DroppedChunk:
    """A chunk that a stage dropped.

    Attributes:
        url: of its row, where it was a candidate, or of its own page; blank where it is gone or not to be seen.
        description: why it was dropped, with the figures.
    """

    chunk_id: int
    title: str
    url: str
    description: str


@dataclass(frozen=True, slots=True)
class Drops:
    """What one stage dropped; `chunks` are the first ones, best first."""

    count: int
    chunks: tuple[DroppedChunk, ...]

    @property
    def unlisted(self) -> int:
        return self.count - len(self.chunks)


def drops(outcome: SearchOutcome, rows: Iterable[Row], principal: Principal) -> dict[str, Drops]:
    """What was dropped, by stage of the page, in at most one query.

    Args:
        outcome: of an explained search.
        rows: its candidates.
        principal: who may see the titles of the chunks that are no candidates.
    """
    found: dict[str, list[Dropped | Row]] = {}
    for dropped in outcome.result.dropped:
        found.setdefault(_SHOWN_AT.get(dropped.stage, dropped.stage), []).append(dropped)
    for row in rows:
        if row.cut_by:
            found.setdefault(_SHOWN_AT.get(row.cut_by, row.cut_by), []).append(row)
    first = {stage: each[:MOST_LISTED] for stage, each in found.items()}
    early = [each.chunk_id for chunks in first.values() for each in chunks if isinstance(each, Dropped)]
    describe = _DropDescription(outcome, _titles(early, principal))
    return {stage: Drops(len(found[stage]), tuple(map(describe.of, chunks))) for stage, chunks in first.items()}


def _titles(chunk_ids: Iterable[int], principal: Principal) -> dict[int, str]:
    """What the chunks that the principal may see are called."""
    wanted = list(chunk_ids)
    if not wanted:
        return {}
    chunks = Chunk.objects.visible_to(principal).filter(pk__in=wanted)
    named = chunks.values_list("pk", "document__title", "document__source", "position")
    return {
        pk: _("%(title)s, chunk %(number)d") % {"title": title or source or _("untitled"), "number": position + 1}
        for pk, title, source, position in named
    }


class _DropDescription:
    """Why chunks of one search were dropped."""

    def __init__(self, outcome: SearchOutcome, titles: Mapping[int, str]) -> None:
        self._configs = {scope.kb_id: scope.config for scope in outcome.wiring.pipeline.scopes}
        self._titles = titles

    def of(self, dropped: Dropped | Row) -> DroppedChunk:
        if isinstance(dropped, Row):
            return DroppedChunk(dropped.chunk_id, dropped.name, f"#chunk-{dropped.chunk_id}", dropped.cut_text)
        title = self._titles.get(dropped.chunk_id)
        url = reverse("admin:kb_chunk_change", args=[dropped.chunk_id]) if title else ""
        shown = title or _("chunk %(number)d") % {"number": dropped.chunk_id}
        return DroppedChunk(dropped.chunk_id, shown, url, self._why(dropped))

    def _why(self, dropped: Dropped) -> str:
        if dropped.stage == "channels":
            return _("Too far back in every channel: %(places)s.") % {"places": listed(self._places(dropped))}
        if dropped.stage == "dedupe":
            return _("Chunk %(id)d stands for its content.") % {"id": dropped.represented_by}
        if dropped.stage == "vector_only":
            return _("Not found by vectors, which alone count without a reranker.")
        return _("It was deleted since the index was read, or you may not see it.")

    def _places(self, dropped: Dropped) -> Iterator[str]:
        for channel, rank in dropped.ranks.items():
            depth = _depth(channel, self._configs[dropped.kb_id])
            message = _("rank %(rank)d in “%(channel)s”, whose first %(depth)d go on")
            yield message % {"rank": rank, "channel": stage_label(channel), "depth": depth}


def _depth(channel: str, config: RetrievalConfig) -> int:
    return config.vector_candidates if channel in {"vector", "question"} else config.bm25_candidates
