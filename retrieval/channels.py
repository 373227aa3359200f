"""The channels: thin, with the store that answers them injected."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.bm25 import OkapiIndex
from retrieval.errors import ChannelUnavailable, Message, gettext_noop, message_of
from retrieval.execution import too_late
from retrieval.postings import hash_terms
from retrieval.protocols import KeywordStore, QueryVectors, TextStore, VectorStore
from retrieval.trace import Degradation, DegradationCode
from retrieval.types import Analysis, Ranking


class EmbeddingChannel:
    """Waits for the query's vector before it asks its store.

    Args:
        kb_id: the knowledge base.
        vectors: the query's vectors.
        store: the chunks' vectors.
        fallback: the same vectors in another store, which answers where that one cannot; None: there is none.
        dimension: of the chunks' vectors; None: not known.
        only: ids of the chunks that may be found, ascending; None: all.
        notes: what every answer reports.
    """

    name: str
    kind: str
    in_memory = False

    def __init__(
        self,
        kb_id: int,
        vectors: QueryVectors,
        store: VectorStore,
        *,
        fallback: VectorStore | None = None,
        dimension: int | None = None,
        only: NDArray[np.int64] | None = None,
        notes: Sequence[Degradation] = (),
    ) -> None:
        self.kb_id = kb_id
        self._vectors = vectors
        self._store = store
        self._fallback = fallback
        self._dimension = dimension
        self._only = only
        self._notes = tuple(notes)
        self._detail: Mapping[str, Any] = {}
        self._embedded: set[str] = set()

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        vector, source = self._embed(analysis.text, deadline)
        chunk_ids, scores, notes = self._found(vector, k)
        return Ranking(
            self.name,
            self.kb_id,
            chunk_ids,
            scores,
            detail={"model": self._vectors.model_id, "query_vector": source, **self._detail},
            degradations=(*self._notes, *notes),
            score=partial(self._similarities, vector),
        )

    def _found(
        self, vector: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[Degradation, ...]]:
        return self._nearest(vector, k, self.kind)

    def _similarities(self, vector: NDArray[np.float32], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._store.similarities(self.kb_id, self._vectors.model_id, vector, chunk_ids, kind=self.kind)

    def lateness(self, analysis: Analysis) -> Degradation | None:
        """Why a search that has begun is late, as far as it is the model's fault; None where the vector is there."""
        if analysis.text in self._embedded:
            return None
        return Degradation(self.name, DegradationCode.EMBEDDER_TIMEOUT, too_late(self._vectors.model_id))

    def _embed(self, text: str, deadline: float) -> tuple[NDArray[np.float32], str]:
        vector, source = self._vectors.embed(text, deadline)
        self._embedded.add(text)
        if self._dimension not in (None, vector.size):
            raise ChannelUnavailable(
                DegradationCode.EMBEDDER_FAILED,
                Message(
                    gettext_noop(
                        "model {model_id!r} answers with {size} dimensions, and the chunks' vectors have {dimension}: "
                        "let its server serve the model that made them, or run `manage.py reindex --embeddings`"
                    ),
                    model_id=self._vectors.model_id,
                    size=vector.size,
                    dimension=self._dimension,
                ),
            )
        return vector, source

    def _nearest(
        self, vector: NDArray[np.float32], k: int, kind: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[Degradation, ...]]:
        """Chunks and cosines of the store, best first, or where it cannot answer of the stand-in, with the reason."""
        model = self._vectors.model_id
        try:
            return *self._store.search(self.kb_id, model, vector, k, kind=kind, only=self._only), ()
        except ChannelUnavailable as error:
            if self._fallback is None:
                raise
            note = Degradation(self.name, error.code, message_of(error))
            return *self._fallback.search(self.kb_id, model, vector, k, kind=kind, only=self._only), (note,)


