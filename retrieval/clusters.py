"""Texts that ask nearly the same, together: by their terms and, where there are any, by their vectors."""

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Cosines from which two texts belong together; those of vectors are higher for texts that only share a subject.
BY_TERMS: Final = 0.6
BY_VECTORS: Final = 0.9
FEATURES: Final = 1 << 12


def clusters(
    terms: Sequence[Sequence[str]],
    weights: Sequence[int],
    vectors: Sequence[NDArray[np.float32] | None] = (),
) -> list[list[int]]:
    """The places of texts in groups, the heaviest group first and in it the heaviest text, about which the others are.

    Each text, from the heaviest on, joins the group whose first one is nearest to it, or begins one. A term counts by its
    inverse document frequency, ln(1 + n / df); terms are hashed to FEATURES columns. O(n * groups) in time.

    Args:
        terms: of each text; one without terms stays by itself.
        weights: how often each was asked.
        vectors: of each text, of unit length and of one model; None: not known. Empty: of none.
    """
    # Rows of unit length, or of zeros where there are no terms; shape (n_texts, FEATURES).
    by_terms = np.zeros((len(terms), FEATURES), np.float32)
    seen: Counter[str] = Counter(term for each in terms for term in set(each))
    for row, each in zip(by_terms, terms, strict=True):
        for term in set(each):
            row[zlib.crc32(term.encode()) % FEATURES] += np.log1p(len(terms) / seen[term])
    lengths = np.linalg.norm(by_terms, axis=1, keepdims=True)
    by_terms /= np.where(lengths == 0, 1, lengths)
    by_vectors = _rows(vectors) if any(each is not None for each in vectors) else None
    order = sorted(range(len(terms)), key=lambda place: (-weights[place], place))
    groups: list[list[int]] = []
    leaders: list[int] = []
    for place in order:
        if leaders:
            near = by_terms[leaders] @ by_terms[place] / BY_TERMS
            if by_vectors is not None:
                near = np.maximum(near, by_vectors[leaders] @ by_vectors[place] / BY_VECTORS)
            best = int(near.argmax())
            if near[best] >= 1:
                groups[best].append(place)
                continue
        leaders.append(place)
        groups.append([place])
    return sorted(groups, key=lambda group: (-sum(weights[place] for place in group), group[0]))


def _rows(vectors: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32]:
    """Unknown ones, and those of another dimension than the first, are zeros and so near to nothing."""
    size = next(each.size for each in vectors if each is not None)
    return np.stack(
        [each if each is not None and each.size == size else np.zeros(size, np.float32) for each in vectors]
    ).astype(np.float32)
