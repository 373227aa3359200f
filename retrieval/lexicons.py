"""Term statistics for the time of one search."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from retrieval.postings import hash_terms
from retrieval.types import Lexicon


class SearchLexicon:
    """A knowledge base's statistics, under which texts that are none of its chunks are scored beside these.

    Looks the same chunks up once: two stages ask which of the query's terms the same candidates hold.

    Args:
        lexicon: of the knowledge base, which the texts do not change.
        texts: the terms of each text by its id, repeats kept.
    """

    def __init__(self, lexicon: Lexicon, texts: Mapping[int, Sequence[str]] = MappingProxyType({})) -> None:
        self.chunk_count = lexicon.chunk_count
        self.rarity = lexicon.rarity
        self.idf = lexicon.idf
        self.most = lexicon.most
        self.saturation_of = lexicon.saturation_of
        self._lexicon = lexicon
        self._lengths = {key: len(words) for key, words in texts.items()}
        self._counts = {key: Counter(hash_terms(words).tolist()) for key, words in texts.items()}
        self._known: dict[tuple[bytes, bytes], NDArray[np.float64]] = {}

    def contributions(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.most(terms) * self.saturation(terms, chunk_ids)

    def saturation(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        place = terms.tobytes(), chunk_ids.tobytes()
        if place not in self._known:
            found = self._lexicon.saturation(terms, chunk_ids)
            rows, keys = self._texts_among(chunk_ids)
            if keys:
                lengths = np.array([self._lengths[key] for key in keys], dtype=np.float64)
                found[rows] = self.saturation_of(self._frequencies(terms, keys), lengths)
            self._known[place] = found
        return self._known[place]

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        found = self._lexicon.frequencies(terms, chunk_ids)
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
