"""rank-bm25's BM25Okapi over sparse postings, so that a query touches its own terms only.

    score(D, Q) = sum over q in Q of idf(q) * f(q, D) * (k1 + 1) / (f(q, D) + k1 * (1 - b + b * |D| / avgdl))

with k1, b, epsilon and idf taken from the installed library (Trotman et al., Improvements to BM25 and Language Models
Examined, 2014). A term that the query repeats counts as often as it is repeated, as in the library. Where the library's
idf is not positive ours differs: see `okapi_idf`, the one place that says how.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import import_dependency
from retrieval.postings import LivePostings, Segment, inverse_document_frequency, merge_lexicons, positions

FORMAT = 2
PRIOR_CHUNKS = 200
# Totals that are first reduced to their best one.
GROUP = 32
BM25_UNAVAILABLE = "⚠️ BM25 dependencies unavailable, using vector-only search mode."


def require_dependencies() -> None:
    """Imports what the keyword channel needs; a caller that goes on without it logs `BM25_UNAVAILABLE` once.

    Raises DependencyMissing where rank_bm25, jieba or PyStemmer cannot be imported.
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
    defaults = inspect.signature(import_dependency("rank_bm25").BM25Okapi.__init__).parameters
    return OkapiParameters(**{name: float(defaults[name].default) for name in ("k1", "b", "epsilon")})


def okapi_idf(document_frequencies: NDArray[np.int64], chunk_count: int) -> NDArray[np.float64]:
    """The idf of terms that stand in `document_frequencies` of `chunk_count` chunks, shape as given, always positive.

    `document_frequencies` holds every term of the index once, since BM25Okapi replaces a negative idf (a term in more
    than half of the chunks) by epsilon times the mean idf of all terms. A term in no chunk does not count there.

    Where we differ from the library: that replacement is negative too in a small KB (-0.27 for its only chunk), and
    the idf of a term in exactly half of the chunks is 0, so that a chunk which holds the query's term would score no
    better than one which does not. There idf is `epsilon * log(1 + (N - n + 0.5) / (n + 0.5))`, epsilon times
    Lucene's idf.
    """
    if not document_frequencies.size:
        return np.empty(0)
    # A large index has many terms and few document frequencies.
    term_counts = np.bincount(document_frequencies)
    distinct = np.flatnonzero(term_counts)
    term_counts[0] = 0
    idf = _library_idf(distinct, chunk_count)
    mean = (idf * term_counts[distinct]).sum() / max(term_counts.sum(), 1)
    epsilon = okapi_parameters().epsilon
    idf = np.where(idf < 0, epsilon * mean, idf)
    by_frequency = np.zeros(term_counts.size)
    by_frequency[distinct] = np.where(idf > 0, idf, epsilon * inverse_document_frequency(distinct, chunk_count))
    return by_frequency[document_frequencies]


def _library_idf(document_frequencies: NDArray[np.int64], chunk_count: int) -> NDArray[np.float64]:
    """BM25Okapi's own idf before its floor, of distinct document frequencies."""
    okapi = import_dependency("rank_bm25").BM25Okapi
    model = okapi.__new__(okapi)
    model.corpus_size, model.epsilon, model.idf = chunk_count, 0.0, {}
    model._calc_idf({frequency: frequency for frequency in document_frequencies.tolist()})
    values = np.array(list(model.idf.values()))
    model.idf = {}
    for position in np.flatnonzero(2 * document_frequencies > chunk_count).tolist():
        # Negative, so the floor took its place; but the mean over a corpus of one term is that term's idf.
        model._calc_idf({0: int(document_frequencies[position])})
        values[position] = model.average_idf
    return values


