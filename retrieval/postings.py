"""A chunk's terms as they are stored, as 64-bit hashes and counts, so that a rebuild never tokenises; and all by term.

Also character n-grams: what words share when they are misspelt, cut differently or unknown to any dictionary.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retrieval.characters import CJK, LATIN
from retrieval.errors import RetrievalError
from retrieval.tokenize import CACHED_CHARACTERS, normalize


def term_hash(token: str) -> int:
    """64 bits of BLAKE2b: the same in every process and on every platform, which `hash()` is not."""
    return int.from_bytes(blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


_cached_hash = lru_cache(maxsize=65_536)(term_hash)


def hash_terms(tokens: Sequence[str]) -> NDArray[np.uint64]:
    """The hash of each token, shape `(len(tokens),)`; order and repeats are kept."""
    hashes = ((_cached_hash if len(token) <= CACHED_CHARACTERS else term_hash)(token) for token in tokens)
    return np.fromiter(hashes, dtype=np.uint64, count=len(tokens))


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """A text's terms as they are stored: hashes ascending and unique, how often each occurs, tokens in all."""

    terms: NDArray[np.uint64]
    frequencies: NDArray[np.uint32]
    length: int
    lexemes: tuple[str, ...] = ()  # what full-text search should find the chunk by; not part of the index
    questions: tuple[bytes, ...] = ()  # `packed` of each question that the chunk answers

    @property
    def terms_bytes(self) -> bytes:
        """Little-endian uint64."""
        return self.terms.astype("<u8", copy=False).tobytes()

    @property
    def frequencies_bytes(self) -> bytes:
        """Little-endian uint32."""
        return self.frequencies.astype("<u4", copy=False).tobytes()

    @property
    def packed(self) -> bytes:
        """Both, one after the other."""
        return self.terms_bytes + self.frequencies_bytes

    @classmethod
    def from_bytes(cls, terms: bytes, frequencies: bytes, length: int) -> Self:
        """Reads what `terms_bytes` and `frequencies_bytes` wrote; raises RetrievalError where they do not match."""
        if len(terms) % 8 or len(terms) != 2 * len(frequencies):
            raise RetrievalError("stored postings are damaged: index the document again")
        return cls(np.frombuffer(terms, "<u8"), np.frombuffer(frequencies, "<u4"), length)


def count_postings(tokens: Sequence[str]) -> Postings:
    terms, frequencies = np.unique(hash_terms(tokens), return_counts=True)
    return Postings(terms, frequencies.astype(np.uint32), len(tokens))


_RUNS = re.compile(rf"([{CJK}]+)|{LATIN}+")


def ngrams(text: str) -> list[str]:
    """The distinct n-grams of a text in order of appearance: NFKC, case folded.

    Pairs of neighbouring Chinese, Japanese and Korean characters, and three letters or digits in a row of words in any
    other script; a shorter word is one itself, a single character of the former is none.

    Source: Foo, Li, "Chinese word segmentation and its effect on information retrieval", 2004, for bigrams; McNamee,
    Mayfield, "Character n-gram tokenization for European language text retrieval", 2004.
    """
    folded = normalize(text).casefold()
    return list(dict.fromkeys(chain.from_iterable(map(_of_run, _RUNS.finditer(folded)))))


def _of_run(run: re.Match[str]) -> list[str]:
    characters = run[0]
    size = 2 if run[1] else 3
    if len(characters) < size:
        return [] if run[1] else [characters]
    return [characters[start : start + size] for start in range(len(characters) - size + 1)]


def inverse_document_frequency(counts: NDArray[np.int64], chunk_count: int) -> NDArray[np.float64]:
    """How much a term tells, by the number of chunks that hold it: positive always, shape (n_terms,).

    Source: Lucene's BM25Similarity, log(1 + (N - n + 0.5) / (n + 0.5)).
    """
    return np.log1p((np.maximum(chunk_count, counts) - counts + 0.5) / (counts + 0.5))


