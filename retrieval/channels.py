"""The channels: thin, with the store that answers them injected."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.bm25 import OkapiIndex
from retrieval.character_counts import CharacterCounts
from retrieval.errors import ChannelUnavailable, Degradation, DegradationCode, _, message_of
from retrieval.execution import too_late
from retrieval.postings import hash_terms
from retrieval.protocols import KeywordStore, QueryVectors, TextStore, VectorStore
from retrieval.questions import QuestionIndex
from retrieval.types import Analysis, Ranking

Found = tuple[NDArray[np.int64], NDArray[np.float64], tuple[Degradation, ...]]


@dataclass(eq=False)
class VectorChannel:
    """Cosine similarity of the query's vector, for which it waits, and the chunks' vectors of one model.

    Where chunks have a vector of their keywords too, each kind is searched by itself, through its own index, and the
    union is scored exactly: `(1 - share) * content + share * keywords`, or content alone for a chunk without keywords.

    `keyword_share` 0 leaves the vectors of keywords out.
    """

    name = "vector"
    kind = "content"
    in_memory = False

    kb_id: int
    vectors: QueryVectors
    store: VectorStore
    fallback: VectorStore | None = None  # the same vectors in another store, which answers where that one cannot
    dimension: int | None = None  # of the chunks' vectors; None: not known
    keyword_share: float = 0.0
    only: NDArray[np.int64] | None = None  # ids of the chunks that may be found, ascending; None: all
    notes: Sequence[Degradation] = ()  # what every answer reports
    _embedded: set[str] = field(default_factory=set, init=False)

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        vector, source = self.vectors.embed(analysis.text, deadline)
        self._embedded.add(analysis.text)
        if self.dimension not in (None, vector.size):
            raise ChannelUnavailable(
                DegradationCode.EMBEDDER_FAILED,
                _(
                    "model {model_id!r} answers with {size} dimensions, and the chunks' vectors have {dimension}: "
                    "let its server serve the model that made them, or run `manage.py reindex --embeddings`",
                    model_id=self.vectors.model_id,
                    size=vector.size,
                    dimension=self.dimension,
                ),
            )
        chunk_ids, scores, notes = self._found(vector, k)
        detail = {"model": self.vectors.model_id, "query_vector": source}
        return Ranking(
            self.name,
            self.kb_id,
            chunk_ids,
            scores,
            detail=detail | ({"keyword_share": self.keyword_share} if self.keyword_share else {}),
            degradations=(*self.notes, *notes),
            score=partial(self._similarities, vector),
        )

    def _found(self, vector: NDArray[np.float32], k: int) -> Found:
        chunk_ids, scores, notes = self._nearest(vector, k, self.kind)
        if not self.keyword_share:
            return chunk_ids, scores, notes
        others, _scores, other_notes = self._nearest(vector, k, "keywords")
        union = np.union1d(chunk_ids, others)
        joined = self._similarities(vector, union)
        here = np.flatnonzero(~np.isnan(joined))
        best = here[np.lexsort((union[here], -joined[here]))][:k]
        return union[best], joined[best], tuple(dict.fromkeys(notes + other_notes))

    def _similarities(self, vector: NDArray[np.float32], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        cosines = partial(self.store.similarities, self.kb_id, self.vectors.model_id, vector, chunk_ids)
        content = cosines(kind=self.kind)
        if not self.keyword_share:
            return content
        keywords = cosines(kind="keywords")
        joined = (1 - self.keyword_share) * content + self.keyword_share * keywords
        return np.where(np.isnan(keywords), content, joined)

    def lateness(self, analysis: Analysis) -> Degradation | None:
        """Why a search that has begun is late, as far as it is the model's fault; None where the vector is there."""
        if analysis.text in self._embedded:
            return None
        return Degradation(self.name, DegradationCode.EMBEDDER_TIMEOUT, too_late(self.vectors.model_id))

    def _nearest(self, vector: NDArray[np.float32], k: int, kind: str) -> Found:
        """Chunks and cosines of the store, best first, or where it cannot answer of the stand-in, with the reason."""
        model = self.vectors.model_id
        try:
            return *self.store.search(self.kb_id, model, vector, k, kind=kind, only=self.only), ()
        except ChannelUnavailable as error:
            if self.fallback is None:
                raise
            note = Degradation(self.name, error.code, message_of(error))
            return *self.fallback.search(self.kb_id, model, vector, k, kind=kind, only=self.only), (note,)


