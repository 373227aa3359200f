"""Parts of the pipeline without models or databases, for tests of the pipeline itself."""

import numpy as np

from retrieval.errors import ChannelUnavailable
from retrieval.trace import Degradation, DegradationCode
from retrieval.types import Passage, Ranking


class FakeChannel:
    """Answers with a fixed ranking: {chunk_id: score}, best first."""

    def __init__(self, name, kb_id, found, *, lexicon=None, degradations=()):
        self.name, self.kb_id = name, kb_id
        self._found, self._lexicon, self._degradations = found, lexicon, tuple(degradations)
        self.asked = []

    def search(self, analysis, k):
        self.asked.append(k)
        items = list(self._found.items())[:k]
        return Ranking(
            self.name,
            self.kb_id,
            np.array([chunk_id for chunk_id, _ in items], dtype=np.int64),
            np.array([score for _, score in items], dtype=np.float64),
            degradations=self._degradations,
            lexicon=self._lexicon,
        )


class BrokenChannel:
    def __init__(self, name, kb_id, error=None):
        self.name, self.kb_id = name, kb_id
        self._error = error or ChannelUnavailable(DegradationCode.MODEL_UNAVAILABLE, "the model is away: fetch it")

    def search(self, analysis, k):
        raise self._error


class FakePassages:
    """Every chunk exists, with its text, except those that are `gone`."""

    def __init__(self, texts=None, *, gone=(), kb_id=1):
        self._texts, self._gone, self._kb_id = texts or {}, set(gone), kb_id
        self.fetched = []

    def fetch(self, chunk_ids):
        self.fetched.append(list(chunk_ids))
        return {
            chunk_id: Passage(
                chunk_id, chunk_id * 10, self._kb_id, "title", "source.txt", None, self._texts.get(chunk_id, "")
            )
            for chunk_id in chunk_ids
            if chunk_id not in self._gone
        }


class WordTokenizer:
    id = "words"

    def __call__(self, text):
        return text.lower().split()


class FixedReranker:
    """Scores by a table; chunks it does not name score 0."""

    scale = "overlap"

    def __init__(self, scores):
        self._scores = scores

    def scores(self, analysis, candidates, lexicons):
        return np.array([self._scores.get(candidate.chunk_id, 0.0) for candidate in candidates])


HASHING_NOTE = Degradation("vector", DegradationCode.HASHING_EMBEDDER, "words only")
