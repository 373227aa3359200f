"""A model-free embedder: signed feature hashing of words and character n-grams.

Feature hashing after Weinberger et al., "Feature Hashing for Large Scale Multitask Learning" (2009). It matches
characters, not meanings: a last resort that needs no download, chosen for a knowledge base knowingly.

An n-gram's hash is a polynomial over its mixed code points modulo 2^64, finished with splitmix64's mixer (Steele et al.,
2014). All constants are fixed and all integers unsigned, so every process and platform makes the same features; NumPy
hashes all n-grams of a text at once, which a digest per n-gram could not.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from retrieval.characters import (
    code_points,
    estimate_token_ends,
    estimate_tokens,
    is_cjk,
    is_word_character,
    normal_form,
)

HASHING_MODEL_ID = "hashing"
DIMENSION = 1024

_BUCKET_SHIFT = np.uint64(54)  # the top 10 bits of a hash choose one of the 1,024 dimensions, the lowest its sign
_MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: no power of it is lost modulo 2^64
_CJK_WEIGHTS = (1.0, 1.0, 0.3)  # uni-, bi- and trigrams: best of those tried on cmrc2018 and xquad-zh
_WORD_WEIGHT = 0.5  # these three: best of those tried on scifact and xquad-en together
_CHAR_GRAM_SIZES = (3, 4)
_CHAR_GRAM_WEIGHT = 1.0
_CJK_SALT, _WORD_SALT, _CHAR_GRAM_SALT = 0x10, 0x20, 0x30

_BOUNDARY = np.uint64(0)

Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]


class HashingEmbedder:
    """Hashes CJK character n-grams, Latin words and their inner n-grams into 1,024 signed dimensions, L2-normalised."""

    model_id = HASHING_MODEL_ID
    dimension = DIMENSION
    is_loaded = True
    count_tokens = staticmethod(estimate_tokens)
    token_ends = staticmethod(estimate_token_ends)

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(texts), DIMENSION), dtype=np.float32)
        for row, text in enumerate(texts):
            vectors[row] = _embed(text)
        return vectors

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return _embed(text)


def _embed(text: str) -> NDArray[np.float32]:
    vector = np.zeros(DIMENSION)
    for hashes, weight in _features(normal_form("NFKC", text).casefold()):
        distinct, counts = np.unique(hashes, return_counts=True)
        signs = 1.0 - 2.0 * (distinct & np.uint64(1))
        buckets = (distinct >> _BUCKET_SHIFT).astype(np.intp)
        vector += np.bincount(buckets, weights=weight * signs * (1.0 + np.log(counts)), minlength=DIMENSION)
    norm = float(np.linalg.norm(vector))
    if norm == 0.0:  # no feature, or features that cancel: a cosine needs a direction all the same
        vector[0] = norm = 1.0
    return np.asarray(vector / norm, dtype=np.float32)


def _features(text: str) -> Iterator[tuple[Hashes, float]]:
    """Yields, for each kind of feature, its hashes (repeated as often as it occurs) and its weight."""
    points = code_points(text)
    cjk = is_cjk(points)
    mixed = _mix(points.astype(np.uint64))
    if cjk.any():
        for size, weight in enumerate(_CJK_WEIGHTS, start=1):
            yield _cjk_grams(mixed, cjk, size), weight
    letters = is_word_character(text) & ~cjk
    if letters.any():
        yield _words(mixed, letters), _WORD_WEIGHT
        for size in _CHAR_GRAM_SIZES:
            yield _char_grams(mixed, letters, size), _CHAR_GRAM_WEIGHT


def _cjk_grams(mixed: Hashes, cjk: Mask, size: int) -> Hashes:
    """Hashes of `size` neighbouring CJK characters; punctuation and other scripts end a run."""
    if len(cjk) < size:
        return mixed[:0]
    inside = sliding_window_view(cjk, size).all(axis=1)
    return _mix(_polynomial(mixed, size)[inside] + np.uint64(_CJK_SALT + size))


def _words(mixed: Hashes, letters: Mask) -> Hashes:
    """One hash for each run of letters: the polynomial over all its characters."""
    starts = np.flatnonzero(letters & ~np.concatenate(([False], letters[:-1])))
    lengths = np.diff(np.append(starts, len(letters)))
    positions = np.arange(starts[0], len(letters)) - np.repeat(starts, lengths)
    terms = np.where(letters, mixed, np.uint64(0))[starts[0] :] * _powers(int(lengths.max()))[positions]
    return _mix(np.add.reduceat(terms, starts - starts[0]) + np.uint64(_WORD_SALT))


def _char_grams(mixed: Hashes, letters: Mask, size: int) -> Hashes:
    """Hashes of `size` characters within a word, whose two ends count as one boundary character each."""
    bounded = np.concatenate(([False], letters, [False]))
    values = np.where(bounded, np.concatenate((mixed[:1], mixed, mixed[:1])), _BOUNDARY)
    if len(values) < size:
        return mixed[:0]
    inside = sliding_window_view(bounded[1:-1], size - 2).all(axis=1)
    return _mix(_polynomial(values, size)[inside] + np.uint64(_CHAR_GRAM_SALT + size))


def _polynomial(values: Hashes, size: int) -> Hashes:
    """sum(values[i + k] * M^k for k < size) for every i, shape (n - size + 1,)."""
    count = len(values) - size + 1
    total = values[:count].copy()
    for offset, power in enumerate(_powers(size)[1:], start=1):
        total += values[offset : offset + count] * power
    return total


def _powers(count: int) -> Hashes:
    factors = np.full(count, _MULTIPLIER, dtype=np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


def _mix(values: Hashes) -> Hashes:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    mixed = values + np.uint64(_MULTIPLIER)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
