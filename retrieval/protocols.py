"""The seams of the library: one protocol for each part that can be had in more than one way."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retrieval.types import Analysis, Candidate, Passage, Ranking


class Tokenizer(Protocol):
    @property
    def id(self) -> str: ...

    def __call__(self, text: str) -> list[str]:
        """The terms of a text in order, repeats kept."""
        ...

    def simplify(self, text: str) -> str:
        """A normalised text in the characters that the tokenizer reads: traditional ones may become simplified ones."""
        ...


class Embedder(Protocol):
    """A model that maps text to L2-normalised vectors, so that a dot product is the cosine."""

    @property
    def model_id(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns vectors of shape (len(texts), dimension)."""
        ...

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Returns a vector of shape (dimension,)."""
        ...

    def count_tokens(self, text: str) -> int: ...


class Lexicon(Protocol):
    """Term statistics of one knowledge base."""

    def idf(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Returns shape (n_terms,)."""
        ...

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Returns shape (n_chunks, n_terms)."""
        ...


class Channel(Protocol):
    """One way of finding candidates in one knowledge base."""

    @property
    def name(self) -> str: ...

    @property
    def kb_id(self) -> int: ...

    @property
    def in_memory(self) -> bool:
        """Whether a search needs no other server: the request's own thread runs it then."""
        ...

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        """Returns at most k chunks, best first.

        Args:
            analysis: the query.
            k: how many at most.
            deadline: of `time.monotonic`; who would wait longer raises ChannelUnavailable.

        Raises:
            ChannelUnavailable: the channel cannot answer; the search goes on without it.
        """
        ...


class VectorStore(Protocol):
    def search(
        self, kb_id: int, model_id: str, vector: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns chunk ids and cosine similarities, best first, ties by chunk id."""
        ...


class PassageStore(Protocol):
    def fetch(self, chunk_ids: Sequence[int]) -> Mapping[int, Passage]:
        """Returns the passages that exist and that the caller may see."""
        ...


class Reranker(Protocol):
    @property
    def scale(self) -> str: ...

    def scores(
        self, analysis: Analysis, candidates: Sequence[Candidate], lexicons: Mapping[int, Lexicon]
    ) -> NDArray[np.float64]:
        """Returns shape (n_candidates,), higher is better, on this reranker's scale."""
        ...
