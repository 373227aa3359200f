"""Turns the outcome of an explained search into what the search-debug page shows: one row for each candidate."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.admin.explain_stages import Notice, SearchedBase, StageTime, milliseconds, notices, searched_bases, stage_times
from kb.models import KnowledgeBase
from kb.services.search import SearchOutcome, trace_as_json
from retrieval.config import RetrievalConfig
from retrieval.highlight import Segment, excerpt, highlight
from retrieval.protocols import Tokenizer
from retrieval.types import Candidate, Passage, Result

EXCERPT_CHARACTERS = 200
ROWS_AT_FIRST = 25
ABSENT = "–"
# Enough to tell neighbours apart: neighbouring ranks differ by 0.00002 in their fused score.
DECIMALS = {"vector": 4, "bm25": 4, "fused": 5, "rerank": 4}


@dataclass(frozen=True, slots=True)
class Cell:
    """Rank and score of a candidate in one stage; `note` says more, above all why there is none."""

    stage: str
    label: str
    rank: str
    score: str
    note: str

    @property
    def is_absent(self) -> bool:
        return self.rank == ABSENT and self.score == ABSENT


@dataclass(frozen=True, slots=True)
class Move:
    """How far the stages after the fusion moved a candidate: up is positive."""

    places: int
    words: str

    @property
    def distance(self) -> int:
        return abs(self.places)


@dataclass(frozen=True, slots=True)
class Row:
    """A candidate.

    Attributes:
        rank: its place among the results; a dash when it was cut.
        matched: the query's terms that the chunk or its title holds.
        missing: the others; empty when it is not known.
        cut_by: the stage that dropped it, or blank.
        cut_words: why it did, with the figures.
    """

    chunk_id: int
    kb_id: int
    kb_name: str
    rank: str
    title: tuple[Segment, ...]
    place: tuple[str, ...]
    headings: tuple[Segment, ...]
    text: tuple[Segment, ...]
    excerpt: tuple[Segment, ...]
    matched: tuple[str, ...]
    missing: tuple[str, ...]
    cells: tuple[Cell, ...]
    move: Move | None
    cut_by: str
    cut_label: str
    cut_words: str
    url: str
    starts_hidden: bool

    @property
    def is_shortened(self) -> bool:
        return self.text != self.excerpt


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the query; `origin` is the word that it was made from, where they differ."""

    text: str
    origin: str
    is_found: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that the page says about one search."""

    results: tuple[Row, ...]
    cut: tuple[Row, ...]
    hidden: int
    empty_words: str
    profile: str
    scale: str
    scale_words: str
    threshold: str
    total_ms: str
    times: tuple[StageTime, ...]
    terms: tuple[Term, ...]
    bases: tuple[SearchedBase, ...]
    notices: tuple[Notice, ...]
    trace_id: str
    trace_url: str
    trace_json: str

    @property
    def candidate_count(self) -> int:
        return len(self.results) + len(self.cut)

    @property
    def has_several_bases(self) -> bool:
        return len(self.bases) > 1


def explain(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase], positions: Mapping[int, int]) -> Explanation:
    """What the page shows of a search.

    Args:
        outcome: of a search with `explain`.
        bases: the searched knowledge bases by id, with their profile and `has_chunks`.
        positions: place of each candidate's chunk in its document, from 0.
    """
    result, wiring = outcome.result, outcome.wiring
    rows = _Rows(outcome, bases, positions).all()
    cut = tuple(row for row in rows if row.cut_by)
    return Explanation(
        results=tuple(row for row in rows if not row.cut_by),
        cut=cut,
        hidden=sum(row.starts_hidden for row in rows),
        empty_words=_why_empty(result),
        profile=str(wiring.profile),
        scale=result.score_scale,
        scale_words=scale_in_words(result.score_scale),
        threshold=f"{result.threshold:g}",
        total_ms=milliseconds(result.timings_ms["total"]),
        times=stage_times(result.timings_ms),
        terms=_terms(outcome),
        bases=searched_bases(outcome, bases),
        notices=notices(result.degraded, wiring.pipeline.scopes, bases),
        trace_id=str(outcome.trace_id),
        trace_url=f"/api/v1/traces/{outcome.trace_id}/",
        trace_json=json.dumps(trace_as_json(outcome), ensure_ascii=False, indent=2),
    )


def scale_in_words(scale: str) -> str:
    return {
        "overlap": _(
            "overlap: how much of the query a chunk's words cover, joined with the agreement of the channels, 0 to 1"
        ),
        "cosine": _("cosine: similarity of the vectors, at most 1"),
        "rrf": _("RRF: a sum over ranks without a scale of its own, which no threshold can cut"),
    }.get(scale, scale)


def _gated_stage(result: Result) -> str:
    """The stage whose scores meet the threshold."""
    return "vector" if result.score_scale == "cosine" else "rerank"


def _terms(outcome: SearchOutcome) -> tuple[Term, ...]:
    """The query's terms over all knowledge bases, each as the first one that has it makes it."""
    result = outcome.result
    held = {term for candidate in result.candidates for term in candidate.matched_terms}
    terms: dict[str, Term] = {}
    for kb_id, cutter in _cutters(outcome).items():
        for term in result.analysis.terms(kb_id):
            if term not in terms:
                terms[term] = Term(term, _origin(result.query, term, cutter), term in held)
    return tuple(terms.values())


