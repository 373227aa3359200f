from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class WeightedRanking:
    """Chunk ids, best first, shape (n,), and the weight of their channel."""

    chunk_ids: NDArray[np.int64]
    weight: float


def reciprocal_rank_fusion(
    rankings: Sequence[WeightedRanking], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Fuses rankings by the sum of weight / (k + rank), rank from 1.

    Args:
        rankings: each without repeats.
        k: damps the lead of the first ranks; 60 in the source.

    Returns:
        Chunk ids and fused scores, shape (n_union,), best first, ties by chunk id.

    Source: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual rank learning
    methods", SIGIR 2009; the weights are ours.
    """
    if not rankings:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)
    ids = np.concatenate([ranking.chunk_ids for ranking in rankings])
    shares = np.concatenate([ranking.weight / (k + np.arange(1, len(ranking.chunk_ids) + 1)) for ranking in rankings])
    union, positions = np.unique(ids, return_inverse=True)
    scores = np.bincount(positions, weights=shares, minlength=len(union)).astype(np.float64)
    order = np.lexsort((union, -scores))
    return union[order], scores[order]


def best_fused_score(rankings: Sequence[WeightedRanking], k: int) -> float:
    """The score of a chunk that every ranking puts first."""
    return sum(ranking.weight for ranking in rankings) / (k + 1)
