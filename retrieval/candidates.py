"""From the channels' rankings to one list of candidates, fused within each knowledge base and merged over all."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

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


def fuse(scopes: Sequence[Scope], rankings: Sequence[Ranking], passages: Mapping[int, Passage]) -> list[Candidate]:
    """The candidates of all knowledge bases: by fused score, then by the order of the bases, then by chunk id.

    Args:
        scopes: in the order that breaks ties, each with its own fusion and weights.
        rankings: one a knowledge base and channel.
        passages: of all chunks in the rankings.
    """
    candidates: list[Candidate] = []
    for scope in scopes:
        own = [ranking for ranking in rankings if ranking.kb_id == scope.kb_id]
        if own:
            candidates += _fuse_one(scope.config, own, passages)
    order = {scope.kb_id: position for position, scope in enumerate(scopes)}
    candidates.sort(key=lambda c: (-c.scores["fused"], order[c.kb_id], c.chunk_id))
    return ranked(candidates, "fused")


def _fuse_one(config: RetrievalConfig, rankings: Sequence[Ranking], passages: Mapping[int, Passage]) -> list[Candidate]:
    exact: dict[str, dict[int, float]] = {}
    if config.fusion == "weighted":
        union = np.unique(np.concatenate([ranking.chunk_ids for ranking in rankings]))
        weights = _weights(config.hybrid_vector_weight, config.hybrid_text_weight, config.question_weight)
        columns = [_scores_of(ranking, union) for ranking in rankings]
        exact = {
            ranking.channel: dict(zip(union[known].tolist(), column[known].tolist(), strict=True))
            for ranking, column in zip(rankings, columns, strict=True)
            for known in [~np.isnan(column)]
        }
        weighted = [
            WeightedScores(column, weights[ranking.channel]) for ranking, column in zip(rankings, columns, strict=True)
        ]
        chunk_ids, scores = weighted_sum(union, weighted)
        best = 1.0
    else:
        weights = _weights(config.vector_weight, config.keyword_weight, config.question_weight)
        listed = [WeightedRanking(ranking.chunk_ids, weights[ranking.channel]) for ranking in rankings]
        chunk_ids, scores = reciprocal_rank_fusion(listed, config.rrf_k)
        best = best_fused_score(listed, config.rrf_k)
    places = {ranking.channel: _places(ranking) for ranking in rankings}
    candidates = []
    for chunk_id, score in zip(chunk_ids.tolist(), scores.tolist(), strict=True):
        found = {channel: place[chunk_id] for channel, place in places.items() if chunk_id in place}
        ranks = {channel: rank for channel, (rank, _) in found.items()}
        # A chunk that stands for its double in another knowledge base has a rank there, and no score of its own.
        of_channels = {channel: value for channel, (_, value) in found.items() if not math.isnan(value)}
        of_channels |= {channel: known[chunk_id] for channel, known in exact.items() if chunk_id in known}
        candidates.append(
            Candidate(
                chunk_id,
                rankings[0].kb_id,
                ranks,
                {**of_channels, "fused": score},
                agreement=score / best if best else 0.0,
                passage=passages[chunk_id],
            )
        )
    return candidates


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


def _places(ranking: Ranking) -> dict[int, tuple[int, float]]:
    pairs = zip(ranking.chunk_ids.tolist(), ranking.scores.tolist(), strict=True)
    return {chunk_id: (rank, score) for rank, (chunk_id, score) in enumerate(pairs, start=1)}


def ranked(candidates: Sequence[Candidate], stage: str) -> list[Candidate]:
    """The candidates with their place in this order as the stage's rank."""
    return [
        dataclasses.replace(candidate, ranks={**candidate.ranks, stage: rank})
        for rank, candidate in enumerate(candidates, start=1)
    ]


def cut_after(candidates: Sequence[Candidate], count: int, stage: str) -> list[Candidate]:
    """Marks the candidates still alive after the first `count` as cut by a stage."""
    alive = 0
    marked = []
    for candidate in candidates:
        if candidate.cut_by is None:
            alive += 1
            marked.append(candidate if alive <= count else dataclasses.replace(candidate, cut_by=stage))
        else:
            marked.append(candidate)
    return marked


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