def _origin(query: str, term: str, cutter: Tokenizer) -> str:
    words = [segment.text for segment in highlight(query, [term], cutter) if segment.is_match]
    return words[0] if words and words[0].casefold() != term else ""


def _cutters(outcome: SearchOutcome) -> dict[int, Tokenizer]:
    """Each knowledge base's tokenizer, where there is one."""
    return {scope.kb_id: scope.tokenizer for scope in outcome.wiring.pipeline.scopes if scope.tokenizer}


def _why_empty(result: Result) -> str:
    """Why there is no result; blank when there is one."""
    if result.hits:
        return ""
    if result.candidates:
        gated = _gated_stage(result)
        best = max(candidate.scores.get(gated, 0.0) for candidate in result.candidates)
        return _(
            "All %(count)d candidates were cut. The best score is %(score)s, the threshold %(threshold)s: lower it to "
            "see what stands below."
        ) % {"count": len(result.candidates), "score": f"{best:.4f}", "threshold": f"{result.threshold:g}"}
    return _("No channel found anything: check the spelling, the chosen knowledge bases and their documents' state.")


class _Rows:
    """Rows of one search; holds what all of them need."""

    def __init__(
        self, outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase], positions: Mapping[int, int]
    ) -> None:
        self._result = outcome.result
        self._config: RetrievalConfig = outcome.wiring.config
        self._bases = bases
        self._positions = positions
        self._cutters = _cutters(outcome)
        spans = [span for span in self._result.spans if "kb_id" in span.detail]
        self._runs = {(span.stage, span.detail["kb_id"]): span.detail for span in spans}
        self._has_lexicon = {kb_id for (stage, kb_id), run in self._runs.items() if stage == "bm25" and "found" in run}

    def all(self) -> list[Row]:
        return [self._row(place, candidate) for place, candidate in enumerate(self._result.candidates, start=1)]

    def _row(self, place: int, candidate: Candidate) -> Row:
        passage = candidate.passage
        if passage is None:
            raise ValueError("rows are made from an explained search, which loads every passage")
        known = candidate.kb_id in self._has_lexicon
        matched = candidate.matched_terms
        text = self._mark(passage.text, candidate)
        return Row(
            chunk_id=candidate.chunk_id,
            kb_id=candidate.kb_id,
            kb_name=self._bases[candidate.kb_id].name,
            rank=ABSENT if candidate.cut_by else str(place),
            title=self._mark(passage.title or passage.source or _("untitled"), candidate),
            place=self._place(passage),
            headings=self._mark(" > ".join(passage.heading_path), candidate),
            text=text,
            excerpt=tuple(excerpt(text, EXCERPT_CHARACTERS)),
            matched=matched,
            missing=tuple(term for term in self._result.analysis.terms(candidate.kb_id) if term not in matched)
            if known
            else (),
            cells=(
                self._channel_cell("vector", candidate),
                self._channel_cell("bm25", candidate),
                self._cell("fused", candidate, _("sum of weight / (%(k)d + rank)") % {"k": self._config.rrf_k}),
                self._cell("rerank", candidate, self._why_not_reranked(candidate)),
            ),
            move=_move(candidate, place),
            cut_by=candidate.cut_by or "",
            cut_label=_cut_label(candidate.cut_by),
            cut_words=self._why_cut(candidate, place),
            url=reverse("admin:kb_chunk_change", args=[candidate.chunk_id]),
            starts_hidden=place > ROWS_AT_FIRST,
        )

    def _mark(self, text: str, candidate: Candidate) -> tuple[Segment, ...]:
        terms = (
            candidate.matched_terms
            if candidate.kb_id in self._has_lexicon
            else self._result.analysis.terms(candidate.kb_id)
        )
        cutter = self._cutters.get(candidate.kb_id)
        if cutter is None:
            return (Segment(text, is_match=False),) if text else ()
        return tuple(highlight(text, terms, cutter))

    def _place(self, passage: Passage) -> tuple[str, ...]:
        """Where the chunk comes from: source, page, position."""
        parts = [passage.source] if passage.source and passage.title else []
        if passage.page:
            parts.append(_("page %(page)d") % {"page": passage.page})
        if passage.chunk_id in self._positions:
            parts.append(_("chunk %(number)d") % {"number": self._positions[passage.chunk_id] + 1})
        return tuple(parts)

    def _channel_cell(self, stage: str, candidate: Candidate) -> Cell:
        note = "" if stage in candidate.ranks else self._why_not_found(stage, candidate)
        return self._cell(stage, candidate, note)

    @staticmethod
    def _cell(stage: str, candidate: Candidate, note: str) -> Cell:
        rank, score = candidate.ranks.get(stage), candidate.scores.get(stage)
        shown = ABSENT if score is None else f"{score:.{DECIMALS[stage]}f}"
        exact = "" if score is None else f"{score!r}"
        label = {"vector": _("Vector"), "bm25": _("BM25"), "fused": _("Fused"), "rerank": _("Rerank")}[stage]
        words = ": ".join(part for part in (exact, note) if part) if score is not None else note
        return Cell(stage, label, str(rank or ABSENT), shown, words)

    def _why_not_found(self, stage: str, candidate: Candidate) -> str:
        run = self._runs.get((stage, candidate.kb_id), {})
        if "found" not in run:
            return _("this channel did not answer")
        if stage == "bm25" and not self._config.use_rerank:
            return _("without a reranker only the vector channel counts")
        if stage == "bm25" and not candidate.matched_terms:
            return _("holds none of the query's terms")
        depth = self._config.vector_candidates if stage == "vector" else self._config.bm25_candidates
        return _("not among the first %(depth)d of this channel") % {"depth": depth}

    def _why_not_reranked(self, candidate: Candidate) -> str:
        if "rerank" in candidate.scores:
            return ""
        if not self._config.use_rerank:
            return _("the reranker is off")
        if candidate.cut_by == "fusion":
            return _("not among the candidates that are reranked")
        return _("there is no reranker: the tokenizer's packages are missing")

    def _why_cut(self, candidate: Candidate, place: int) -> str:
        if candidate.cut_by == "fusion":
            depth = max(self._config.rerank_candidates, self._config.top_k)
            words = _("Fused rank %(rank)d: only the first %(depth)d go on.")
            return words % {"rank": candidate.ranks["fused"], "depth": depth}
        if candidate.cut_by == "gate":
            score = candidate.scores[_gated_stage(self._result)]
            words = _("Score %(score)s is below the threshold %(threshold)s.")
            return words % {"score": f"{score:.4f}", "threshold": f"{self._result.threshold:g}"}
        if candidate.cut_by == "top_k":
            words = _("Rank %(rank)d: only the first %(count)d become results.")
            return words % {"rank": place, "count": self._config.top_k}
        return ""


def _cut_label(stage: str | None) -> str:
    return {"fusion": _("Fusion"), "gate": _("Gate"), "top_k": _("Top K")}.get(stage or "", stage or "")


def _move(candidate: Candidate, place: int) -> Move | None:
    """The way from the fused rank to the final one; None for a candidate that the fusion cut."""
    if candidate.cut_by == "fusion":
        return None
    places = candidate.ranks["fused"] - place
    if places == 0:
        return Move(0, _("kept its fused rank"))
    words = (
        ngettext("up %(n)d place from fused rank %(rank)d", "up %(n)d places from fused rank %(rank)d", places)
        if places > 0
        else ngettext(
            "down %(n)d place from fused rank %(rank)d", "down %(n)d places from fused rank %(rank)d", -places
        )
    )
    return Move(places, words % {"n": abs(places), "rank": candidate.ranks["fused"]})
