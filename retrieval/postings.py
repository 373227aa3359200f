"""The form in which a chunk's terms are stored: 64-bit hashes and counts, so that a rebuild never tokenises."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import RetrievalError


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
    """Count the tokens of one chunk."""
    terms, frequencies = np.unique(hash_terms(tokens), return_counts=True)
    return Postings(terms, frequencies.astype(np.uint32), len(tokens))
