"""The form in which a chunk's terms are stored: 64-bit hashes and counts, so that a rebuild never tokenises.

Character n-grams: what words share when they are misspelt, cut differently or unknown to any dictionary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Self

import numpy as np
from numpy.typing import NDArray

from retrieval.characters import CJK, LATIN
from retrieval.errors import RetrievalError
from retrieval.tokenize import normalize


@lru_cache(maxsize=65_536)
def term_hash(token: str) -> int:
    """64 bits of BLAKE2b: the same in every process and on every platform, which `hash()` is not."""
    return int.from_bytes(blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def hash_terms(tokens: Sequence[str]) -> NDArray[np.uint64]:
    """The hash of each token, shape `(len(tokens),)`; order and repeats are kept."""
    return np.fromiter(map(term_hash, tokens), dtype=np.uint64, count=len(tokens))


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """One chunk's terms as they are stored: hashes ascending and unique, how often each occurs, tokens in all.

    Attributes:
        lexemes: the terms themselves and whatever else full-text search should find the chunk by; not part of the index.
    """

    terms: NDArray[np.uint64]
    frequencies: NDArray[np.uint32]
    length: int
    lexemes: tuple[str, ...] = ()

    @property
    def terms_bytes(self) -> bytes:
        """Little-endian uint64."""
        return self.terms.astype("<u8", copy=False).tobytes()

    @property
    def frequencies_bytes(self) -> bytes:
        """Little-endian uint32."""
        return self.frequencies.astype("<u4", copy=False).tobytes()

    @classmethod
    def from_bytes(cls, terms: bytes, frequencies: bytes, length: int) -> Self:
        """Read what `terms_bytes` and `frequencies_bytes` wrote.

        Raises:
            RetrievalError: The two do not belong together.
        """
        if len(terms) % 8 or len(terms) != 2 * len(frequencies):
            raise RetrievalError("stored postings are damaged: index the document again")
        return cls(np.frombuffer(terms, "<u8"), np.frombuffer(frequencies, "<u4"), length)


def count_postings(tokens: Sequence[str]) -> Postings:
    terms, frequencies = np.unique(hash_terms(tokens), return_counts=True)
    return Postings(terms, frequencies.astype(np.uint32), len(tokens))


_RUNS = re.compile(rf"([{CJK}]+)|{LATIN}+")


def ngrams(text: str) -> list[str]:
    """The distinct n-grams of a text in order of appearance: NFKC, case folded.

    Pairs of neighbouring Chinese, Japanese and Korean characters, and three letters or digits in a row of words in any
    other script; a shorter word is one itself, a single character of the former is none.

    Source: Foo, Li, "Chinese word segmentation and its effect on information retrieval", 2004, for bigrams; McNamee,
    Mayfield, "Character n-gram tokenization for European language text retrieval", 2004.
    """
    folded = normalize(text).casefold()
    return list(dict.fromkeys(chain.from_iterable(map(_of_run, _RUNS.finditer(folded)))))


def _of_run(run: re.Match[str]) -> list[str]:
    characters = run[0]
    size = 2 if run[1] else 3
    if len(characters) < size:
        return [] if run[1] else [characters]
    return [characters[start : start + size] for start in range(len(characters) - size + 1)]


def inverse_document_frequency(counts: NDArray[np.int64], chunk_count: int) -> NDArray[np.float64]:
    """How much a term tells, by the number of chunks that hold it: positive always, shape (n_terms,).

    Source: Lucene's BM25Similarity, log(1 + (N - n + 0.5) / (n + 0.5)).
    """
    return np.log1p((np.maximum(chunk_count, counts) - counts + 0.5) / (counts + 0.5))
