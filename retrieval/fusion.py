"""From the channels' rankings to one list of candidates, fused within each knowledge base and merged over all."""

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import compress
from math import isnan
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrieval.config import RetrievalConfig
from retrieval.evidence import CHARACTERS
from retrieval.postings import hash_terms
from retrieval.protocols import Scope
from retrieval.types import Analysis, Candidate, CutBy, Lexicon, Passage, Ranking


def reciprocal_rank_fusion(
    rankings: Sequence[tuple[NDArray[np.int64], float]], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Fuses rankings by the sum of weight / (k + rank), rank from 1.

    Rankings are chunk ids, best first, shape (n,), without repeats, and the weight of their channel; `k` damps the lead
    of the first ranks (60 in the source). Chunk ids and fused scores are of shape (n_union,), best first, ties by chunk
    id.

    Source: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual rank learning
    methods", SIGIR 2009; the weights are ours.
    """
    if not rankings:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)
    ids = np.concatenate([chunk_ids for chunk_ids, _ in rankings])
    shares = np.concatenate([weight / (k + np.arange(1, len(chunk_ids) + 1)) for chunk_ids, weight in rankings])
    union, positions = np.unique(ids, return_inverse=True)
    scores = np.bincount(positions, weights=shares, minlength=len(union)).astype(np.float64)
    order = np.lexsort((union, -scores))
    return union[order], scores[order]


def weighted_sum(
    chunk_ids: NDArray[np.int64], channels: Sequence[tuple[NDArray[np.float64], float]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Fuses scores by the weighted mean of what min-max normalisation makes of them.

    Every channel scores every candidate, whoever found it: taken over each channel's own list instead, NDCG@10 of equal
    weights on scifact with MiniLM falls from .733 to .70. So `chunk_ids` are the candidates of all channels, each once,
    and each channel has scores of the same shape (n_union,), NaN where it has none, and a weight. The fused scores are
    from 0 to 1, best first, ties by chunk id.

    Source: Fox and Shaw, "Combination of multiple searches", TREC-2, 1994 (CombSUM), with the normalisation of Lee,
    "Analyses of multiple evidence combination", SIGIR 1997.
    """
    fused = np.zeros(len(chunk_ids), dtype=np.float64)
    total = sum(weight for _, weight in channels)
    if total > 0:
        for scores, weight in channels:
            fused += weight / total * min_max(scores)
    fused = np.minimum(fused, 1.0)  # the shares of the weights may sum to a little more
    order = np.lexsort((chunk_ids, -fused))
    return chunk_ids[order], fused[order]


def min_max(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores moved to the range from 0 to 1, of each row by itself; shape (..., n), NaN becomes 0.

    Where all are equal they become 1, so that what a channel has found stays above what it has not (as in OpenSearch's
    `MinMaxScoreNormalizationTechnique`); but 0 if they are not above 0, which is BM25's word for no term in common.
    """
    known = ~np.isnan(scores)
    low = scores.min(axis=-1, keepdims=True, where=known, initial=np.inf)
    high = scores.max(axis=-1, keepdims=True, where=known, initial=-np.inf)
    span = np.where(high > low, high - low, 1.0)
    return np.where(known, np.where(high > low, (scores - low) / span, high > 0), 0.0)


# N-grams find what only looks alike, so they weigh less than the words that they stand in for.
LEXICAL_SHARE = 0.5


# Few chunks have questions, so the others must not count as disagreeing with a channel that cannot know them; likewise what
# is found elsewhere, by channels with weights of their own.
QUESTION_CHANNELS = frozenset({"question", "question_bm25"})


# So many of a knowledge base come first for a question that the query equals.
MOST_PROMOTED = 2


class _Fused(NamedTuple):
    """A knowledge base's chunk before its place among all is known; sorts as candidates do."""

    behind: float  # minus the share of the best score that its base's fusion could give with the channels that answered
    below: float  # minus the fused score
    place: int  # of the knowledge base
    chunk_id: int
    kb_id: int
    agreement: float
    ranks: dict[str, int]
    scores: dict[str, float]


def fuse(
    scopes: Sequence[Scope],
    rankings: Sequence[Ranking],
    passages: Mapping[int, Passage],
    depth: int | None,
    questions: Mapping[int, str] = MappingProxyType({}),
) -> list[Candidate]:
    """The candidates of all knowledge bases: by fused score, then by the order of the bases, then by chunk id.

    Before them come those that are `promoted` for a question which the query equals: `questions` holds it by chunk id.

    Fused scores are compared as shares of the best possible one: those of another fusion, other weights or fewer channels
    are of another size, and the base with the smaller ones would have no candidate among the first.

    Each scope has its own fusion and weights; rankings are one a knowledge base and channel. Candidates after the first
    `depth` are cut; None: none is.
    """
    fused: list[_Fused] = []
    for place, scope in enumerate(scopes):
        own = [ranking for ranking in rankings if ranking.kb_id == scope.kb_id]
        if own:
            fused += _fuse_one(place, scope.config, own)
    fused.sort()
    if questions:
        first = promoted(fused, questions)
        fused.sort(key=lambda each: each.chunk_id not in first)
    candidates = []
    for rank, (_behind, below, _place, chunk_id, kb_id, agreement, ranks, scores) in enumerate(fused, start=1):
        ranks["fused"], scores["fused"] = rank, -below
        cut_by = None if depth is None or rank <= depth else CutBy.FUSION
        question = questions.get(chunk_id, "")
        candidates.append(
            Candidate(chunk_id, kb_id, ranks, scores, agreement, passages[chunk_id], question=question, cut_by=cut_by)
        )
    return candidates


def promoted(chunks: Iterable[_Fused | Candidate], equal: Container[int]) -> set[int]:
    """Of the chunks with a question that the query equals, best first, the first of each knowledge base.

    The same question at many chunks must not take the results over, nor those of one knowledge base another's.
    """
    found: dict[int, list[int]] = {}
    for each in chunks:
        if each.chunk_id in equal:
            found.setdefault(each.kb_id, []).append(each.chunk_id)
    return {chunk_id for chunk_ids in found.values() for chunk_id in chunk_ids[:MOST_PROMOTED]}


def _fuse_one(place: int, config: RetrievalConfig, rankings: Sequence[Ranking]) -> list[_Fused]:
    exact: dict[str, NDArray[np.float64]] = {}
    union = np.empty(0, dtype=np.int64)
    weights = channel_weights(config, {ranking.channel for ranking in rankings})
    if config.fusion == "weighted":
        union = np.unique(np.concatenate([ranking.chunk_ids for ranking in rankings]))
        exact = {ranking.channel: _scores_of(ranking, union) for ranking in rankings}
        chunk_ids, scores = weighted_sum(union, [(exact[each.channel], _weight(each, weights)) for each in rankings])
        total = sum(_weight(each, weights) for each in rankings)
        of_questions = sum(_weight(each, weights) for each in rankings if each.channel in QUESTION_CHANNELS)
        best = most = 1.0 - of_questions / (total or 1.0)
    else:
        chunk_ids, scores = reciprocal_rank_fusion(
            [(ranking.chunk_ids, _weight(ranking, weights)) for ranking in rankings], config.rrf_k
        )
        agreeing = [each for each in rankings if each.channel not in QUESTION_CHANNELS and each.weight is None]
        # What a chunk scores that each of them puts first.
        best = sum(_weight(each, weights) for each in agreeing or rankings) / (config.rrf_k + 1)
        # N-grams alone stay as far behind words as their weight says.
        most = max(best, config.keyword_weight / (config.rrf_k + 1))
    ranks: dict[int, dict[str, int]] = {chunk_id: {} for chunk_id in chunk_ids.tolist()}
    found: dict[int, dict[str, float]] = {chunk_id: {} for chunk_id in ranks}
    for ranking in rankings:
        for rank, chunk_id in enumerate(ranking.chunk_ids.tolist(), start=1):
            ranks[chunk_id][ranking.channel] = rank
        ids, known = (union, exact[ranking.channel]) if exact else (ranking.chunk_ids, ranking.scores)
        for chunk_id, score in zip(ids.tolist(), known.tolist(), strict=True):
            # A chunk that stands for its double in another knowledge base has a rank, and no score.
            if not isnan(score):
                found[chunk_id][ranking.channel] = score
    kb_id, most, best = rankings[0].kb_id, most or 1.0, best or 1.0  # where all weights are 0, so are the scores
    own_best = {} if config.fusion == "weighted" else _best_elsewhere(rankings, config.rrf_k)
    return [
        _Fused(
            -score / most,
            -score,
            place,
            chunk_id,
            kb_id,
            min(1.0, score / own_best.get(chunk_id, best)),
            ranks[chunk_id],
            found[chunk_id],
        )
        for chunk_id, score in zip(ranks, scores.tolist(), strict=True)
    ]


def _best_elsewhere(rankings: Sequence[Ranking], rrf_k: int) -> dict[int, float]:
    """The best fused score that what was found elsewhere could have: no channel of chunks can know it."""
    best: dict[int, float] = {}
    for ranking in rankings:
        if ranking.weight:
            for key in ranking.passages:
                best[key] = best.get(key, 0.0) + ranking.weight / (rrf_k + 1)
    return best


def channel_weights(config: RetrievalConfig, answered: Container[str] = ()) -> dict[str, float]:
    """The weight of each channel under the fusion in force; a stand-in has that of the channel it stands in for.

    What questions count in all is shared by their two channels as passages' two weights are to each other. Where characters
    have answered, words count in them, and not once more by themselves.
    """
    if config.fusion == "weighted":
        vector, keyword = config.hybrid_vector_weight, config.hybrid_text_weight
    else:
        vector, keyword = config.vector_weight, config.keyword_weight
    return {
        "vector": vector,
        "question": config.question_weight * vector / (vector + keyword),
        "question_bm25": config.question_weight * keyword / (vector + keyword),
        "bm25": 0.0 if CHARACTERS in answered else keyword,
        CHARACTERS: keyword,
        "fts": keyword,
        "lexical": keyword * LEXICAL_SHARE,
    }


def _weight(ranking: Ranking, weights: Mapping[str, float]) -> float:
    return weights[ranking.channel] if ranking.weight is None else ranking.weight


def _scores_of(ranking: Ranking, union: NDArray[np.int64]) -> NDArray[np.float64]:
    if ranking.score is not None:
        return ranking.score(union)
    scores = np.full(union.size, np.nan)
    scores[np.searchsorted(union, ranking.chunk_ids)] = ranking.scores
    return scores


def match_terms(
    analysis: Analysis, candidates: Sequence[Candidate], lexicons: Mapping[int, Lexicon]
) -> list[Candidate]:
    """Notes which terms of the query, or of another name of its concepts, each candidate holds."""
    held: dict[int, tuple[str, ...]] = {}
    for kb_id, lexicon in lexicons.items():
        terms = tuple(dict.fromkeys(analysis.search_tokens(kb_id)))
        own = [candidate.chunk_id for candidate in candidates if candidate.kb_id == kb_id]
        holds = lexicon.saturation(hash_terms(terms), np.array(own, dtype=np.int64)) > 0
        held |= {chunk_id: tuple(compress(terms, row)) for chunk_id, row in zip(own, holds.tolist(), strict=True)}
    return [c._replace(matched_terms=held.get(c.chunk_id, ())) for c in candidates]