class QuestionChannel(VectorChannel):
    """Cosine similarity of the query's vector and the vectors of the questions that chunks answer."""

    name = "question"
    kind = "question"


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    index: OkapiIndex
    detail: Mapping[str, Any]
    characters: CharacterCounts | None = None
    questions: QuestionIndex | None = None


INDEX_OLD = Degradation(
    "bm25",
    DegradationCode.BM25_INDEX_OLD,
    _(
        "the keyword index is of an older version and holds the words of passages only, neither characters nor "
        "questions, until it is built again: search again in a moment"
    ),
)


@dataclass(eq=False)
class _IndexChannel:
    """Searches the knowledge base's own keyword index.

    `wait_for_index` is given a deadline of `time.monotonic`, and raises ChannelUnavailable if the index is not there by
    then.
    """

    in_memory = True

    kb_id: int
    wait_for_index: Callable[[float], LoadedIndex]
    only: NDArray[np.int64] | None = None  # ids of the chunks that may be found, ascending; None: all
    detail: Mapping[str, Any] = field(default_factory=dict)  # what else the trace shows


class BM25Channel(_IndexChannel):
    """BM25Okapi over the knowledge base's postings."""

    name = "bm25"

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        loaded = self.wait_for_index(deadline)
        terms = hash_terms(analysis.search_tokens(self.kb_id))
        chunk_ids, scores = loaded.index.search(terms, k, self.only)
        return Ranking(
            self.name,
            self.kb_id,
            chunk_ids,
            scores,
            detail={**self.detail, **loaded.detail},
            degradations=(INDEX_OLD,) if loaded.characters is None and analysis.language == "zh" else (),
            lexicon=loaded.index,
            characters=loaded.characters,
            score=lambda wanted: loaded.index.score(terms, wanted),
        )


class QuestionKeywordChannel(_IndexChannel):
    """BM25Okapi over the questions that chunks answer; finds nothing until an index that lacks them is completed."""

    name = "question_bm25"

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        questions = self.wait_for_index(deadline).questions
        if questions is None:
            none = np.empty(0, dtype=np.int64), np.empty(0)
            return Ranking(self.name, self.kb_id, *none, detail=self.detail, degradations=(INDEX_OLD,))
        terms = hash_terms(analysis.search_tokens(self.kb_id))
        chunk_ids, scores = questions.search(terms, k, self.only)
        return Ranking(
            self.name,
            self.kb_id,
            chunk_ids,
            scores,
            detail=self.detail,
            questions=questions,
            score=lambda wanted: questions.score(terms, wanted),
        )


class StoredKeywordChannel:
    """Keyword search by a server; the knowledge base's own index has the statistics, and answers where that cannot.

    `only` holds the ids of the chunks that may be found, ascending; None: all.
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
            characters=own.characters if own else None,
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


@dataclass(eq=False)
class _TextStoreChannel:
    in_memory = False

    kb_id: int
    tokenizer_id: str
    store: TextStore
    only: NDArray[np.int64] | None = None


class FullTextChannel(_TextStoreChannel):
    """PostgreSQL's full text over the tokens of the keyword index, which it stands in for."""

    name = "fts"

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:  # noqa: ARG002 - statements have a time limit
        terms = tuple(dict.fromkeys(analysis.search_tokens(self.kb_id)))
        chunk_ids, scores = self.store.search_terms(self.kb_id, self.tokenizer_id, terms, k, only=self.only)
        return Ranking(self.name, self.kb_id, chunk_ids, scores, detail={"terms": len(terms)})


class LexicalChannel(_TextStoreChannel):
    """Character n-grams: finds misspelt words and parts of words, where words and vectors find next to nothing."""

    name = "lexical"

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:  # noqa: ARG002 - statements have a time limit
        chunk_ids, scores = self.store.search_ngrams(self.kb_id, self.tokenizer_id, analysis.text, k, only=self.only)
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
