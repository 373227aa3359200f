"""rank-bm25's BM25Okapi over sparse postings, so that a query touches its own terms only.

    score(D, Q) = sum over q in Q of idf(q) * f(q, D) * (k1 + 1) / (f(q, D) + k1 * (1 - b + b * |D| / avgdl))

with k1, b, epsilon and idf taken from the installed library (Trotman et al., Improvements to BM25 and Language Models
Examined, 2014). A term that the query repeats counts as often as it is repeated, as in the library. Where the library's
idf is not positive ours differs: see `okapi_idf`, the one place that says how.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from operator import itemgetter
from typing import Any, Self, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from retrieval.dependencies import import_dependency
from retrieval.errors import RetrievalError

FORMAT = 1
BM25_UNAVAILABLE = "⚠️ BM25 dependencies unavailable, using vector-only search mode."


def require_dependencies() -> None:
    """Import what the keyword channel needs; a caller that goes on without it logs `BM25_UNAVAILABLE` once.

    Raises:
        DependencyMissing: rank_bm25, jieba or PyStemmer cannot be imported.
    """
    for name in ("rank_bm25", "jieba", "Stemmer"):
        import_dependency(name)


@dataclass(frozen=True, slots=True)
class OkapiParameters:
    """The defaults of `BM25Okapi.__init__`."""

    k1: float
    b: float
    epsilon: float


@cache
def okapi_parameters() -> OkapiParameters:
    """Read the parameters off the installed library."""
    defaults = inspect.signature(import_dependency("rank_bm25").BM25Okapi.__init__).parameters
    return OkapiParameters(**{name: float(defaults[name].default) for name in ("k1", "b", "epsilon")})


def okapi_idf(document_frequencies: NDArray[np.int64], chunk_count: int) -> NDArray[np.float64]:
    """The idf of terms that stand in `document_frequencies` of `chunk_count` chunks, shape as given, always positive.

    `document_frequencies` holds every term of the index once, since BM25Okapi replaces a negative idf (a term in more
    than half of the chunks) by epsilon times the mean idf of all terms.

    Where we differ from the library: that replacement is negative too in a small KB (-0.27 for its only chunk), and
    the idf of a term in exactly half of the chunks is 0, so that a chunk which holds the query's term would score no
    better than one which does not. There idf is `epsilon * log(1 + (N - n + 0.5) / (n + 0.5))`, epsilon times
    Lucene's idf.
    """
    if not document_frequencies.size:
        return np.empty(0)
    distinct, inverse = np.unique(document_frequencies, return_inverse=True)
    idf = _library_idf(distinct, chunk_count)[inverse]
    epsilon = okapi_parameters().epsilon
    idf = np.where(idf < 0, epsilon * idf.mean(), idf)
    return np.where(idf > 0, idf, epsilon * _lucene_idf(document_frequencies, chunk_count))


def _library_idf(document_frequencies: NDArray[np.int64], chunk_count: int) -> NDArray[np.float64]:
    """BM25Okapi's own idf before its floor; the mean over a corpus of one term is that term's idf."""
    okapi = import_dependency("rank_bm25").BM25Okapi
    model = okapi.__new__(okapi)
    model.corpus_size, model.epsilon, model.idf = chunk_count, 0.0, {}
    values = np.empty(document_frequencies.size)
    for position, frequency in enumerate(document_frequencies.tolist()):
        model._calc_idf({0: frequency})
        values[position] = model.average_idf
    return values


def _lucene_idf(document_frequencies: NDArray[np.int64], chunk_count: int) -> NDArray[np.float64]:
    return np.log1p((chunk_count - document_frequencies + 0.5) / (document_frequencies + 0.5))


@dataclass(frozen=True, slots=True, eq=False)
class SparsePostings:
    """A corpus by term (compressed sparse columns): term t's postings are `indptr[t]:indptr[t + 1]`.

    A chunk's ordinal is its position in `chunk_ids`. Everything is ascending: chunk ids, term hashes, and the ordinals
    within a term.
    """

    chunk_ids: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    terms: NDArray[np.uint64]
    indptr: NDArray[np.int64]
    ordinals: NDArray[np.int32]
    frequencies: NDArray[np.uint32]

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, bytes, bytes, int]]) -> Self:
        """Gather stored postings; see `OkapiIndex.build`."""
        ordered = sorted(rows, key=itemgetter(0))
        chunk_ids = np.array([row[0] for row in ordered], dtype=np.int64)
        sizes = np.array([len(row[1]) // 8 for row in ordered], dtype=np.int64)
        damaged = sizes != np.array([len(row[2]) // 4 for row in ordered], dtype=np.int64)
        if damaged.any():
            raise RetrievalError(
                f"stored postings of chunk {chunk_ids[damaged][0]} are damaged: index its document again"
            )
        hashes = np.frombuffer(b"".join(row[1] for row in ordered), dtype="<u8")
        by_term = np.argsort(hashes, kind="stable")
        by_term_hashes = hashes[by_term]
        first = np.ones(hashes.size, dtype=np.bool_)
        first[1:] = by_term_hashes[1:] != by_term_hashes[:-1]
        return cls(
            chunk_ids=chunk_ids,
            lengths=np.array([row[3] for row in ordered], dtype=np.uint32),
            terms=by_term_hashes[first],
            indptr=np.append(np.flatnonzero(first), hashes.size),
            ordinals=np.repeat(np.arange(chunk_ids.size, dtype=np.int32), sizes)[by_term],
            frequencies=np.frombuffer(b"".join(row[2] for row in ordered), dtype="<u4")[by_term],
        )


_DTYPES: dict[str, DTypeLike] = {
    "chunk_ids": "<i8",
    "lengths": "<u4",
    "terms": "<u8",
    "indptr": "<i8",
    "ordinals": "<i4",
    "frequencies": "<u4",
}


class OkapiIndex:
    """An immutable keyword index over one version of one KB; safe to share between threads."""

    def __init__(self, postings: SparsePostings) -> None:
        self._postings = postings
        for field in fields(postings):
            getattr(postings, field.name).flags.writeable = False
        parameters = okapi_parameters()
        lengths = postings.lengths.astype(np.float64)
        average_length = float(lengths.mean()) if lengths.any() else 1.0
        self._norm = parameters.k1 * (1 - parameters.b + parameters.b * lengths / average_length)
        self._gain = parameters.k1 + 1
        self._idf = okapi_idf(np.diff(postings.indptr), lengths.size)
        self._unknown_idf = float(okapi_idf(np.zeros(1, dtype=np.int64), lengths.size)[0])

    @classmethod
    def build(cls, rows: Iterable[tuple[int, bytes, bytes, int]]) -> Self:
        """Build from stored postings, without tokenising.

        Args:
            rows: (chunk id, `Postings.terms_bytes`, `Postings.frequencies_bytes`, `Postings.length`) in any order.

        Raises:
            RetrievalError: A row's terms and frequencies do not belong together.
            DependencyMissing: rank_bm25 is not installed.
        """
        return cls(SparsePostings.from_rows(rows))

    @property
    def chunk_ids(self) -> NDArray[np.int64]:
        """Ascending; a chunk's position here is its ordinal."""
        return self._postings.chunk_ids

    @property
    def chunk_count(self) -> int:
        return self._postings.chunk_ids.size

    @property
    def posting_count(self) -> int:
        """Pairs of a chunk and a term that it holds."""
        return self._postings.ordinals.size

    @property
    def nbytes(self) -> int:
        """Memory of all arrays in bytes."""
        stored = sum(getattr(self._postings, field.name).nbytes for field in fields(self._postings))
        return int(stored + self._norm.nbytes + self._idf.nbytes)

    def search(
        self, terms: NDArray[np.uint64], k: int, mask: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The best `k` chunks that hold a query term, by score, equal scores by chunk id.

        Args:
            terms: Hashes of the query's terms, repeats included.
            k: At most this many; at least 1.
            mask: Shape `(chunk_count,)`: which chunks may be found. Global statistics are not affected.

        Returns:
            Chunk ids and their scores, both of the same length.
        """
        if k < 1:
            raise ValueError("k must be at least 1")
        if mask is not None and mask.shape != (self.chunk_count,):
            raise ValueError(f"the mask has shape {mask.shape}, not ({self.chunk_count},): one entry a chunk ordinal")
        totals = self._totals(terms)
        # Every term that a chunk holds adds a positive amount, so a positive total means: holds a query term.
        touched = np.flatnonzero(totals if mask is None else totals * mask)
        scores = totals[touched]
        if touched.size > k:
            # All that tie with the k-th stay in, or the partition would choose among them at random.
            kept = scores >= np.partition(scores, touched.size - k)[touched.size - k]
            touched, scores = touched[kept], scores[kept]
        order = np.argsort(-scores, kind="stable")[:k]
        return self.chunk_ids[touched[order]], scores[order]

    def _totals(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """The score of every chunk, shape `(chunk_count,)`."""
        distinct, repeats = np.unique(terms, return_counts=True)
        columns, known = _positions(self._postings.terms, distinct)
        columns, repeats = columns[known], repeats[known]
        if not columns.size:
            return np.zeros(self.chunk_count)
        starts, stops = self._postings.indptr[columns], self._postings.indptr[columns + 1]
        slices = [slice(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        ordinals = np.concatenate([self._postings.ordinals[postings] for postings in slices])
        frequencies = np.concatenate([self._postings.frequencies[postings] for postings in slices])
        weights = np.repeat(self._idf[columns] * repeats * self._gain, stops - starts)
        gains = weights * frequencies / (frequencies + self._norm[ordinals])
        # NumPy's stub knows the result without weights only.
        return cast("NDArray[np.float64]", np.bincount(ordinals, gains, minlength=self.chunk_count))

    def score(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The exact scores of the given chunks, shape `(n_chunks,)`; 0 for a chunk that is not in the index."""
        totals: NDArray[np.float64] = self.contributions(terms, chunk_ids).sum(axis=1)
        return totals

    def contributions(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """What each query term adds to each chunk's score, shape `(n_chunks, n_terms)`."""
        frequencies = self.frequencies(terms, chunk_ids)
        norm = np.ones(chunk_ids.size)
        ordinals, known = _positions(self.chunk_ids, chunk_ids)
        norm[known] = self._norm[ordinals[known]]
        return self.idf(terms) * self._gain * frequencies / (frequencies + norm[:, np.newaxis])

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        """How often each chunk holds each term, shape `(n_chunks, n_terms)`."""
        found = np.zeros((chunk_ids.size, terms.size), dtype=np.uint32)
        ordinals, in_index = _positions(self.chunk_ids, chunk_ids)
        columns, known = _positions(self._postings.terms, terms)
        for position in np.flatnonzero(known):
            start, stop = self._postings.indptr[columns[position] : columns[position] + 2]
            places, holds = _positions(self._postings.ordinals[start:stop], ordinals.astype(np.int32))
            holds &= in_index
            found[holds, position] = self._postings.frequencies[start:stop][places[holds]]
        return found

    def idf(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Each term's idf, shape `(n_terms,)`; that of a term in no chunk for an unknown one."""
        columns, known = _positions(self._postings.terms, terms)
        values = np.full(terms.size, self._unknown_idf)
        values[known] = self._idf[columns[known]]
        return values

    def state(self) -> dict[str, Any]:
        """The index in builtin types: arrays as (dtype, shape, bytes), so that unpickling needs no class."""
        arrays = {name: getattr(self._postings, name).astype(dtype, copy=False) for name, dtype in _DTYPES.items()}
        return {"format": FORMAT} | {
            name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()
        }

    @classmethod
    def from_state(cls, state: object) -> Self:
        """Read what `state` wrote.

        Raises:
            ValueError: It is another format, or not a state at all.
        """
        if not isinstance(state, Mapping) or state.get("format") != FORMAT:
            raise ValueError(f"not an index of format {FORMAT}")
        return cls(SparsePostings(**{name: _read_array(state, name, dtype) for name, dtype in _DTYPES.items()}))


def _read_array(state: Mapping[str, Any], name: str, dtype: DTypeLike) -> NDArray[Any]:
    try:
        stored_dtype, shape, data = state[name]
        if stored_dtype != dtype:
            raise ValueError(f"{name} is {stored_dtype}, not {dtype}")
        return np.frombuffer(data, dtype).reshape(shape)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name} is missing or not an array") from error


def _positions(ascending: NDArray[Any], wanted: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each wanted value stands, and whether it is there at all (its position is meaningless otherwise)."""
    positions = np.searchsorted(ascending, wanted)
    if not ascending.size:
        return positions, np.zeros(wanted.size, dtype=np.bool_)
    return positions, ascending[np.minimum(positions, ascending.size - 1)] == wanted
