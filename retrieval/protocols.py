"""The seams of the library, one protocol for each part that has more than one implementation, and the knowledge bases of a search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retrieval.config import RetrievalConfig
from retrieval.errors import Degradation
from retrieval.selection import ScoreScale
from retrieval.types import Analysis, ConceptMention, ExternalHit, Fact, Passage, Ranking, RerankJob


class Tokenizer(Protocol):
    @property
    def id(self) -> str: ...

    def __call__(self, text: str) -> list[str]:
        """The terms of a text in order, repeats kept."""

    def simplify(self, text: str) -> str:
        """A normalised text in the characters that the tokenizer reads: traditional ones may become simplified ones."""


class Embedder(Protocol):
    """A model that maps text to L2-normalised vectors, so that a dot product is the cosine."""

    @property
    def model_id(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns vectors of shape (len(texts), dimension)."""

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Returns a vector of shape (dimension,)."""

    def count_tokens(self, text: str) -> int: ...

    def token_ends(self, text: str) -> Sequence[int]:
        """Where each of the tokens that `count_tokens` counts ends in the text, ascending."""

    @property
    def is_loaded(self) -> bool:
        """Whether the next call needs not load the model first."""


class Channel(Protocol):
    """One way of finding candidates in one knowledge base."""

    @property
    def name(self) -> str: ...

    @property
    def kb_id(self) -> int: ...

    @property
    def in_memory(self) -> bool:
        """Whether a search needs no other server: the request's own thread runs it then."""

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        """Returns at most k chunks, best first.

        Raises ChannelUnavailable where it cannot answer or would wait past the deadline (of `time.monotonic`); the
        search goes on without it.
        """


class QueryVectors(Protocol):
    """The vectors of queries, and of texts that are compared with them, in the space of one model."""

    @property
    def model_id(self) -> str: ...

    def embed(self, text: str, deadline: float) -> tuple[NDArray[np.float32], str]:
        """Returns a vector of shape (dimension,) and where it came from.

        Raises ChannelUnavailable where the model cannot answer, or not by the deadline (of `time.monotonic`).
        """

    def similarities(self, query: str, texts: Sequence[str], deadline: float) -> NDArray[np.float64]:
        """Returns the cosines of a query and texts that are no chunks, shape (n_texts,); raises as `embed`."""


