"""Single characters and pairs of them as evidence, where a script has no spaces: what words lose to segmentation.

Only Chinese characters and kana count: of other scripts a word is evidence enough, and Hangul has spaces. What a chunk holds is
counted as it is searched, so an index keeps no more than in how many chunks each character and pair stands.

Source: Nie, Gao, Zhang and Zhou, "On the use of words and n-grams for Chinese information retrieval", IRAL 2000, who found words,
bigrams and single characters together better than each of them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retrieval.bm25 import PRIOR_CHUNKS, okapi_parameters, saturated
from retrieval.characters import normal_form
from retrieval.postings import inverse_document_frequency, positions, read_array

# Chinese characters with their radicals and compatibility forms, and kana with their halfwidth forms, of the basic plane.
_RANGES = (
    (0x2E80, 0x2FD5),
    (0x3005, 0x3007),
    (0x3041, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9D),
)
_COUNTING = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _RANGES)}]+")
PAIR_BITS = 16
UNITS = 1 << PAIR_BITS
VOICED_MARKS = "\u3099\u309a\uff9e\uff9f"  # one character with the kana before, in NFKC
CHUNKS_AT_ONCE = 1_000


def counts(term: str) -> bool:
    """Whether it consists of characters that count."""
    return _COUNTING.fullmatch(term) is not None


@cache
def _character_of_unit() -> NDArray[np.uint32]:
    """The character that each unit of UTF-16 counts as, shape (UNITS,); 0 for one that does not count."""
    table = np.zeros(UNITS, dtype=np.uint32)
    for first, last in _RANGES:
        for unit in range(first, last + 1):
            folded = normal_form("NFKC", chr(unit))
            table[unit] = ord(folded) if len(folded) == 1 else 0
    return table


def _characters(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """The characters of all texts, 0 for what does not count and after each text; and where each text begins."""
    joined = "\n".join([*texts, ""])
    if any(mark in joined for mark in VOICED_MARKS):
        # Only those with a mark: what others hold must not change what a text counts as.
        texts = [normal_form("NFKC", text) if any(mark in text for mark in VOICED_MARKS) else text for text in texts]
        joined = "\n".join([*texts, ""])
    encoded = joined.encode("utf-16-le", "surrogatepass")
    if len(encoded) == 2 * len(joined):
        lengths = [len(text) + 1 for text in texts]
    else:
        lengths = [len(text.encode("utf-16-le", "surrogatepass")) // 2 + 1 for text in texts]
    starts = np.cumsum([0, *lengths], dtype=np.intp)[:-1]
    return _character_of_unit().take(np.frombuffer(encoded, "<u2"), mode="clip"), starts


def _lengths(characters: NDArray[np.uint32], starts: NDArray[np.intp]) -> NDArray[np.intp]:
    """How many characters of each text count."""
    return np.add.reduceat(characters > 0, starts, dtype=np.intp) if starts.size else np.zeros(0, dtype=np.intp)


def _codes(characters: NDArray[np.uint32], singles: NDArray[np.intp]) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """The code of the character at each of some places, ascending, then of every pair of two such neighbours; and its place.

    A character's code is its number; a pair's has that of the first one in its high bits.
    """
    pairs = singles[:-1][np.diff(singles) == 1] if singles.size else singles
    codes = np.concatenate([characters[singles], characters[pairs] << PAIR_BITS | characters[pairs + 1]])
    return codes, np.concatenate([singles, pairs])


@lru_cache(maxsize=1_024)
def query_codes(text: str, words: tuple[str, ...]) -> NDArray[np.uint32]:
    """The distinct pairs of a query, and those of its characters that stand in any of some words, as codes, ascending."""
    characters, (_start, end) = _characters([text, "\n".join(words)])
    in_words = set(characters[end:].tolist())
    own = _codes(characters, np.flatnonzero(characters[:end]))[0].tolist()
    found = np.array(sorted({each for each in own if each >= UNITS or each in in_words}), dtype=np.uint32)
    found.flags.writeable = False
    return found


def written(code: int) -> str:
    """The character or the pair that a code stands for."""
    return chr(code) if code < UNITS else chr(code >> PAIR_BITS) + chr(code & (UNITS - 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    codes: NDArray[np.uint32]  # ascending
    document_frequencies: NDArray[np.uint32]
    chunk_count: int  # of those with any character that counts
    total_length: int  # characters that count, in all chunks

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        characters, starts = _characters(texts)
        lengths = _lengths(characters, starts)
        codes, places = _codes(characters, np.flatnonzero(characters))
        keys = np.repeat(np.arange(len(texts), dtype=np.uint64), np.diff(starts, append=characters.size))[places]
        keys <<= np.uint64(32)
        keys |= codes
        keys.sort()
        # Each code once a chunk.
        once = np.sort(keys[np.append(True, keys[1:] != keys[:-1])[: keys.size]].astype(np.uint32))
        first = np.flatnonzero(np.append(True, once[1:] != once[:-1])[: once.size])
        distinct, counts = once[first], np.diff(first, append=once.size)
        return cls(distinct, counts.astype(np.uint32), int(np.count_nonzero(lengths)), int(lengths.sum()))

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        codes = np.concatenate([part.codes for part in parts])
        distinct, places = np.unique(codes, return_inverse=True)
        counts = np.bincount(places, np.concatenate([part.document_frequencies for part in parts]), distinct.size)
        return cls(
            distinct,
            counts.astype(np.uint32),
            sum(part.chunk_count for part in parts),
            sum(part.total_length for part in parts),
        )


class CharacterCounts:
    """In how many chunks of a knowledge base each character and each pair of characters stands; immutable.

    Chunks that were removed or edited since the base was built still count until the next one is, as in Lucene: what they held
    is not known here.
    """

    def __init__(self, base: _Counts, added: _Counts | None = None) -> None:
        self._base = base
        self._parts = (base,) if added is None else (base, added)
        self.chunk_count = sum(part.chunk_count for part in self._parts)
        # 1 where it would not matter, since no chunk holds a character.
        self._average_length = sum(part.total_length for part in self._parts) / max(self.chunk_count, 1) or 1.0

    def with_added(self, texts: Sequence[str]) -> Self:
        """The base with the texts of chunks that were added or edited since."""
        return type(self)(self._base, _Counts.of(texts))

    def with_texts(self, texts: Sequence[str]) -> Self:
        """As these, the texts added since the base included, with further ones."""
        return type(self)(self._base, _Counts.merged([*self._parts[1:], _Counts.of(texts)]))

    @property
    def nbytes(self) -> int:
        return sum(part.codes.nbytes + part.document_frequencies.nbytes for part in self._parts)

    def _document_frequencies(self, codes: NDArray[np.uint32]) -> NDArray[np.int64]:
        found = np.zeros(codes.size, dtype=np.int64)
        for part in self._parts:
            places, known = positions(part.codes, codes)
            found[known] += part.document_frequencies[places[known]]
        return found

    def rarity(self, codes: NDArray[np.uint32]) -> NDArray[np.float64]:
        """As `OkapiIndex.rarity`, shape (n_codes,)."""
        return inverse_document_frequency(self._document_frequencies(codes), self.chunk_count + PRIOR_CHUNKS)

    def most(self, codes: NDArray[np.uint32]) -> NDArray[np.float64]:
        """The bound of what each code can add to a score, shape (n_codes,): BM25's with Lucene's idf."""
        idf = inverse_document_frequency(self._document_frequencies(codes), self.chunk_count)
        return idf * (okapi_parameters().k1 + 1)

    def saturation(self, codes: NDArray[np.uint32], texts: Sequence[str]) -> NDArray[np.float64]:
        """As `Lexicon.saturation`, of texts and of codes, ascending: shape (n_texts, n_codes)."""
        characters, starts = _characters(texts)
        is_wanted = np.zeros(UNITS, dtype=np.bool_)
        is_wanted[codes >> PAIR_BITS] = is_wanted[codes & (UNITS - 1)] = True
        is_wanted[0] = False
        found, places = _codes(characters, np.flatnonzero(is_wanted.take(characters, mode="clip")))
        columns, known = positions(codes, found)
        rows = np.searchsorted(starts, places[known], "right") - 1
        cells = rows * codes.size + columns[known]
        frequencies = np.bincount(cells, minlength=len(texts) * codes.size).reshape(len(texts), codes.size)
        lengths = _lengths(characters, starts)[:, np.newaxis].astype(np.float64)
        return saturated(frequencies, lengths, self._average_length)

    def state(self) -> dict[str, Any]:
        """The base in builtin types, arrays as (dtype, shape, bytes)."""
        codes = self._base.codes.astype("<u4")
        counts = self._base.document_frequencies.astype("<u4")
        return {
            "codes": (codes.dtype.str, codes.shape, codes.tobytes()),
            "document_frequencies": (counts.dtype.str, counts.shape, counts.tobytes()),
            "chunk_count": self._base.chunk_count,
            "total_length": self._base.total_length,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Reads what `state` wrote; raises ValueError for what is no state."""
        codes, counts = (read_array(state, name, ("<u4",)) for name in ("codes", "document_frequencies"))
        totals: list[Any] = [state.get(name) for name in ("chunk_count", "total_length")]
        if not (codes.ndim == counts.ndim == 1 and codes.size == counts.size):
            raise ValueError("codes and document_frequencies are not one-dimensional and of equal size")
        if (codes[1:] <= codes[:-1]).any() or (counts < 1).any():
            raise ValueError("codes are not ascending, or a document frequency is 0")
        if any(type(total) is not int or total < 0 for total in totals):
            raise ValueError(f"chunk_count and total_length are {totals}")
        return cls(_Counts(codes, counts, *totals))


class CharacterCounter:
    """Counts the characters of chunks that come one by one, and keeps no more than some of their texts at a time."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._parts: list[_Counts] = []

    def add(self, text: str) -> None:
        self._waiting.append(text)
        if len(self._waiting) == CHUNKS_AT_ONCE:
            self._count()

    def counts(self) -> CharacterCounts:
        self._count()
        return CharacterCounts(_Counts.merged(self._parts))

    def _count(self) -> None:
        self._parts.append(_Counts.of(self._waiting))
        self._waiting = []
