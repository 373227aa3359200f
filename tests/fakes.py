"""Parts of the pipeline without models or databases, for tests of the pipeline itself."""

from threading import get_ident

import numpy as np

from retrieval.embedders.hashing import DIMENSION, HASHING_MODEL_ID, HashingEmbedder
from retrieval.errors import ChannelUnavailable, Degradation, DegradationCode
from retrieval.postings import hash_terms
from retrieval.selection import ScoreScale
from retrieval.types import Passage, Ranking


class FakeChannel:
    """Answers with a fixed ranking: {chunk_id: score}, best first.

    Attributes:
        asked: the k of every search; `deadlines`, `tokens` and `threads` are those of the same searches.
    """

    def __init__(
        self, name, kb_id, found, *, lexicon=None, degradations=(), in_memory=False, when_asked=lambda: None, score=None
    ):
        self.name, self.kb_id, self.in_memory, self._score = name, kb_id, in_memory, score
        self._found, self._lexicon, self._degradations = found, lexicon, tuple(degradations)
        self._when_asked = when_asked
        self.asked, self.deadlines, self.tokens, self.threads = [], [], [], []

    def search(self, analysis, k, deadline):
        self.asked.append(k)
        self.deadlines.append(deadline)
        self.tokens.append(analysis.tokens(self.kb_id))
        self.threads.append(get_ident())
        self._when_asked()
        items = list(self._found.items())[:k]
        return Ranking(
            self.name,
            self.kb_id,
            np.array([chunk_id for chunk_id, _ in items], dtype=np.int64),
            np.array([score for _, score in items], dtype=np.float64),
            degradations=self._degradations,
            lexicon=self._lexicon,
            score=self._score,
        )


class BrokenChannel:
    in_memory = False

    def __init__(self, name, kb_id, error=None):
        self.name, self.kb_id = name, kb_id
        self._error = error or ChannelUnavailable(DegradationCode.MODEL_UNAVAILABLE, "the model is away: fetch it")

    def search(self, analysis, k, deadline):
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
                chunk_id,
                chunk_id * 10,
                self._kb_id,
                "title",
                "source.txt",
                None,
                self._texts.get(chunk_id, f"text of {chunk_id}"),
            )
            for chunk_id in chunk_ids
            if chunk_id not in self._gone
        }


class WordTokenizer:
    id = "words"

    def __call__(self, text):
        return text.lower().split()

    def simplify(self, text):
        return text


class LetterTokenizer:
    id = "letters"

    def __call__(self, text):
        return list(text.replace(" ", ""))

    def simplify(self, text):
        return text


class TableLexicon:
    """Every term has the rarity given; `held` maps chunk ids to the terms that they are full of."""

    chunk_count = 559

    def __init__(self, rarity, held):
        self._rarity = {int(hash_terms([term])[0]): value for term, value in rarity.items()}
        self._held = {chunk_id: set(hash_terms(terms).tolist()) for chunk_id, terms in held.items()}

    def rarity(self, terms):
        return np.array([self._rarity[int(term)] for term in terms])

    idf = most = rarity

    def frequencies(self, terms, chunk_ids):
        return np.array(
            [[int(int(term) in self._held[chunk_id]) for term in terms] for chunk_id in chunk_ids.tolist()],
            dtype=np.uint32,
        ).reshape(len(chunk_ids), len(terms))

    def saturation(self, terms, chunk_ids):
        return self.saturation_of(self.frequencies(terms, chunk_ids), None)

    def saturation_of(self, frequencies, lengths):
        return frequencies.astype(float)


class FixedReranker:
    """Scores by a table; chunks it does not name score 0."""

    name = "overlap"

    def __init__(self, scores, scale=ScoreScale.OVERLAP):
        self._scores, self.scale = scores, scale

    def scores(self, job, deadline):
        return np.array([self._scores.get(candidate.chunk_id, 0.0) for candidate in job.candidates])


class CountingEmbedder:
    """The hashing embedder, which notes every text that it embeds."""

    model_id, dimension, is_loaded = HASHING_MODEL_ID, DIMENSION, True

    def __init__(self):
        self._model = HashingEmbedder()
        self.embedded = []

    def embed_documents(self, texts):
        self.embedded += texts
        return self._model.embed_documents(texts)

    def embed_query(self, text):
        return self._model.embed_query(text)

    def count_tokens(self, text):
        return self._model.count_tokens(text)

    def token_ends(self, text):
        return self._model.token_ends(text)


class Blob:
    """A cached value of a known size."""

    def __init__(self, content: bytes):
        self.content = content

    @property
    def nbytes(self) -> int:
        return len(self.content)


HASHING_NOTE = Degradation("vector", DegradationCode.HASHING_EMBEDDER, "words only")
