"""Term statistics for the time of one search."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from retrieval.postings import hash_terms
from retrieval.types import Lexicon


class _LexiconOver:
    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon

    @property
    def chunk_count(self) -> int:
        return self._lexicon.chunk_count

    def rarity(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        return self._lexicon.rarity(terms)

    def idf(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        return self._lexicon.idf(terms)

    def most(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        return self._lexicon.most(terms)

    def saturation(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._lexicon.saturation(terms, chunk_ids)

    def saturation_of(self, frequencies: NDArray[np.uint32], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._lexicon.saturation_of(frequencies, lengths)

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        return self._lexicon.frequencies(terms, chunk_ids)

    def contributions(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.most(terms) * self.saturation(terms, chunk_ids)


class RememberingLexicon(_LexiconOver):
    """Looks the same chunks up once: two stages ask which of the query's terms the same candidates hold."""

    def __init__(self, lexicon: Lexicon) -> None:
        super().__init__(lexicon)
        self._known: dict[tuple[bytes, bytes], NDArray[np.float64]] = {}

    def saturation(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        key = terms.tobytes(), chunk_ids.tobytes()
        if key not in self._known:
            self._known[key] = super().saturation(terms, chunk_ids)
        return self._known[key]


class LexiconWithTexts(_LexiconOver):
    """A knowledge base's statistics, under which texts that are none of its chunks are scored beside these.

    Args:
        lexicon: of the knowledge base, which the texts do not change.
        terms: of each text by its id, repeats kept.
    """

    def __init__(self, lexicon: Lexicon, terms: Mapping[int, Sequence[str]]) -> None:
        super().__init__(lexicon)
        self._lengths = {key: len(words) for key, words in terms.items()}
        self._counts = {key: Counter(hash_terms(words).tolist()) for key, words in terms.items()}

    def saturation(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        found = super().saturation(terms, chunk_ids)
        rows, keys = self._texts_among(chunk_ids)
        if keys:
            lengths = np.array([self._lengths[key] for key in keys], dtype=np.float64)
            found[rows] = self.saturation_of(self._frequencies(terms, keys), lengths)
        return found

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        found = super().frequencies(terms, chunk_ids)
        rows, keys = self._texts_among(chunk_ids)
        if keys:
            found[rows] = self._frequencies(terms, keys)
        return found

    def _texts_among(self, chunk_ids: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        rows = [row for row, key in enumerate(chunk_ids.tolist()) if key in self._counts]
        return rows, chunk_ids[rows].tolist()

    def _frequencies(self, terms: NDArray[np.uint64], keys: Sequence[int]) -> NDArray[np.uint32]:
        wanted = terms.tolist()
        return np.array([[self._counts[key][term] for term in wanted] for key in keys], dtype=np.uint32)