def saturated(frequencies: NDArray[Any], lengths: NDArray[Any], average_length: float) -> NDArray[np.float64]:
    parameters = okapi_parameters()
    norm = 1 - parameters.b + parameters.b * lengths / average_length
    weights: NDArray[np.float64] = frequencies / (frequencies + parameters.k1 * norm)
    return weights


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Live postings with the statistics of the whole index."""

    live: LivePostings
    weights: NDArray[np.float64]  # f / (f + k1 * (1 - b + b * |D| / avgdl)) for each of the segment's impacts
    # In 32 bits. A query reads and writes little else than these and its totals, and takes an eighth more time in 64.
    search_weights: NDArray[np.float32]

    @classmethod
    def of(cls, live: LivePostings, average_length: float) -> Self:
        weights = saturated(live.segment.impact_frequencies, live.segment.impact_lengths, average_length)
        return cls(live, weights, weights.astype(np.float32))


class OkapiIndex:
    """An immutable keyword index over one version of one KB, and its `Lexicon`; safe to share between threads.

    It is a base, or a base with a few chunks changed: these are hidden in the base, and those that still exist stand in
    a second, small segment, as in Lucene. Statistics are always those of all chunks together, so that scores are what a
    full build over the same chunks would give.
    """

    def __init__(self, parts: Sequence[LivePostings], base: Self | None = None, changed_count: int = 0) -> None:
        self._base = base
        self.changed_count = changed_count
        self._gain = okapi_parameters().k1 + 1
        self.chunk_count = sum(part.chunk_count for part in parts)
        # 1 where it would not matter, since no chunk holds a term.
        self._average_length = sum(part.total_length for part in parts) / max(self.chunk_count, 1) or 1.0
        self._parts = tuple(_Part.of(part, self._average_length) for part in parts)
        self._terms, document_frequencies = merge_lexicons(parts)
        self._document_frequencies = document_frequencies.astype(np.int32)
        self.posting_count = int(document_frequencies.sum())
        # The last one is that of a term in no chunk.
        self._idf = okapi_idf(np.append(document_frequencies, 0), self.chunk_count)

    @classmethod
    def build(cls, rows: Iterable[tuple[int, bytes, bytes, int]]) -> Self:
        """An index of stored postings, made without tokenising.

        Rows are (chunk id, `Postings.terms_bytes`, `Postings.frequencies_bytes`, `Postings.length`) in any order.
        Raises RetrievalError where a row's terms and frequencies do not belong together, and DependencyMissing without
        rank_bm25.
        """
        return cls([LivePostings(Segment.from_rows(rows))])

    def with_changes(self, changed: NDArray[np.int64], rows: Iterable[tuple[int, bytes, bytes, int]]) -> Self:
        """The base with other postings for the changed chunks; shares the base's arrays.

        `changed` holds ids of the chunks that were added, edited or deleted since the base, ascending, each once: what
        an earlier call changed and this one does not name is as in the base again. `rows` are as for `build`, of those
        that exist now. Raises RetrievalError as `build`, and ValueError where a row's chunk is not among the changed
        ones.
        """
        delta = Segment.from_rows(rows)
        if not positions(changed, delta.chunk_ids)[1].all():
            raise ValueError("postings of a chunk that is not among the changed ones: name it there too")
        stored = self.base._parts[0].live.segment
        ordinals, known = positions(stored.chunk_ids, changed)
        return type(self)([LivePostings(stored, ordinals[known]), LivePostings(delta)], self.base, changed.size)

    def with_rows(self, rows: Iterable[tuple[int, bytes, bytes, int]]) -> Self:
        """This index, changes included, with other postings for some chunks, or with some that it lacks.

        `rows` are as for `build`. For an answer to what would be: where postings are written, `with_changes` has them.
        """
        added = Segment.from_rows(rows)
        parts = []
        for part in self._parts:
            ordinals, known = part.live.locate(added.chunk_ids)
            parts.append(LivePostings(part.live.segment, np.union1d(part.live.hidden, ordinals[known])))
        return type(self)([*parts, LivePostings(added)], self.base)

    @property
    def base(self) -> Self:
        return self if self._base is None else self._base

    @property
    def chunk_ids(self) -> NDArray[np.int64]:
        """All chunks that can be found, ascending, shape `(chunk_count,)`."""
        return np.sort(np.concatenate([part.live.chunk_ids for part in self._parts]))

    @cached_property
    def nbytes(self) -> int:
        """Memory of all arrays in bytes, the base's included."""
        return sum({id(array): array.nbytes for array in [*self._arrays(), *self.base._arrays()]}.values())

    def _arrays(self) -> Iterator[NDArray[Any]]:
        yield from (self._terms, self._idf, self._document_frequencies)
        for part in self._parts:
            yield from (*part.live.segment.arrays, part.live.hidden, part.weights, part.search_weights)

    def search(
        self, terms: NDArray[np.uint64], k: int, only: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The best `k` (at least 1) chunks that hold a query term and their scores, equal scores by chunk id.

        `terms` are hashes, repeats included; `only` holds the ids of the chunks that may be found, ascending, each
        once, and does not affect statistics. Scores are added up in 32 bits, those of `score` in 64: a difference of
        some 1e-7 of one.
        """
        if k < 1:
            raise ValueError("k must be at least 1")
        distinct, repeats = np.unique(terms, return_counts=True)
        factors = self.idf(distinct) * repeats * self._gain
        found = [self._search_part(part, distinct, factors, k, only) for part in self._parts]
        chunk_ids, scores = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.lexsort((chunk_ids, -scores))[:k]
        return chunk_ids[order], scores[order].astype(np.float64)

    @staticmethod
    def _search_part(
        part: _Part, terms: NDArray[np.uint64], factors: NDArray[np.float64], k: int, only: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        totals = _totals(part, terms, factors)
        totals[part.live.hidden] = 0
        chunk_ids = part.live.segment.chunk_ids
        if only is not None:
            ordinals, known = positions(chunk_ids, only)
            chunk_ids, totals = chunk_ids[ordinals[known]], totals[ordinals[known]]
        # The best `k` totals above zero, and all that tie with the last of them.
        best = _candidates(totals, k)
        if best.size > k:
            scores = totals[best]
            best = best[scores >= np.partition(scores, best.size - k)[best.size - k]]
        return chunk_ids[best], totals[best]

    def score(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The exact scores of the given chunks, shape `(n_chunks,)`; 0 for a chunk that is not in the index."""
        totals: NDArray[np.float64] = self.contributions(terms, chunk_ids).sum(axis=1)
        return totals

    def contributions(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.most(terms) * self.saturation(terms, chunk_ids)

    def saturation(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        weights = np.zeros((chunk_ids.size, terms.size))
        for part in self._parts:
            for position, rows, impacts in _impacts(part.live, terms, chunk_ids):
                weights[rows, position] = part.weights[impacts]
        return weights

    def saturation_of(self, frequencies: NDArray[np.uint32], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        return saturated(frequencies, lengths[:, np.newaxis], self._average_length)

    def most(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        return self.idf(terms) * self._gain

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        found = np.zeros((chunk_ids.size, terms.size), dtype=np.uint32)
        for part in self._parts:
            for position, rows, impacts in _impacts(part.live, terms, chunk_ids):
                found[rows, position] = part.live.segment.impact_frequencies[impacts]
        return found

    def lengths(self, chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The tokens of each of the given chunks, shape `(n_chunks,)`; 0 for a chunk that is not in the index."""
        found = np.zeros(chunk_ids.size)
        for part in self._parts:
            ordinals, here = part.live.locate(chunk_ids)
            found[here] = part.live.segment.lengths[ordinals[here]]
        return found

    def idf(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        # An unknown term has that of a term in no chunk.
        places, known = positions(self._terms, terms)
        return self._idf[np.where(known, places, -1)]

    def rarity(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """How telling each term is, shape `(n_terms,)`: Lucene's idf as if there were PRIOR_CHUNKS more that lack it.

        In a small KB idf itself tells little: among three chunks a term that none of them holds would count four times
        as much as one that one of them does, so that a query's most ordinary word could decide what it is about.
        """
        places, known = positions(self._terms, terms)
        found = self._document_frequencies[np.where(known, places, 0)] if self._terms.size else 0
        return inverse_document_frequency(np.where(known, found, 0), self.chunk_count + PRIOR_CHUNKS)

    def state(self) -> dict[str, Any]:
        """A base in builtin types: arrays as (dtype, shape, bytes), so that unpickling needs no class.

        Raises ValueError for a base with changes.
        """
        if self._base is not None:
            raise ValueError("an index with changes is not stored: store its base")
        return {"format": FORMAT} | self._parts[0].live.segment.state()

    @classmethod
    def from_state(cls, state: object) -> Self:
        """Reads what `state` wrote; raises ValueError for another format, or what is no state at all."""
        if not isinstance(state, Mapping) or state.get("format") != FORMAT:
            raise ValueError(f"not an index of format {FORMAT}")
        return cls([LivePostings(Segment.from_state(state))])


def _totals(part: _Part, terms: NDArray[np.uint64], factors: NDArray[np.float64]) -> NDArray[np.float32]:
    """The score of every chunk of the segment, hidden ones included, shape `(n_chunks,)`.

    Every term that a chunk holds adds a positive amount, so a positive total means: holds a query term. Terms are added
    one after the other in the order of their hashes, which makes equal chunks equal to the last bit in every segment.
    """
    segment = part.live.segment
    totals = np.zeros(segment.chunk_ids.size, dtype=np.float32)
    columns, known = positions(segment.terms, terms)
    starts = segment.indptr[columns[known]].tolist()
    stops = segment.indptr[columns[known] + 1].tolist()
    for start, stop, factor in zip(starts, stops, factors[known].tolist(), strict=True):
        # Numbers of impacts are never out of range, and `take` is twice as fast when it need not look.
        gains = part.search_weights.take(segment.impacts[start:stop], mode="clip")
        gains *= factor
        # Indices of another type would be converted one by one.
        np.add.at(totals, segment.ordinals[start:stop].astype(np.intp), gains)
    return totals


def _candidates(totals: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Positions of some totals, all of the best `k` and their ties among them.

    The totals are dealt into groups. The best ones of `k` groups are `k` totals, so that what is below the least of them
    is not among the best `k`, nor is a group whose best one is below.
    """
    group_count = totals.size // GROUP
    if group_count > k:
        groups = totals[: group_count * GROUP].reshape(GROUP, group_count)
        best = groups.max(axis=0)
        least = np.partition(best, group_count - k)[group_count - k]
        if least > 0:
            members = np.flatnonzero(best >= least) + group_count * np.arange(GROUP)[:, np.newaxis]
            return np.concatenate([members.ravel(), np.arange(group_count * GROUP, totals.size)])
    return np.flatnonzero(totals)


def _impacts(
    live: LivePostings, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]
) -> Iterable[tuple[int, NDArray[np.int64], NDArray[Any]]]:
    """For each term that the segment knows: its position, the rows of the chunks that hold it, and their impacts."""
    segment = live.segment
    ordinals, here = live.locate(chunk_ids)
    rows = np.flatnonzero(here)
    wanted = ordinals[rows].astype(np.int32)
    columns, known = positions(segment.terms, terms)
    for position in np.flatnonzero(known).tolist():
        postings = slice(*segment.indptr[columns[position] : columns[position] + 2].tolist())
        places, holds = positions(segment.ordinals[postings], wanted)
        yield position, rows[holds], segment.impacts[postings][places[holds]]
