"""Texts that say almost the same, found by their terms: MinHash signatures, banded, and the exact share for what is alike.

Sources: Broder, "On the resemblance and containment of documents", 1997; the bands are those of Leskovec, Rajaraman,
Ullman, "Mining of Massive Datasets", chapter 3.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

BANDS: Final = 14
ROWS: Final = 4
"""Two texts with nine of ten terms in common are a candidate pair with probability 0.9999997, with eight 0.999, with half 0.6."""
NEIGHBOURS: Final = 8
"""Of texts that share a band each is paired with so many that follow it: a phrase of all texts makes no square of them."""
_PER_HASH: Final = np.random.default_rng(20_260_101).integers(1, 2**63, size=(2, BANDS * ROWS), dtype=np.uint64)

Ids = NDArray[np.int64]
Terms = NDArray[np.uint64]


def band_keys(terms: Terms, starts: NDArray[np.int64]) -> Terms:
    """Texts that share a key in one column have a quarter or more of their terms in common, as a rule.

    Args:
        terms: the 64-bit hashes of all texts' terms, one text after another.
        starts: shape (n_texts,): where the terms of each begin; none is empty.

    Returns:
        Shape (n_texts, BANDS).
    """
    keys = np.empty((len(starts), BANDS), dtype=np.uint64)
    masks, factors = _PER_HASH
    for band in range(BANDS):
        key = np.zeros(len(starts), dtype=np.uint64)
        for each in range(band * ROWS, (band + 1) * ROWS):
            hashed = (terms ^ masks[each]) * (factors[each] | np.uint64(1))
            least = np.minimum.reduceat(hashed, starts)
            key = (key ^ least) * np.uint64(0x9E37_79B9_7F4A_7C15)
            key ^= key >> np.uint64(29)
        keys[:, band] = key
    return keys


def candidate_pairs(keys: Terms) -> Ids:
    """Which texts to compare.

    Args:
        keys: shape (n_texts, BANDS).

    Returns:
        Shape (n_pairs, 2): positions, the lower first, each pair once.
    """
    found = [np.empty(0, dtype=np.int64)]
    count = len(keys)
    for band in range(keys.shape[1]):
        order = np.argsort(keys[:, band], kind="stable")
        key = keys[order, band]
        for distance in range(1, min(NEIGHBOURS, count - 1) + 1):
            same = np.flatnonzero(key[distance:] == key[:-distance])
            if not same.size:
                break
            # Positions within a key ascend, since the sort is stable.
            found.append(order[same] * count + order[same + distance])
    pairs = np.unique(np.concatenate(found))
    return np.stack([pairs // max(count, 1), pairs % max(count, 1)], axis=1)


def shared_shares(first: Sequence[Terms], second: Sequence[Terms]) -> NDArray[np.float64]:
    """The Jaccard similarity of pairs of sets of terms: shared ones as a share of all.

    Args:
        first: the terms of one of each pair, each once.
        second: likewise, of the other.
    """
    sizes = np.array([[len(one), len(other)] for one, other in zip(first, second, strict=True)], dtype=np.int64)
    if not sizes.size:
        return np.empty(0)
    pair = np.repeat(np.concatenate([np.arange(len(sizes))] * 2), sizes.T.reshape(-1))
    terms = np.concatenate([*first, *second])
    order = np.lexsort((terms, pair))
    pair, terms = pair[order], terms[order]
    is_shared = (pair[1:] == pair[:-1]) & (terms[1:] == terms[:-1])
    shared = np.bincount(pair[1:][is_shared], minlength=len(sizes))
    shares: NDArray[np.float64] = shared / np.maximum(sizes.sum(axis=1) - shared, 1)
    return shares


def groups_of(pairs: Ids, count: int) -> list[Ids]:
    """What pairs connect.

    Args:
        pairs: shape (n_pairs, 2): positions.
        count: of all texts.

    Returns:
        The positions of each group of two or more, ascending.
    """
    if not len(pairs):
        return []
    graph = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    members = np.unique(pairs)
    members = members[np.argsort(labels[members], kind="stable")]
    return np.split(members, np.flatnonzero(np.diff(labels[members])) + 1)
