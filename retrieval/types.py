"""The values that flow through the pipeline. A stage returns new ones and never changes one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retrieval.trace import Degradation, Span

if TYPE_CHECKING:
    from retrieval.protocols import Lexicon


@dataclass(frozen=True, slots=True)
class Analysis:
    """A query as the channels use it.

    Attributes:
        text: the query, stripped.
        tokens_by_kb: by knowledge base, each has its own tokenizer; in order of appearance, repeats kept. One without a
            tokenizer at hand is missing.
    """

    text: str
    tokens_by_kb: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def tokens(self, kb_id: int) -> tuple[str, ...]:
        """The query's tokens for a knowledge base."""
        return self.tokens_by_kb.get(kb_id, ())

    def terms(self, kb_id: int) -> tuple[str, ...]:
        """The distinct tokens for a knowledge base in order of appearance."""
        return tuple(dict.fromkeys(self.tokens(kb_id)))

    @property
    def all_terms(self) -> tuple[str, ...]:
        """The distinct tokens over all knowledge bases."""
        return tuple(dict.fromkeys(token for tokens in self.tokens_by_kb.values() for token in tokens))


@dataclass(frozen=True, slots=True)
class Ranking:
    """What one channel found in one knowledge base, best first.

    Attributes:
        chunk_ids: shape (n,), int64.
        scores: shape (n,), float64, on the channel's own scale (cosine similarity, BM25).
        detail: what the trace should tell, for example which cache tier answered.
        degradations: what the channel could not do although it answered.
        lexicon: term statistics of the knowledge base, if the channel has them.
    """

    channel: str
    kb_id: int
    chunk_ids: NDArray[np.int64]
    scores: NDArray[np.float64]
    detail: Mapping[str, Any] = field(default_factory=dict)
    degradations: tuple[Degradation, ...] = ()
    lexicon: "Lexicon | None" = None


@dataclass(frozen=True, slots=True)
class Passage:
    """The envelope of a chunk: content and provenance."""

    chunk_id: int
    document_id: int
    kb_id: int
    title: str
    source: str
    page: int | None
    text: str
    heading_path: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk on its way through the stages.

    Attributes:
        ranks: rank from 1 by stage ("vector", "bm25", "fused", "rerank").
        scores: score by stage, each on that stage's own scale.
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
    cut_by: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A result: the passage, its score and the scale which that score is on."""

    passage: Passage
    score: float
    score_scale: str
    ranks: Mapping[str, int]
    scores: Mapping[str, float]
    matched_terms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a search.

    Attributes:
        hits: the results, best first.
        candidates: every candidate that any channel found, in final order, with the stage that cut it.
        analysis: the query as it was searched for.
        timings_ms: milliseconds by stage, and "total".
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
