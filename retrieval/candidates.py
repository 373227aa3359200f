"""From the channels' rankings to one list of candidates, fused within each knowledge base and merged over all."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.config import RetrievalConfig
from retrieval.fusion import (
    WeightedRanking,
    WeightedScores,
    best_fused_score,
    reciprocal_rank_fusion,
    weighted_sum,
)
from retrieval.postings import hash_terms
from retrieval.protocols import Lexicon
from retrieval.scope import Scope
from retrieval.types import Analysis, Candidate, Passage, Ranking

# N-grams find what only looks alike, so they weigh less than the words that they stand in for.
LEXICAL_SHARE = 0.5
# Few chunks have questions, so the others must not count as disagreeing with a channel that cannot know them.
_MAY_NOT_KNOW = frozenset({"question"})


@dataclass(frozen=True, slots=True)
class _Fused:
    """A chunk with its fused score, and how it came about; a candidate once its place among all is known.

    Attributes:
        share: of the best score that the knowledge base's own fusion could have given with the channels that have answered.
    """

    chunk_id: int
    kb_id: int
    score: float
    share: float
    agreement: float
    ranks: dict[str, int]
    scores: dict[str, float]


def fuse(
    scopes: Sequence[Scope], rankings: Sequence[Ranking], passages: Mapping[int, Passage], depth: int | None
) -> list[Candidate]:
    """The candidates of all knowledge bases: by fused score, then by the order of the bases, then by chunk id.

    Fused scores are compared as shares of the best possible one: those of another fusion, other weights or fewer channels
    are of another size, and the base with the smaller ones would have no candidate among the first.

    Args:
        scopes: in the order that breaks ties, each with its own fusion and weights.
        rankings: one a knowledge base and channel.
        passages: of all chunks in the rankings.
        depth: candidates after the first so many are cut; None: none is.
    """
    fused: list[_Fused] = []
    for scope in scopes:
        own = [ranking for ranking in rankings if ranking.kb_id == scope.kb_id]
        if own:
            fused += _fuse_one(scope.config, own)
    order = {scope.kb_id: position for position, scope in enumerate(scopes)}
    fused.sort(key=lambda each: (-each.share, -each.score, order[each.kb_id], each.chunk_id))
    return [
        Candidate(
            each.chunk_id,
            each.kb_id,
            {**each.ranks, "fused": rank},
            {**each.scores, "fused": each.score},
            agreement=each.agreement,
            passage=passages[each.chunk_id],
            cut_by=None if depth is None or rank <= depth else "fusion",
        )
        for rank, each in enumerate(fused, start=1)
    ]


def _fuse_one(config: RetrievalConfig, rankings: Sequence[Ranking]) -> list[_Fused]:
    exact: dict[str, dict[int, float]] = {}
    if config.fusion == "weighted":
        union = np.unique(np.concatenate([ranking.chunk_ids for ranking in rankings]))
        weights = _weights(config.hybrid_vector_weight, config.hybrid_text_weight, config.question_weight)
        columns = {ranking.channel: _scores_of(ranking, union) for ranking in rankings}
        exact = {channel: _known(union, column) for channel, column in columns.items()}
        weighted = [WeightedScores(column, weights[channel]) for channel, column in columns.items()]
        chunk_ids, scores = weighted_sum(union, weighted)
        best = most = 1.0
    else:
        weights = _weights(config.vector_weight, config.keyword_weight, config.question_weight)
        listed = [WeightedRanking(ranking.chunk_ids, weights[ranking.channel]) for ranking in rankings]
        chunk_ids, scores = reciprocal_rank_fusion(listed, config.rrf_k)
        agreeing = [
            each for ranking, each in zip(rankings, listed, strict=True) if ranking.channel not in _MAY_NOT_KNOW
        ]
        best = best_fused_score(agreeing or listed, config.rrf_k)
        # N-grams alone stay as far behind words as their weight says.
        most = max(best, config.keyword_weight / (config.rrf_k + 1))
    ranks = {ranking.channel: _ranks(ranking.chunk_ids) for ranking in rankings}
    # A chunk that stands for its double in another knowledge base has a rank there, and no score of its own.
    found = {ranking.channel: _known(ranking.chunk_ids, ranking.scores) for ranking in rankings} | exact
    return [
        _Fused(
            chunk_id,
            rankings[0].kb_id,
            score,
            score / most if most else 0.0,
            min(1.0, score / best) if best else 0.0,
            {channel: places[chunk_id] for channel, places in ranks.items() if chunk_id in places},
            {channel: known[chunk_id] for channel, known in found.items() if chunk_id in known},
        )
        for chunk_id, score in zip(chunk_ids.tolist(), scores.tolist(), strict=True)
    ]


def _weights(vector: float, keyword: float, question: float) -> dict[str, float]:
    return {
        "vector": vector,
        "question": question,
        "bm25": keyword,
        "fts": keyword,
        "lexical": keyword * LEXICAL_SHARE,
    }


def _scores_of(ranking: Ranking, union: NDArray[np.int64]) -> NDArray[np.float64]:
    """The channel's exact score of every candidate, shape (n_union,); NaN where it cannot tell."""
    if ranking.score is not None:
        return ranking.score(union)
    scores = np.full(union.size, np.nan)
    scores[np.searchsorted(union, ranking.chunk_ids)] = ranking.scores
    return scores


def _known(chunk_ids: NDArray[np.int64], scores: NDArray[np.float64]) -> dict[int, float]:
    """The scores by chunk id, without those that are not known."""
    known = ~np.isnan(scores)
    return dict(zip(chunk_ids[known].tolist(), scores[known].tolist(), strict=True))


def _ranks(chunk_ids: NDArray[np.int64]) -> dict[int, int]:
    return {chunk_id: rank for rank, chunk_id in enumerate(chunk_ids.tolist(), start=1)}


def match_terms(
    analysis: Analysis, candidates: Sequence[Candidate], lexicons: Mapping[int, Lexicon]
) -> list[Candidate]:
    """Notes which terms of the query, or of another name of its concepts, each candidate holds."""
    held: dict[int, tuple[str, ...]] = {}
    for kb_id, lexicon in lexicons.items():
        terms = tuple(dict.fromkeys(analysis.search_tokens(kb_id)))
        own = [candidate.chunk_id for candidate in candidates if candidate.kb_id == kb_id]
        matrix = lexicon.frequencies(hash_terms(terms), np.array(own, dtype=np.int64)) > 0
        for chunk_id, row in zip(own, matrix, strict=True):
            held[chunk_id] = tuple(term for term, holds in zip(terms, row, strict=True) if holds)
    return [dataclasses.replace(c, matched_terms=held.get(c.chunk_id, ())) for c in candidates]
