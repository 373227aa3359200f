"""What one search made of a query's judgments: the ranks of its units by stage, and the stage that lost them."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from kb.quality.runs.services.units import Judged
from retrieval.config import RetrievalConfig
from retrieval.gate import ScoreScale
from retrieval.selection import result_count, select
from retrieval.trace import Degradation
from retrieval.types import Candidate, Result

STAGES = {"bm25": "bm25", "vector": "vector", "fused": "fused", "reranked": "rerank"}
"""The stages that are measured, with the name that candidates have their ranks under."""
UNANCHORED, NOT_FOUND, RERANK = "unanchored", "channels", "rerank"
LOST_AT = (UNANCHORED, NOT_FOUND, "fusion", RERANK, "gate", "per_source", "top_k")
"""What can lose what is relevant, in the order of the pipeline: nothing answers to the judgments any more, no channel
found it, and the stages by which candidates are cut. The reranker loses what it moves from the places of results to below
them."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One search, seen from the judgments.

    Attributes:
        rankings: units by stage, best first, each at its best chunk's place.
        first_relevant: the rank of the first relevant unit by stage; a stage that has none is missing.
        best_score: of the first result before the gate; None where nothing was found.
        score_scale: of it; blank likewise.
        lost_at: one of `LOST_AT`; blank where something relevant is a result, or nothing is relevant.
        judged: score and grade of each judged unit that reached the gate, best first.
        reranker: that has answered; blank where none has.
    """

    rankings: Mapping[str, Sequence[str]]
    first_relevant: Mapping[str, int]
    best_score: float | None
    score_scale: str
    lost_at: str
    judged: Sequence[tuple[float, int]]
    latency_ms: float
    degraded: Sequence[Degradation]
    reranker: str


def observe(
    result: Result, judged: Judged, config: RetrievalConfig, cut: float, depth: int, found: Result | None = None
) -> Observed:
    """What a search without a gate made of the judgments.

    Where the reranker is off, the order of the results stands for what it would have made.

    Args:
        result: of the search.
        judged: of its query.
        config: that a search for readers has, whose gate and selection are applied here.
        cut: the least score that passes that gate.
        depth: how long the rankings are at most.
        found: the same search with a reranker, which tells of the stages before it; None: the search itself.
    """
    found = found or result
    if config.use_rerank:
        result = _reranked_for_readers(result, config)
    candidates = result.candidates if config.use_rerank else _in_order(result)
    units = [_units(candidate, judged) for candidate in candidates]
    before = units if found is result else [_units(candidate, judged) for candidate in found.candidates]
    relevant = judged.relevant
    rankings, first_relevant = {}, {}
    for stage, key in STAGES.items():
        told = (candidates, units) if key == RERANK else (found.candidates, before)
        rankings[stage], rank = _ranking(*told, key, relevant, depth)
        if rank:
            first_relevant[stage] = rank
    key = _scored_by(result)
    return Observed(
        rankings=rankings,
        first_relevant=first_relevant,
        best_score=result.hits[0].score if result.hits else None,
        score_scale=result.score_scale if result.hits else "",
        lost_at=_lost_at(result, units, before, judged, config, cut) if relevant else "",
        judged=_judged_scores(candidates, units, judged, key),
        latency_ms=result.timings_ms["total"],
        degraded=result.degraded,
        reranker=next((str(span.detail["reranker"] or "") for span in result.spans if span.stage == "rerank"), ""),
    )


def _reranked_for_readers(result: Result, config: RetrievalConfig) -> Result:
    """Without what only this search, which is deeper than one for readers, has reranked."""
    depth = max(config.rerank_candidates, config.top_k)
    deeper = {each.chunk_id for each in result.candidates if "rerank" in each.ranks and each.ranks["fused"] > depth}
    if not deeper:
        return result
    candidates = tuple(
        each._replace(
            cut_by="fusion",
            ranks={stage: rank for stage, rank in each.ranks.items() if stage != RERANK},
            scores={stage: score for stage, score in each.scores.items() if stage != RERANK},
        )
        if each.chunk_id in deeper
        else each
        for each in result.candidates
    )
    hits = tuple(hit for hit in result.hits if hit.passage.chunk_id not in deeper)
    return replace(result, candidates=candidates, hits=hits)


def _in_order(result: Result) -> list[Candidate]:
    """The candidates with their place as the rank of the last stage."""
    ordered = enumerate(result.candidates, start=1)
    return [candidate._replace(ranks={**candidate.ranks, RERANK: place}) for place, candidate in ordered]


def _units(candidate: Candidate, judged: Judged) -> Sequence[str]:
    document_id = candidate.passage.document_id if candidate.passage else 0
    return judged.units(candidate.chunk_id, document_id)


def _ranking(
    candidates: Sequence[Candidate], units: Sequence[Sequence[str]], key: str, relevant: Set[str], depth: int
) -> tuple[list[str], int]:
    """The units of a stage, at most as many as the depth, and the rank of the first that is relevant, or 0."""
    places = {each.ranks[key]: place for place, each in enumerate(candidates) if key in each.ranks}
    seen: dict[str, None] = {}
    first = 0
    for rank in sorted(places):
        for unit in units[places[rank]]:
            seen.setdefault(unit)
            if not first and unit in relevant:
                first = len(seen)
        if first and len(seen) >= depth:
            break
    return list(seen)[:depth], first


def _scored_by(result: Result) -> str:
    """The stage whose scores order the results."""
    if any("rerank" in candidate.scores for candidate in result.candidates):
        return "rerank"
    return "vector" if result.score_scale == ScoreScale.COSINE else "fused"


def _judged_scores(
    candidates: Sequence[Candidate], units: Sequence[Sequence[str]], judged: Judged, key: str
) -> list[tuple[float, int]]:
    scores: dict[str, float] = {}
    for candidate, of_candidate in zip(candidates, units, strict=True):
        if candidate.cut_by != "fusion":
            for unit in of_candidate:
                if unit in judged.grades:
                    scores.setdefault(unit, candidate.scores[key])
    return [(score, judged.grades[unit]) for unit, score in scores.items()]


def _lost_at(
    result: Result,
    units: Sequence[Sequence[str]],
    before: Sequence[Sequence[str]],
    judged: Judged,
    config: RetrievalConfig,
    cut: float,
) -> str:
    """The stage that lost what is relevant and got furthest, as a search with a gate would have it.

    Args:
        result: of the search.
        units: of its candidates.
        before: of all candidates that the channels found.
        judged: of its query.
        config: that a search for readers has.
        cut: of its gate.
    """
    relevant, key = judged.relevant, _scored_by(result)
    found = [candidate for candidate, own in zip(result.candidates, units, strict=True) if not relevant.isdisjoint(own)]
    if not found:
        if not all(map(relevant.isdisjoint, before)):
            return "fusion"
        return UNANCHORED if len(judged.unanchored) == len(relevant) else NOT_FOUND
    selected = select([_gated(each, key, cut) for each in result.candidates if each.cut_by != "fusion"], config)
    cut_by = {each.chunk_id: each.cut_by for each in selected}
    stages = {each.chunk_id: cut_by.get(each.chunk_id, "fusion") for each in found}
    if not {None, "parent"}.isdisjoint(stages.values()):  # "parent": it is read in the longer passage of a result
        return ""
    stage = max(map(str, stages.values()), key=LOST_AT.index)
    places = (each.ranks["fused"] for each in found if stages[each.chunk_id] == stage)
    return RERANK if stage == "top_k" and key == "rerank" and min(places) <= result_count(config) else stage


def _gated(candidate: Candidate, key: str, cut: float) -> Candidate:
    """The candidate as the gate leaves it; what came after the gate is taken back."""
    cut_by = "gate" if cut and candidate.scores[key] < cut else None
    return candidate if candidate.cut_by == cut_by else candidate._replace(cut_by=cut_by)