class VectorChannel(EmbeddingChannel):
    """Cosine similarity of the query's vector and the chunks' vectors of one model.

    Where chunks have a vector of their keywords too, each kind is searched by itself, through its own index, and the
    union is scored exactly: `(1 - share) * content + share * keywords`, or content alone for a chunk without keywords.

    Args:
        kb_id: the knowledge base.
        vectors: the query's vectors.
        store: the chunks' vectors.
        fallback: the same vectors in another store; None: there is none.
        dimension: of the chunks' vectors; None: not known.
        keyword_share: 0 leaves the vectors of keywords out.
        only: ids of the chunks that may be found, ascending; None: all.
        notes: what every answer reports.
    """

    name = "vector"
    kind = "content"

    def __init__(
        self,
        kb_id: int,
        vectors: QueryVectors,
        store: VectorStore,
        *,
        fallback: VectorStore | None = None,
        dimension: int | None = None,
        keyword_share: float = 0.0,
        only: NDArray[np.int64] | None = None,
        notes: Sequence[Degradation] = (),
    ) -> None:
        super().__init__(kb_id, vectors, store, fallback=fallback, dimension=dimension, only=only, notes=notes)
        self._keyword_share = keyword_share
        if keyword_share:
            self._detail = {"keyword_share": keyword_share}

    def _found(
        self, vector: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[Degradation, ...]]:
        chunk_ids, scores, notes = super()._found(vector, k)
        if not self._keyword_share:
            return chunk_ids, scores, notes
        others, _, other_notes = self._nearest(vector, k, "keywords")
        union = np.union1d(chunk_ids, others)
        joined = self._similarities(vector, union)
        here = np.flatnonzero(~np.isnan(joined))
        best = here[np.lexsort((union[here], -joined[here]))][:k]
        return union[best], joined[best], tuple(dict.fromkeys(notes + other_notes))

    def _similarities(self, vector: NDArray[np.float32], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        content = super()._similarities(vector, chunk_ids)
        if not self._keyword_share:
            return content
        keywords = self._store.similarities(self.kb_id, self._vectors.model_id, vector, chunk_ids, kind="keywords")
        joined = (1 - self._keyword_share) * content + self._keyword_share * keywords
        return np.where(np.isnan(keywords), content, joined)


class QuestionChannel(EmbeddingChannel):
    """Cosine similarity of the query's vector and the vectors of the questions that chunks answer."""

    name = "question"
    kind = "question"


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    """An index, and what the trace shows of where it came from."""

    index: OkapiIndex
    detail: Mapping[str, Any]


class BM25Channel:
    """BM25Okapi over the knowledge base's postings.

    Args:
        kb_id: the knowledge base.
        wait_for_index: given a deadline of `time.monotonic`; raises ChannelUnavailable if the index is not there by then.
        only: ids of the chunks that may be found, ascending; None: all.
        detail: what else the trace shows.
    """

    name = "bm25"
    in_memory = True

    def __init__(
        self,
        kb_id: int,
        wait_for_index: Callable[[float], LoadedIndex],
        *,
        only: NDArray[np.int64] | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        self.kb_id = kb_id
        self.wait_for_index = wait_for_index
        self._only = only
        self._detail = detail or {}

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        loaded = self.wait_for_index(deadline)
        terms = hash_terms(analysis.search_tokens(self.kb_id))
        chunk_ids, scores = loaded.index.search(terms, k, self._only)
        return Ranking(
            self.name,
            self.kb_id,
            chunk_ids,
            scores,
            detail={**self._detail, **loaded.detail},
            lexicon=loaded.index,
            score=lambda wanted: loaded.index.score(terms, wanted),
        )


class StoredKeywordChannel:
    """Keyword search by a server; the knowledge base's own index has the term statistics, and answers where the server cannot.

    Args:
        store: the server.
        own: the knowledge base's own index.
        only: ids of the chunks that may be found, ascending; None: all.
    """

    name = "bm25"
    in_memory = False

    def __init__(self, store: KeywordStore, own: BM25Channel, *, only: NDArray[np.int64] | None = None) -> None:
        self.kb_id = own.kb_id
        self._store = store
        self._own = own
        self._only = only

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        # The tokens that only other names of its concepts have follow the query's own.
        other_names = analysis.search_tokens(self.kb_id)[len(analysis.tokens(self.kb_id)) :]
        text = " ".join((analysis.text, *other_names))
        try:
            found = self._store.search(self.kb_id, text, k, only=self._only)
        except ChannelUnavailable as error:
            note = Degradation(self.name, error.code, message_of(error))
            ranking = self._own.search(analysis, k, deadline)
            return replace(ranking, degradations=(*ranking.degradations, note))
        if found is None:
            return self._own.search(analysis, k, deadline)
        own: LoadedIndex | None = None
        with suppress(ChannelUnavailable):  # without the term statistics a ranking is complete too
            own = self._own.wait_for_index(deadline)
        return Ranking(
            self.name,
            self.kb_id,
            *found,
            detail={"store": self._store.name, **(own.detail if own else {})},
            lexicon=own.index if own else None,
            score=lambda wanted: self._scores(text, wanted, found),
        )

    def _scores(
        self, text: str, wanted: NDArray[np.int64], found: tuple[NDArray[np.int64], NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Those of any chunks; of a server that fails after it has answered, those of its answer."""
        try:
            return self._store.scores(self.kb_id, text, wanted)
        except ChannelUnavailable:
            known = dict(zip(found[0].tolist(), found[1].tolist(), strict=True))
            return np.array([known.get(chunk_id, np.nan) for chunk_id in wanted.tolist()])


class _TextStoreChannel:
    in_memory = False

    def __init__(
        self, kb_id: int, tokenizer_id: str, store: TextStore, *, only: NDArray[np.int64] | None = None
    ) -> None:
        self.kb_id = kb_id
        self._tokenizer_id = tokenizer_id
        self._store = store
        self._only = only


class FullTextChannel(_TextStoreChannel):
    """PostgreSQL's full text over the tokens of the keyword index, which it stands in for."""

    name = "fts"

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:  # noqa: ARG002 - statements have a time limit
        terms = tuple(dict.fromkeys(analysis.search_tokens(self.kb_id)))
        chunk_ids, scores = self._store.search_terms(self.kb_id, self._tokenizer_id, terms, k, only=self._only)
        return Ranking(self.name, self.kb_id, chunk_ids, scores, detail={"terms": len(terms)})


class LexicalChannel(_TextStoreChannel):
    """Character n-grams: finds misspelt words and parts of words, where words and vectors find next to nothing."""

    name = "lexical"

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:  # noqa: ARG002 - statements have a time limit
        chunk_ids, scores = self._store.search_ngrams(self.kb_id, self._tokenizer_id, analysis.text, k, only=self._only)
        return Ranking(self.name, self.kb_id, chunk_ids, scores)


class UnavailableChannel:
    """In place of a channel that is unavailable, so that the search says why."""

    in_memory = True

    def __init__(self, name: str, kb_id: int, code: DegradationCode, detail: str) -> None:
        self.name = name
        self.kb_id = kb_id
        self._error = (code, detail)

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:  # noqa: ARG002 - the protocol's signature
        raise ChannelUnavailable(*self._error)
