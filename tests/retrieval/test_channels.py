import numpy as np
import pytest

from retrieval.bm25 import OkapiIndex
from retrieval.channels import BM25Channel, LoadedIndex, UnavailableChannel, VectorChannel
from retrieval.errors import ChannelUnavailable, ModelUnavailable
from retrieval.postings import count_postings
from retrieval.trace import DegradationCode
from retrieval.types import Analysis
from tests.fakes import HASHING_NOTE

QUERY = Analysis("the query", {1: ("cat", "dog", "dog"), 2: ("fish",)})
DEADLINE = 1_000.0


class FixedEmbedder:
    """Answers with a vector, or raises an error."""

    model_id, dimension = "model", 2

    def __init__(self, answer):
        self._answer = answer

    def embed_query(self, text):
        if isinstance(self._answer, Exception):
            raise self._answer
        self.text = text
        return np.array(self._answer, dtype=np.float32)


class RecordingStore:
    def search(self, kb_id, model_id, vector, k):
        self.asked = kb_id, model_id, vector.tolist(), k
        return np.array([3, 4]), np.array([0.75, 0.5])


@pytest.fixture
def index():
    rows = {1: ["cat"], 2: ["dog"], 3: ["dog", "cat"], 4: ["fish"], 5: ["bird"], 6: ["bird"]}
    counted = {chunk_id: count_postings(tokens) for chunk_id, tokens in rows.items()}
    return OkapiIndex.build(
        (chunk_id, postings.terms_bytes, postings.frequencies_bytes, postings.length)
        for chunk_id, postings in counted.items()
    )


def answers(ranking):
    return ranking.channel, ranking.kb_id, ranking.chunk_ids.tolist(), ranking.scores.tolist()


def test_vectors_are_searched_for_the_whole_text_in_the_models_own_space():
    embedder, store = FixedEmbedder([0.6, 0.8]), RecordingStore()

    ranking = VectorChannel(1, embedder, store, [HASHING_NOTE]).search(QUERY, 9, DEADLINE)

    assert embedder.text == "the query"
    assert store.asked == (1, "model", pytest.approx([0.6, 0.8]), 9)
    assert answers(ranking) == ("vector", 1, [3, 4], [0.75, 0.5])
    assert (ranking.detail, ranking.degradations, ranking.lexicon) == ({"model": "model"}, (HASHING_NOTE,), None)


def test_a_model_that_is_away_makes_the_vector_channel_unavailable():
    channel = VectorChannel(1, FixedEmbedder(ModelUnavailable("fetch it")), RecordingStore())

    with pytest.raises(ChannelUnavailable, match="fetch it") as caught:
        channel.search(QUERY, 9, DEADLINE)
    assert caught.value.code == DegradationCode.MODEL_UNAVAILABLE


@pytest.mark.parametrize("vector", [[1.0], [[0.6, 0.8]], [np.nan, 1.0], [np.inf, 0.0]])
def test_an_unusable_vector_makes_the_vector_channel_unavailable(vector):
    channel = VectorChannel(1, FixedEmbedder(vector), RecordingStore())

    with pytest.raises(ChannelUnavailable, match="check the model or its endpoint") as caught:
        channel.search(QUERY, 9, DEADLINE)
    assert caught.value.code == DegradationCode.EMBEDDER_FAILED


@pytest.mark.parametrize(("kb_id", "found"), [(1, [3, 2, 1]), (2, [4]), (3, [])])
def test_keywords_are_searched_with_the_knowledge_bases_own_tokens(index, kb_id, found):
    ranking = BM25Channel(kb_id, lambda deadline: LoadedIndex(index, {})).search(QUERY, 9, DEADLINE)

    assert (ranking.channel, ranking.kb_id, ranking.chunk_ids.tolist()) == ("bm25", kb_id, found)


def test_keywords_are_searched_to_the_depth_asked_for(index):
    ranking = BM25Channel(1, lambda deadline: LoadedIndex(index, {})).search(QUERY, 2, DEADLINE)

    assert ranking.chunk_ids.tolist() == [3, 2]


def test_the_keyword_ranking_brings_its_statistics_and_where_the_index_came_from(index):
    ranking = BM25Channel(1, lambda deadline: LoadedIndex(index, {"cache_tier": "redis"})).search(QUERY, 9, DEADLINE)

    assert ranking.lexicon is index
    assert ranking.detail == {"cache_tier": "redis"}


def test_the_keyword_index_is_waited_for_until_the_deadline(index):
    deadlines = []

    def wait(deadline):
        deadlines.append(deadline)
        return LoadedIndex(index, {})

    BM25Channel(1, wait).search(QUERY, 9, DEADLINE)

    assert deadlines == [DEADLINE]


def test_a_channel_that_cannot_be_had_says_why():
    channel = UnavailableChannel("bm25", 1, DegradationCode.BM25_POSTINGS_OUTDATED, "reindex it")

    with pytest.raises(ChannelUnavailable, match="reindex it") as caught:
        channel.search(QUERY, 9, DEADLINE)
    assert (channel.name, channel.kb_id, caught.value.code) == ("bm25", 1, "bm25_postings_outdated")
