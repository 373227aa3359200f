"""Term statistics for the time of one search."""

import numpy as np
from numpy.typing import NDArray

from retrieval.protocols import Lexicon


class RememberingLexicon:
    """Looks the same chunks up once: two stages ask which of the query's terms the same candidates hold."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._known: dict[tuple[bytes, bytes], NDArray[np.float64]] = {}

    @property
    def chunk_count(self) -> int:
        return self._lexicon.chunk_count

    def rarity(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        return self._lexicon.rarity(terms)

    def saturation(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        key = terms.tobytes(), chunk_ids.tobytes()
        if key not in self._known:
            self._known[key] = self._lexicon.saturation(terms, chunk_ids)
        return self._known[key]

    def idf(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        return self._lexicon.idf(terms)

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        return self._lexicon.frequencies(terms, chunk_ids)

    def contributions(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._lexicon.contributions(terms, chunk_ids)