class VectorStore(Protocol):
    """Vectors of chunks by knowledge base, model and kind ("content", "keywords", "question")."""

    def search(
        self,
        kb_id: int,
        model_id: str,
        vector: NDArray[np.float32],
        k: int,
        *,
        kind: str = "content",
        only: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns at most k chunk ids, each once, and cosine similarities, best first, ties by chunk id.

        The vector has shape (dimension,). `only` holds the ids of the chunks that may be found, ascending; None: all.
        Raises ChannelUnavailable with one of the codes STORE_... where it cannot answer now; another store of the same
        vectors may.
        """

    def similarities(
        self,
        kb_id: int,
        model_id: str,
        vector: NDArray[np.float32],
        chunk_ids: NDArray[np.int64],
        *,
        kind: str = "content",
    ) -> NDArray[np.float64]:
        """Returns exact cosine similarities, shape (n_chunks,), NaN for a chunk without such a vector."""


class KeywordStore(Protocol):
    """Keyword search by a server that cuts texts and queries into terms by itself, with scores on its own scale."""

    @property
    def name(self) -> str:
        """Of the server's kind, for the trace."""

    def search(
        self, kb_id: int, text: str, k: int, *, only: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """Returns chunks that hold any of the text's terms and their scores, best first, ties by chunk id.

        None where it has not yet taken in every change of the knowledge base: what knows them all is to answer. Raises
        ChannelUnavailable with one of the codes STORE_... where it cannot answer.
        """

    def scores(self, kb_id: int, text: str, chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the scores of chunks, shape (n_chunks,), 0 for one that holds none of the terms; raises as `search`."""


class TextStore(Protocol):
    def search_terms(
        self, kb_id: int, tokenizer_id: str, terms: Sequence[str], k: int, *, only: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns chunks that hold any of the terms and their scores, best first, ties by chunk id."""

    def search_ngrams(
        self, kb_id: int, tokenizer_id: str, text: str, k: int, *, only: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns chunks and the share of the text's character n-grams that they hold, best first, ties by chunk id."""


class ExternalProvider(Protocol):
    """A search elsewhere whose results join those of a knowledge base."""

    @property
    def kind(self) -> str:
        """As in `Origin`."""

    @property
    def name(self) -> str:
        """Of the source, for provenance and degradations."""

    def search(self, analysis: Analysis, k: int, deadline: float) -> Sequence[ExternalHit]:
        """Returns at most k results, best first, by the deadline (of `time.monotonic`); only the query's text is sent.

        Raises ChannelUnavailable with one of the codes EXTERNAL_... where it cannot answer; the search goes on without
        it.
        """


class PassageStore(Protocol):
    def fetch(self, chunk_ids: Sequence[int]) -> Mapping[int, Passage]:
        """Returns the passages that exist and that the caller may see."""

    def neighbours(self, passages: Sequence[Passage], count: int) -> Mapping[int, tuple[Passage, ...]]:
        """Returns, by chunk id, up to `count` chunks before and after each passage in its document, in reading order."""

    def parents(self, passages: Sequence[Passage]) -> Mapping[int, Passage]:
        """Returns, by chunk id, each passage that was cut from a longer one with that in its place."""


class ConceptStore(Protocol):
    def mentions(self, kb_ids: Sequence[int], text: str) -> tuple[ConceptMention, ...]:
        """Returns the concepts of the knowledge bases whose name, synonym or abbreviation stands in the text.

        The longest mention wins where two overlap.
        """


class FactStore(Protocol):
    def facts(self, kb_ids: Sequence[int], text: str, names: Sequence[str], limit: int) -> tuple[Fact, ...]:
        """Returns facts whose subject or object stands in the text or among the names."""


class Reranker(Protocol):
    @property
    def name(self) -> str:
        """As in `RetrievalConfig.rerankers`."""

    @property
    def scale(self) -> ScoreScale: ...

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:
        """Returns shape (n_candidates,), higher is better, on this reranker's scale.

        Raises RerankerUnavailable where it cannot score them, or not by the deadline (of `time.monotonic`), and
        RerankerNotApplicable where it is of no use for these candidates, which is no fault.
        """


@dataclass(frozen=True, slots=True)
class Fallback:
    """A channel that is searched only where others, which it names, could not do their part."""

    channel: Channel
    failed: frozenset[str] = frozenset()  # where one of these has failed
    short: frozenset[str] = frozenset()  # where these together found fewer chunks than `below`
    below: int = 0


@dataclass(frozen=True, slots=True)
class Scope:
    """One knowledge base of a search: its channels, and its own weights."""

    kb_id: int
    space: str  # id of the embedding model; cosines of different spaces are never compared
    tokenizer: Tokenizer | None  # None where none is available
    channels: tuple[Channel, ...]
    config: RetrievalConfig
    fallbacks: tuple[Fallback, ...] = ()  # searched after the channels, in this order, where they are needed
    text_vectors: QueryVectors | None = None  # gives texts from elsewhere cosines; None where that would take too long
    notes: tuple[Degradation, ...] = ()  # what of the scope is left out of this search in any case


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text that a program keeps in a knowledge base under an id of its own, as it was given."""

    id: str  # that of a chunk for a passage that came in as part of a document
    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)  # a JSON object


@dataclass(frozen=True, slots=True)
class FoundText:
    text: StoredText
    score: float  # of the last stage
    score_scale: str
    provenance: Mapping[str, Any]  # chunk_id, document_id, source, score, ranks and so on


class KnowledgeBaseTexts(Protocol):
    """One knowledge base, under the rights of one caller."""

    def search(self, query: str, k: int, *, metadata: Mapping[str, Any] | None = None) -> Sequence[FoundText]:
        """Returns at most k texts whose metadata have the given values, best first; none is cut for its score."""

    def add(self, texts: Sequence[StoredText]) -> None:
        """Keeps texts, each in place of the one that had its id; the last of several with one id stays."""

    def delete(self, ids: Sequence[str] | None) -> None:
        """Deletes those of the texts that are there; None: every text that was added under an id."""

    def get(self, ids: Sequence[str]) -> Mapping[str, StoredText]:
        """Returns, by id, those of the texts that are there."""

    def embedder(self) -> Embedder:
        """The knowledge base's own model, which embeds what is added and what is asked."""