_STORED_DTYPES: dict[str, tuple[str, ...]] = {
    "chunk_ids": ("<i8",),
    "lengths": ("<u4",),
    "terms": ("<u8",),
    "indptr": ("<i8",),
    "gaps": ("<i4",),
    "frequencies": ("|u1", "<u2", "<u4"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A corpus by term (compressed sparse columns): term t's postings are `indptr[t]:indptr[t + 1]`.

    A chunk's ordinal is its position in `chunk_ids`. Everything is ascending: chunk ids, term hashes, and the ordinals
    within a term.

    A posting's impact is, as in Lucene, what decides its weight within a term: how often the chunk holds the term, and
    how long the chunk is. A corpus has few distinct ones (7,000 in 3.1 million postings), so a posting stores a 16-bit
    number of its impact, and a change of the average length changes that many weights and no posting.
    """

    chunk_ids: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    terms: NDArray[np.uint64]
    indptr: NDArray[np.int64]
    ordinals: NDArray[np.int32]
    impacts: NDArray[np.unsignedinteger[Any]]
    impact_frequencies: NDArray[np.uint32]
    impact_lengths: NDArray[np.uint32]

    def __post_init__(self) -> None:
        for array in self.arrays:
            array.flags.writeable = False

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, bytes, bytes, int]]) -> Self:
        """Gathers stored postings row by row, none of which is kept; see `OkapiIndex.build`."""
        chunk_ids: list[int] = []
        sizes: list[int] = []
        lengths: list[int] = []
        terms, frequencies = bytearray(), bytearray()
        for chunk_id, hashes, counts, length in rows:
            if len(hashes) % 8 or len(hashes) != 2 * len(counts):
                raise RetrievalError(f"stored postings of chunk {chunk_id} are damaged: index its document again")
            chunk_ids.append(chunk_id)
            sizes.append(len(counts) // 4)
            lengths.append(length)
            terms += hashes
            frequencies += counts
        return cls.from_columns(
            np.array(chunk_ids, dtype=np.int64),
            np.array(sizes, dtype=np.int64),
            np.array(lengths, dtype=np.uint32),
            terms,
            frequencies,
        )

    @classmethod
    def from_columns(
        cls,
        chunk_ids: NDArray[np.int64],
        sizes: NDArray[np.int64],
        lengths: NDArray[np.uint32],
        terms: bytes | bytearray,
        frequencies: bytes | bytearray,
    ) -> Self:
        """Gathers stored postings by column, chunks in any order, each once.

        `sizes` are the numbers of postings of the chunks; `terms` and `frequencies` are their `Postings.terms_bytes`
        and `Postings.frequencies_bytes`, one after the other. Raises RetrievalError where these do not fit the sizes.
        """
        total = int(sizes.sum())
        if (len(terms), len(frequencies)) != (8 * total, 4 * total):
            raise RetrievalError("stored postings are damaged: index the knowledge base's documents again")
        hashes, counts = np.frombuffer(terms, "<u8"), np.frombuffer(frequencies, "<u4")
        # A copy, because a segment's arrays become read-only and these are the caller's.
        chunk_ids, lengths = np.array(chunk_ids, dtype=np.int64), np.array(lengths, dtype=np.uint32)
        if (chunk_ids[1:] <= chunk_ids[:-1]).any():
            order = np.argsort(chunk_ids)
            starts = (np.cumsum(sizes) - sizes)[order]
            chunk_ids, sizes, lengths = chunk_ids[order], sizes[order], lengths[order]
            # The ranges of the chunks' postings, one after the other.
            postings = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(total)
            hashes, counts = hashes[postings], counts[postings]
            if (chunk_ids[1:] == chunk_ids[:-1]).any():
                raise ValueError("a chunk has two rows of postings: pass one a chunk")
        distinct, impacts = _number(counts, np.repeat(lengths, sizes))
        by_term, hashes = _sort(hashes)
        first = np.ones(hashes.size, dtype=np.bool_)
        np.not_equal(hashes[1:], hashes[:-1], out=first[1:])
        return cls(
            chunk_ids=chunk_ids,
            lengths=lengths,
            terms=hashes[first],
            indptr=np.append(np.flatnonzero(first), hashes.size),
            ordinals=np.repeat(np.arange(chunk_ids.size, dtype=np.int32), sizes)[by_term],
            impacts=impacts[by_term],
            impact_frequencies=distinct[0],
            impact_lengths=distinct[1],
        )

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        return tuple(getattr(self, each.name) for each in fields(self))

    def state(self) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        """What it was made of, as (dtype, shape, bytes).

        Gaps between ordinals and plain frequencies compress to half of the size of ordinals and impacts.
        """
        frequencies = self.impact_frequencies[self.impacts]
        arrays = {
            "chunk_ids": self.chunk_ids,
            "lengths": self.lengths,
            "terms": self.terms,
            "indptr": self.indptr,
            "gaps": np.diff(self.ordinals, prepend=np.int32(0)),
            "frequencies": frequencies.astype(np.min_scalar_type(frequencies.max(initial=0))),
        }
        little_endian = (
            (name, array.astype(array.dtype.newbyteorder("<"), copy=False)) for name, array in arrays.items()
        )
        return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in little_endian}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Reads what `state` wrote; raises ValueError for what is no state."""
        stored = {name: read_array(state, name, dtypes) for name, dtypes in _STORED_DTYPES.items()}
        chunk_ids, lengths, terms, indptr, gaps, frequencies = stored.values()
        if any(each.ndim != 1 for each in stored.values()) or (
            (lengths.size, indptr.size, frequencies.size) != (chunk_ids.size, terms.size + 1, gaps.size)
        ):
            raise ValueError("the arrays do not fit each other")
        if any((each[1:] <= each[:-1]).any() for each in (chunk_ids, terms)):
            raise ValueError("chunk_ids or terms are not ascending")
        if indptr[0] != 0 or indptr[-1] != gaps.size or (indptr[1:] < indptr[:-1]).any():
            raise ValueError("indptr does not divide the postings")
        ordinals = np.cumsum(stored.pop("gaps"), dtype=np.int32)
        if ordinals.min(initial=0) < 0 or ordinals.max(initial=-1) >= chunk_ids.size:
            raise ValueError("a posting is of no chunk")
        distinct, impacts = _number(stored.pop("frequencies"), stored["lengths"][ordinals])
        return cls(
            **stored, ordinals=ordinals, impacts=impacts, impact_frequencies=distinct[0], impact_lengths=distinct[1]
        )


@dataclass(frozen=True, slots=True, eq=False)
class LivePostings:
    """A segment without its hidden chunks."""

    segment: Segment
    # Ordinals of the chunks that are no longer there, ascending.
    hidden: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def chunk_count(self) -> int:
        return self.segment.chunk_ids.size - self.hidden.size

    @property
    def chunk_ids(self) -> NDArray[np.int64]:
        return np.delete(self.segment.chunk_ids, self.hidden)

    @property
    def total_length(self) -> int:
        """Tokens in all chunks."""
        lengths = self.segment.lengths
        return int(lengths.sum(dtype=np.int64)) - int(lengths[self.hidden].sum(dtype=np.int64))

    def document_frequencies(self) -> NDArray[np.int64]:
        """In how many chunks each of the segment's terms stands, shape `(n_terms,)`; 0 where all are hidden."""
        indptr = self.segment.indptr
        frequencies = np.diff(indptr)
        if self.hidden.size:
            is_hidden = np.zeros(self.segment.chunk_ids.size, dtype=np.bool_)
            is_hidden[self.hidden] = True
            # Without the check of each index, which no ordinal fails, half of the time.
            postings = np.flatnonzero(is_hidden.take(self.segment.ordinals, mode="clip"))
            frequencies -= np.bincount(np.searchsorted(indptr, postings, side="right") - 1, minlength=frequencies.size)
        return frequencies

    def locate(self, chunk_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Each chunk's ordinal, and whether it is here and not hidden (its ordinal is meaningless otherwise)."""
        ordinals, known = positions(self.segment.chunk_ids, chunk_ids)
        return ordinals, known & ~positions(self.hidden, ordinals)[1]


def merge_lexicons(parts: Sequence[LivePostings]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The terms of all parts, ascending, and in how many live chunks each stands: both of shape `(n_terms,)`."""
    terms, frequencies = parts[0].segment.terms, parts[0].document_frequencies()
    for part in parts[1:]:
        places, known = positions(terms, part.segment.terms)
        if not known.all():
            frequencies = np.insert(frequencies, places[~known], 0)
            terms = np.insert(terms, places[~known], part.segment.terms[~known])
            places, _ = positions(terms, part.segment.terms)
        frequencies[places] += part.document_frequencies()
    return terms, frequencies


def positions(ascending: NDArray[Any], wanted: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each wanted value stands or would be inserted, and whether it is there at all."""
    places = np.searchsorted(ascending, wanted)
    if not ascending.size:
        return places, np.zeros(wanted.size, dtype=np.bool_)
    return places, ascending[np.minimum(places, ascending.size - 1)] == wanted


def _sort(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Positions of the hashes in ascending order, equal ones as they stand, and the hashes in that order.

    A stable argsort does it as well; to sort numbers made of the leading bits of each hash and its position takes a
    quarter of its time.
    """
    bits = np.uint64(int(hashes.size).bit_length())
    packed = hashes >> bits
    packed <<= bits
    packed |= np.arange(hashes.size, dtype=np.uint64)
    packed.sort()
    packed &= (np.uint64(1) << bits) - np.uint64(1)
    order: NDArray[np.int64] = packed.view(np.int64)
    in_order = hashes[order]
    # Different hashes may share their leading bits; almost sorted already, the rest is fast.
    if (in_order[1:] < in_order[:-1]).any():
        rest = np.argsort(in_order, kind="stable")
        order, in_order = order[rest], in_order[rest]
    return order, in_order


def _number(
    frequencies: NDArray[np.unsignedinteger[Any]], lengths: NDArray[np.uint32]
) -> tuple[tuple[NDArray[np.uint32], NDArray[np.uint32]], NDArray[np.unsignedinteger[Any]]]:
    """Number the distinct pairs: the frequencies and lengths by number, and each posting's number."""
    longest = np.uint64(lengths.max(initial=0)) + np.uint64(1)
    pairs = frequencies.astype(np.uint64)
    pairs *= longest
    pairs += lengths
    largest = int(pairs.max(initial=0))
    if largest <= pairs.size:
        # Dense enough to count instead of sorting. None is out of the table's range, and `take` need not look.
        distinct = np.flatnonzero(np.bincount(pairs.view(np.int64))).astype(np.uint64)
        table = np.zeros(largest + 1, dtype=_smallest(distinct.size))
        table[distinct] = np.arange(distinct.size)
        numbers = table.take(pairs.view(np.int64), mode="clip")
    else:
        distinct, inverse = np.unique(pairs, return_inverse=True)
        numbers = inverse.astype(_smallest(distinct.size))
    return ((distinct // longest).astype(np.uint32), (distinct % longest).astype(np.uint32)), numbers


def _smallest(count: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if count <= 1 << 16 else np.uint32


def read_array(state: Mapping[str, Any], name: str, dtypes: tuple[str, ...]) -> NDArray[Any]:
    try:
        stored_dtype, shape, data = state[name]
        if stored_dtype not in dtypes:
            raise ValueError(f"{name} is {stored_dtype}, not {' or '.join(dtypes)}")
        return np.frombuffer(data, stored_dtype).reshape(shape)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name} is missing or not an array") from error
