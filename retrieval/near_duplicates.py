"""Texts that say almost the same, found by their terms: MinHash signatures, banded, and the exact share for what is alike.

Sources: Broder, "On the resemblance and containment of documents", 1997; the bands are those of Leskovec, Rajaraman,
Ullman, "Mining of Massive Datasets", chapter 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

BANDS: Final = 14
ROWS: Final = 4
"""Two texts with nine of ten terms in common are a candidate pair with probability 0.9999997, with eight 0.999, with half 0.6."""
NEIGHBOURS: Final = 8
"""Of texts that share a band each is paired with so many that follow it: a phrase of all texts makes no square of them."""
MARGIN: Final = 0.2
"""What is found in common of two sketches is off by so much in one of ten thousand pairs that have 0.8 in common."""
_PAIRS_AT_ONCE: Final = 100_000
_HASHES: Final = np.random.default_rng(20_260_101).integers(
    1, 2**63, size=(2, BANDS * ROWS), dtype=np.uint64
) | np.uint64(1)
_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)

Ids = NDArray[np.int64]
Terms = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Sketches:
    """What is kept of texts, a row each, to find those that are alike.

    Attributes:
        keys: shape (n_texts, BANDS), uint64: texts that share one in its column are a candidate pair.
        marks: shape (n_texts, BANDS * ROWS), uint8: the share that two texts have in common is about that of their terms.
    """

    keys: NDArray[np.uint64]
    marks: NDArray[np.uint8]

    @classmethod
    def of(cls, terms: Terms, starts: Ids) -> Self:
        """Sketches texts.

        Args:
            terms: the 64-bit hashes of all texts' terms, one text after another.
            starts: shape (n_texts,): where the terms of each begin; none is empty.
        """
        keys = np.zeros((len(starts), BANDS), dtype=np.uint64)
        marks = np.empty((len(starts), BANDS * ROWS), dtype=np.uint8)
        for each, (mask, factor) in enumerate(_HASHES.T):
            band = each // ROWS
            least = _least(terms, starts, mask, factor)
            marks[:, each] = least >> np.uint64(56) ^ least
            keys[:, band] = (keys[:, band] ^ least) * _MIX
            keys[:, band] ^= keys[:, band] >> np.uint64(29)
        return cls(keys, marks)

    @classmethod
    def joined(cls, parts: "Sequence[Sketches]") -> Self:
        return cls(np.concatenate([part.keys for part in parts]), np.concatenate([part.marks for part in parts]))


def _least(terms: Terms, starts: Ids, mask: np.uint64, factor: np.uint64) -> Terms:
    """The least value of each text's terms under one hash function, shape (n_texts,)."""
    if not len(starts):
        return np.empty(0, dtype=np.uint64)
    hashed = (terms ^ mask) * factor
    hashed ^= hashed >> np.uint64(32)
    return np.minimum.reduceat(hashed * _MIX, starts)


def candidate_pairs(sketches: Sketches, alike: float) -> Ids:
    """Pairs of texts that may have at least a share of their terms in common; few that have are missing.

    Returns:
        Shape (n_pairs, 2): positions, the lower first, each pair once.
    """
    pairs = _sharing_a_key(sketches.keys)
    least = alike - MARGIN
    batches = np.split(pairs, range(_PAIRS_AT_ONCE, len(pairs), _PAIRS_AT_ONCE))
    return np.concatenate([batch[_common(sketches.marks, batch) >= least] for batch in batches])


def _common(marks: NDArray[np.uint8], pairs: Ids) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = (marks[pairs[:, 0]] == marks[pairs[:, 1]]).mean(axis=1)
    return shares


def _sharing_a_key(keys: NDArray[np.uint64]) -> Ids:
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
    labels = np.arange(count)
    first, second = pairs.T
    while True:
        # Each takes the lowest label around it, and whoever bore that one's label follows: few rounds, however long a chain.
        before = labels.copy()
        lowest = np.minimum(before[first], before[second])
        for bearers in (first, second, before[first], before[second]):
            np.minimum.at(labels, bearers, lowest)
        labels = labels[labels]
        if np.array_equal(labels, before):
            break
    members = np.unique(pairs)
    if not members.size:
        return []
    members = members[np.argsort(labels[members], kind="stable")]
    return np.split(members, np.flatnonzero(np.diff(labels[members])) + 1)
