"""The questions that chunks are said to answer: which of them a query equals, and their postings beside the passages'."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retrieval.bm25 import OkapiIndex
from retrieval.tokenize import normalize
from retrieval.types import Passage

END_PUNCTUATION = " .,:;?!~。、"
# Keys of longer texts are not kept.
KEPT_CHARACTERS = 200

# A question is known by the id of its chunk and, in these lowest bits, its place among the chunk's questions.
PLACE_BITS = 16
MOST_QUESTIONS = 1 << PLACE_BITS

# A chunk's id and, for each of its questions in their order, `Postings.packed`.
ChunkQuestions = tuple[int, Sequence[bytes]]


def question_key(text: str) -> str:
    """What equal questions have in common: NFKC, case folded, white space collapsed, without punctuation at the end."""
    return _kept_key(text) if len(text) < KEPT_CHARACTERS else _key(text)


def _key(text: str) -> str:
    return " ".join(normalize(text).casefold().split()).rstrip(END_PUNCTUATION)


_kept_key = lru_cache(maxsize=4_096)(_key)


def equal_questions(texts: Iterable[str], passages: Iterable[Passage]) -> dict[int, str]:
    """The question of each passage that one of some texts equals (see `question_key`), by chunk id."""
    keys = set(filter(None, map(question_key, texts)))
    return {
        passage.chunk_id: question
        for passage in passages
        for question in passage.questions
        if question_key(question) in keys
    }


class QuestionIndex:
    """BM25Okapi over questions, each a text of its own; a chunk scores as the best of its questions. Immutable.

    As `OkapiIndex` it is a base, or a base with a few chunks changed, and its statistics are those of all questions.
    """

    def __init__(self, postings: OkapiIndex) -> None:
        self._postings = postings

    @classmethod
    def build(cls, chunks: Iterable[ChunkQuestions]) -> Self:
        """Chunks in any order, each once; raises as `OkapiIndex.build`."""
        return cls(OkapiIndex.build(_rows(chunks)))

    def with_changes(self, changed: NDArray[np.int64], chunks: Iterable[ChunkQuestions]) -> Self:
        """The base with other questions for the changed chunks; as `OkapiIndex.with_changes`."""
        base = self._postings.base
        rows = list(_rows(chunks))
        gone = base.chunk_ids[np.isin(base.chunk_ids >> PLACE_BITS, changed)]
        if not (rows or gone.size):
            return self.base
        return type(self)(base.with_changes(np.union1d(gone, [row[0] for row in rows]).astype(np.int64), rows))

    def with_rows(self, chunks: Iterable[ChunkQuestions]) -> Self:
        """These, changes included, with other or further questions for some chunks; as `OkapiIndex.with_rows`."""
        return type(self)(self._postings.with_rows(_rows(chunks)))

    @property
    def base(self) -> Self:
        return self if self._postings.base is self._postings else type(self)(self._postings.base)

    @property
    def nbytes(self) -> int:
        return self._postings.nbytes

    @cached_property
    def _questions(self) -> NDArray[np.int64]:
        return self._postings.chunk_ids

    @cached_property
    def _most_of_a_chunk(self) -> int:
        return int((self._questions & (MOST_QUESTIONS - 1)).max(initial=0)) + 1

    def search(
        self, terms: NDArray[np.uint64], k: int, only: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """As `OkapiIndex.search`, of chunks one of whose questions holds a query term."""
        allowed = None if only is None else self._questions[np.isin(self._questions >> PLACE_BITS, only)]
        found, scores = self._postings.search(terms, k * self._most_of_a_chunk, allowed)
        chunk_ids, best = np.unique(found >> PLACE_BITS, return_index=True)
        order = np.lexsort((chunk_ids, -scores[best]))[:k]
        return chunk_ids[order], scores[best][order]

    def score(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The exact scores of the given chunks, shape `(n_chunks,)`; NaN for a chunk without questions."""
        rows, questions = self._of(chunk_ids)
        scores = np.full(chunk_ids.size, np.nan)
        np.fmax.at(scores, rows, self._postings.score(terms, questions))
        return scores

    def counts(
        self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32], NDArray[np.float64]]:
        """All questions of the given chunks: their chunks' rows, their places, how often each holds each term, their lengths.

        Shapes (n_questions,), (n_questions,), (n_questions, n_terms) and (n_questions,).
        """
        rows, questions = self._of(chunk_ids)
        frequencies = self._postings.frequencies(terms, questions)
        return rows, questions & (MOST_QUESTIONS - 1), frequencies, self._postings.lengths(questions)

    def _of(self, chunk_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The questions of chunks, and the row of each one's chunk."""
        starts = np.searchsorted(self._questions, chunk_ids << PLACE_BITS)
        counts = np.searchsorted(self._questions, (chunk_ids + 1) << PLACE_BITS) - starts
        rows = np.repeat(np.arange(chunk_ids.size), counts)
        places = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self._questions[starts[rows] + places]

    def state(self) -> dict[str, Any]:
        """As `OkapiIndex.state`."""
        return self._postings.state()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Reads what `state` wrote; raises as `OkapiIndex.from_state`."""
        return cls(OkapiIndex.from_state(state))


def _rows(chunks: Iterable[ChunkQuestions]) -> Iterator[tuple[int, bytes, bytes, int]]:
    for chunk_id, questions in chunks:
        for place, packed in enumerate(questions[:MOST_QUESTIONS]):
            terms, frequencies = packed[: len(packed) // 3 * 2], packed[len(packed) // 3 * 2 :]
            length = int(np.frombuffer(frequencies, "<u4").sum())
            yield chunk_id << PLACE_BITS | place, terms, frequencies, length
