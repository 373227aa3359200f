"""The values that flow through the pipeline. A stage returns new ones and never changes one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Doc

from retrieval.errors import Degradation
from retrieval.trace import Dropped, Span


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation; `role` is "user" or "assistant"."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A query as a language model has rewritten it; `sub_queries` are further ones, for other aspects."""

    text: str
    sub_queries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConceptMention:
    """A concept of a knowledge base's taxonomy that stands in a query.

    Attributes:
        mention: as the query writes it.
        names: the concept's other names: its name, synonyms and abbreviations, without the one mentioned.
    """

    concept_id: int
    kb_id: int
    name: str
    mention: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """A query as the channels use it.

    Attributes:
        text: the query, normalised; after a rewrite, the rewritten one.
        tokens_by_kb: by knowledge base, each has its own tokenizer; in order of appearance, repeats kept. One without a
            tokenizer at hand is missing.
        variants_by_kb: by knowledge base, the tokens of the text with a concept's mention replaced by another name of it.
        language: "zh" or "en".
        keywords: fine-grained keywords, the most telling ones first.
        concepts: concepts that the query names.
        intent: the query without courtesies and question words.
        sub_queries: further queries for other aspects of the question; they have none of their own.
    """

    text: str
    tokens_by_kb: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    variants_by_kb: Mapping[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    language: str = "zh"
    keywords: tuple[str, ...] = ()
    concepts: tuple[ConceptMention, ...] = ()
    intent: str = ""
    sub_queries: tuple["Analysis", ...] = ()

    def tokens(self, kb_id: int) -> tuple[str, ...]:
        return self.tokens_by_kb.get(kb_id, ())

    def terms(self, kb_id: int) -> tuple[str, ...]:
        """The distinct tokens for a knowledge base in order of appearance."""
        return tuple(dict.fromkeys(self.tokens(kb_id)))

    def search_tokens(self, kb_id: int) -> tuple[str, ...]:
        """The query's tokens, and once each those that only other names of its concepts have."""
        tokens = self.tokens(kb_id)
        others = (token for variant in self.variants_by_kb.get(kb_id, ()) for token in variant)
        return (*tokens, *dict.fromkeys(token for token in others if token not in tokens))

    @property
    def all_terms(self) -> tuple[str, ...]:
        """The distinct tokens over all knowledge bases."""
        return tuple(dict.fromkeys(token for tokens in self.tokens_by_kb.values() for token in tokens))

    @property
    def queries(self) -> tuple["Analysis", ...]:
        return (self, *self.sub_queries)


@dataclass(frozen=True, slots=True)
class Ranking:
    """What one channel found in one knowledge base for one query, best first.

    Attributes:
        chunk_ids: shape (n,), int64.
        scores: shape (n,), float64, on the channel's own scale (cosine similarity, BM25).
        query: position in `Analysis.queries`; 0 is the query itself.
        detail: what the trace should tell, for example which cache tier answered.
        degradations: what the channel could not do although it answered.
        lexicon: term statistics of the knowledge base, if the channel has them.
        score: exact scores of any chunk ids of the knowledge base, shape (n,), NaN for a chunk that has none; None where
            the channel cannot tell.
        passages: those that the channel brings along, by id, because no knowledge base holds them.
        weight: of the channel in the fusion, where it has one of its own; None: the configuration's.
    """

    channel: str
    kb_id: int
    chunk_ids: NDArray[np.int64]
    scores: NDArray[np.float64]
    query: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)
    degradations: tuple[Degradation, ...] = ()
    lexicon: "Lexicon | None" = None
    score: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None = None
    passages: Mapping[int, "Passage"] = field(default_factory=dict)
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a passage comes from that no knowledge base holds.

    Attributes:
        kind: of the provider, as "feed" or "vertex_ai_search".
        source: the name of the source, as the knowledge base knows it.
        id: the provider's own.
        url: where readers find it.
        published: as the provider states it, blank where it does not.
        rank: from 1, as the provider ranks it.
        score: on the provider's own scale; None where it gives none.
    """

    kind: str
    source: str
    id: str
    url: str
    published: str = ""
    rank: int = 0
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ExternalHit:
    """A result of a provider.

    Attributes:
        id: the provider's own; blank where it has none.
        score: on the provider's own scale; None where it gives none.
        published: a date or a time as it is stated; blank: unknown.
    """

    url: str
    title: str
    text: str
    id: str = ""
    score: float | None = None
    published: str = ""


class Passage(NamedTuple):
    """The envelope of a chunk: content and provenance. A search makes hundreds, hence no dataclass.

    What comes from elsewhere has no chunk: its id is negative, made of its content, and means nothing outside of a search.

    Attributes:
        text: what is given to readers: the chunk, or the longer passage that it was cut from.
        parent_id: of the longer passage; None where there is none.
        matched: the chunk, where the longer passage is given in its place, else blank.
        origin: None for a chunk.
    """

    chunk_id: int
    document_id: int
    kb_id: int
    title: str
    source: str
    page: int | None
    text: str
    heading_path: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})
    source_type: str = "book"
    position: int = 0
    parent_id: int | None = None
    matched: str = ""
    origin: Origin | None = None

    @property
    def stored_chunk_id(self) -> int | None:
        """The chunk's id; None where there is no chunk."""
        return self.chunk_id if self.origin is None else None

    @property
    def stored_document_id(self) -> int | None:
        """The document's id; None where there is no document."""
        return self.document_id if self.origin is None else None

    @property
    def searched(self) -> str:
        """The chunk itself, which is what was found, reranked and highlighted."""
        return self.matched or self.text


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a candidate was found: the chunk, by a channel, for a query (position in `Analysis.queries`)."""

    channel: str
    kb_id: int
    chunk_id: int
    query: int
    rank: int
    score: float


class CutBy(StrEnum):
    """What drops a candidate, in the order of the pipeline."""

    FUSION = "fusion"
    GATE = "gate"
    PARENT = "parent"
    PER_SOURCE = "per_source"
    TOP_K = "top_k"


class Candidate(NamedTuple):
    """A chunk on its way through the stages. A search makes hundreds, hence no dataclass.

    Attributes:
        ranks: rank from 1 by channel and stage ("vector", "bm25", "fused", "rerank").
        scores: score by channel and stage, each on its own scale.
        provenance: every place where it, or a chunk of the same content, was found.
        neighbours: chunks before and after it in its document, where they were asked for.
        agreement: the fused score as a share of the best that the channels could have given, 0 to 1.
        matched_terms: query terms that the chunk holds.
        cut_by: the stage that dropped it; None while it is a result.
    """

    chunk_id: int
    kb_id: int
    ranks: Mapping[str, int]
    scores: Mapping[str, float]
    agreement: float = 0.0
    passage: Passage | None = None
    matched_terms: tuple[str, ...] = ()
    cut_by: CutBy | None = None
    provenance: tuple[Provenance, ...] = ()
    neighbours: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True)
class RerankJob:
    """What a reranker is given.

    Attributes:
        candidates: best first by fused score, each with its passage.
        lexicons: term statistics by knowledge base, where the keyword index has answered.
        spaces: id of the embedding model by knowledge base.
        similarity: by knowledge base, exact cosine similarities of any chunk ids to the query, shape (n,), NaN where there
            is no vector; missing where the vector channel has not answered.
    """

    analysis: Analysis
    candidates: tuple[Candidate, ...]
    lexicons: Mapping[int, "Lexicon"] = field(default_factory=dict)
    spaces: Mapping[int, str] = field(default_factory=dict)
    similarity: Mapping[int, Callable[[NDArray[np.int64]], NDArray[np.float64]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """A result: the passage, its score and the scale which that score is on."""

    passage: Passage
    score: float
    score_scale: str
    ranks: Mapping[str, int]
    scores: Mapping[str, float]
    matched_terms: tuple[str, ...] = ()
    provenance: tuple[Provenance, ...] = ()
    neighbours: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of a knowledge base's graph."""

    knowledge_base_id: int
    subject: str
    predicate: str
    object: str
    chunk_id: Annotated[int | None, Doc("The chunk that it was taken from, if that is known.")] = None


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a search.

    Attributes:
        hits: the results, best first.
        candidates: every candidate that any channel found, in final order, with the stage that cut it.
        analysis: the query as it was searched for.
        timings_ms: milliseconds by stage, and "total".
        facts: of the graph, for the query's entities; beside the results, never among them.
        dropped: of an explained search, the chunks that were found and are no candidates.
        lexicons: of an explained search, the term statistics of each knowledge base whose keyword index has answered.
    """

    query: str
    hits: tuple[Hit, ...]
    candidates: tuple[Candidate, ...]
    analysis: Analysis
    score_scale: str
    threshold: float
    degraded: tuple[Degradation, ...]
    spans: tuple[Span, ...]
    timings_ms: Mapping[str, float]
    facts: tuple[Fact, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    lexicons: Mapping[int, "Lexicon"] = field(default_factory=dict)


class Lexicon(Protocol):
    """Term statistics of one knowledge base."""

    @property
    def chunk_count(self) -> int: ...

    def rarity(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Returns how telling each term is, positive, shape (n_terms,)."""

    def saturation(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the share that each chunk has of the most that each term can add to a score, shape (n_chunks, n_terms).

        0 where the chunk does not hold the term.
        """

    def idf(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Returns the weight of each term in a score, shape (n_terms,)."""

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Returns how often each chunk holds each term, shape (n_chunks, n_terms)."""

    def contributions(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns what each term, named once, adds to each chunk's score, shape (n_chunks, n_terms)."""

    def saturation_of(self, frequencies: NDArray[np.uint32], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        """As `saturation`, of texts that are no chunks.

        Args:
            frequencies: how often each text holds each term, shape (n_texts, n_terms).
            lengths: of the texts in terms, shape (n_texts,).
        """

    def most(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Returns the bound of what each term, named once, can add to a score, shape (n_terms,)."""
