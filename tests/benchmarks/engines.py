"""The engines that are compared. Each starts from the same tokens and answers with the k best chunks and their scores."""

import numpy as np

from retrieval.bm25 import OkapiIndex
from retrieval.postings import hash_terms


class Zhiku:
    """The project's index."""

    name = "Zhiku"

    def __init__(self, index: OkapiIndex) -> None:
        self.index = index

    def search(self, tokens: list[str], k: int):
        return self.index.search(hash_terms(tokens), k)


class RankBM25:
    """rank_bm25.BM25Okapi, from which the formula comes."""

    name = "rank_bm25"

    def __init__(self, chunks: list[list[str]]) -> None:
        from rank_bm25 import BM25Okapi

        self._model = BM25Okapi(chunks)

    def search(self, tokens: list[str], k: int):
        scores = self._model.get_scores(tokens)
        best = np.argsort(scores)[::-1][:k]
        return best, scores[best]


class BM25S:
    """bm25s on NumPy in one thread, with the formula of BM25Okapi (but a floor of 0, which costs no time)."""

    name = "bm25s"

    def __init__(self, chunks: list[list[str]]) -> None:
        import bm25s

        self._model = bm25s.BM25(k1=1.5, b=0.75, method="robertson", backend="numpy")
        self._model.index(chunks, show_progress=False)

    def search(self, tokens: list[str], k: int):
        return self._model.retrieve([tokens], k=k, show_progress=False, n_threads=0, backend_selection="numpy")
