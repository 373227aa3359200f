from dataclasses import replace

import numpy as np
import pytest

from retrieval.bm25 import OkapiIndex
from retrieval.channels import (
    BM25Channel,
    FullTextChannel,
    LexicalChannel,
    LoadedIndex,
    QuestionChannel,
    QuestionKeywordChannel,
    StoredKeywordChannel,
    UnavailableChannel,
    VectorChannel,
)
from retrieval.errors import ChannelUnavailable, DegradationCode
from retrieval.postings import count_postings
from retrieval.types import Analysis
from tests.fakes import HASHING_NOTE

QUERY = Analysis("the query", {1: ("cat", "dog", "dog"), 2: ("fish",)})
DEADLINE = 1_000.0


class FixedVectors:
    """The vectors of queries: always the same one, from memory."""

    model_id = "model"

    def embed(self, text, deadline):
        self.asked = text, deadline
        return np.array([0.6, 0.8], dtype=np.float32), "memory"


class TableStore:
    """Vectors by kind, as the similarities that they have to any query."""

    def __init__(self, **similarities):
        self._similarities = similarities
        self.asked = []

    def search(self, kb_id, model_id, vector, k, *, kind="content", only=None):
        self.asked.append((kb_id, model_id, k, kind, only))
        best = sorted(self._similarities[kind].items(), key=lambda item: (-item[1], item[0]))[:k]
        return np.array([chunk for chunk, _ in best], dtype=np.int64), np.array([score for _, score in best])

    def similarities(self, kb_id, model_id, vector, chunk_ids, *, kind="content"):
        return np.array([self._similarities[kind].get(chunk_id, np.nan) for chunk_id in chunk_ids.tolist()])


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
    vectors, store, only = FixedVectors(), TableStore(content={3: 0.75, 4: 0.5}), np.array([3, 4])

    ranking = VectorChannel(1, vectors, store, only=only, notes=[HASHING_NOTE]).search(QUERY, 9, DEADLINE)

    assert vectors.asked == ("the query", DEADLINE)
    assert store.asked == [(1, "model", 9, "content", only)]
    assert answers(ranking) == ("vector", 1, [3, 4], [0.75, 0.5])
    assert ranking.detail == {"model": "model", "query_vector": "memory"}
    assert (ranking.degradations, ranking.lexicon) == ((HASHING_NOTE,), None)


def test_the_vectors_of_keywords_join_and_the_union_is_scored_exactly():
    store = TableStore(content={1: 0.9, 2: 0.8, 3: 0.2}, keywords={1: 0.1, 3: 0.6})

    ranking = VectorChannel(1, FixedVectors(), store, keyword_share=0.5).search(QUERY, 2, DEADLINE)

    # The second has no keywords and keeps its content's; the third is only found by its keywords.
    assert answers(ranking) == ("vector", 1, [2, 1], pytest.approx([0.8, 0.5]))
    assert [asked[3] for asked in store.asked] == ["content", "keywords"]
    assert ranking.score(np.array([3, 1])) == pytest.approx([0.4, 0.5])


def test_any_chunk_can_be_scored_exactly():
    store = TableStore(content={3: 0.75, 4: 0.5})

    ranking = VectorChannel(1, FixedVectors(), store).search(QUERY, 1, DEADLINE)

    np.testing.assert_array_equal(ranking.score(np.array([4, 5])), [0.5, np.nan])


def test_questions_are_searched_by_their_own_vectors():
    store = TableStore(question={7: 0.9})

    ranking = QuestionChannel(1, FixedVectors(), store).search(QUERY, 9, DEADLINE)

    assert answers(ranking) == ("question", 1, [7], [0.9])
    assert store.asked == [(1, "model", 9, "question", None)]


class UnreachableStore:
    def search(self, kb_id, model_id, vector, k, *, kind="content", only=None):
        raise ChannelUnavailable(DegradationCode.STORE_UNAVAILABLE, "gone")


def test_where_the_store_is_out_the_stand_in_answers_and_without_one_nobody():
    stand_in = TableStore(content={3: 0.75})

    ranking = VectorChannel(1, FixedVectors(), UnreachableStore(), fallback=stand_in).search(QUERY, 9, DEADLINE)

    assert answers(ranking) == ("vector", 1, [3], [0.75])
    assert [(each.stage, each.code) for each in ranking.degradations] == [("vector", "store_unavailable")]
    with pytest.raises(ChannelUnavailable, match="gone"):
        VectorChannel(1, FixedVectors(), UnreachableStore()).search(QUERY, 9, DEADLINE)


class RecordingTextStore:
    def search_terms(self, kb_id, tokenizer_id, terms, k, *, only=None):
        self.asked = kb_id, tokenizer_id, terms, k, only
        return np.array([3, 4]), np.array([0.75, 0.5])

    search_ngrams = search_terms


@pytest.mark.parametrize(
    ("channel", "name", "searched"),
    [(FullTextChannel, "fts", ("cat", "dog")), (LexicalChannel, "lexical", "the query")],
)
def test_text_is_searched_by_terms_or_by_the_query_itself(channel, name, searched):
    store = RecordingTextStore()

    ranking = channel(1, "tokenizer", store).search(QUERY, 9, DEADLINE)

    assert store.asked == (1, "tokenizer", searched, 9, None)
    assert answers(ranking) == (name, 1, [3, 4], [0.75, 0.5])


def test_other_names_of_a_concept_are_searched_as_keywords_too(index):
    query = Analysis("cat", {1: ("cat",)}, variants_by_kb={1: (("fish",), ("cat", "fish"))})

    ranking = BM25Channel(1, lambda deadline: LoadedIndex(index, {})).search(query, 9, DEADLINE)

    assert sorted(ranking.chunk_ids.tolist()) == [1, 3, 4]


def test_keywords_are_only_searched_among_the_chunks_that_may_be_found(index):
    channel = BM25Channel(1, lambda deadline: LoadedIndex(index, {}), only=np.array([1, 2]))

    assert channel.search(QUERY, 9, DEADLINE).chunk_ids.tolist() == [2, 1]


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


@pytest.mark.parametrize("language", ["en", "zh"])
def test_an_index_without_questions_finds_none_and_says_that_it_is_old(index, language):
    query = replace(QUERY, language=language)
    ranking = QuestionKeywordChannel(1, lambda _deadline: LoadedIndex(index, {})).search(query, 9, DEADLINE)

    assert ranking.chunk_ids.tolist() == []
    assert [(each.stage, each.code) for each in ranking.degradations] == [("bm25", "bm25_index_old")]


def test_a_channel_that_cannot_be_had_says_why():
    channel = UnavailableChannel("bm25", 1, DegradationCode.BM25_POSTINGS_OUTDATED, "reindex it")

    with pytest.raises(ChannelUnavailable, match="reindex it") as caught:
        channel.search(QUERY, 9, DEADLINE)
    assert (channel.name, channel.kb_id, caught.value.code) == ("bm25", 1, "bm25_postings_outdated")


class AnswersOnce:
    """A server of keywords that is gone after its first answer."""

    name = "server"

    def search(self, kb_id, text, k, *, only=None):
        return np.array([3, 2]), np.array([2.0, 1.0])

    def scores(self, kb_id, text, chunk_ids):
        raise ChannelUnavailable(DegradationCode.STORE_UNAVAILABLE, "gone")


def test_a_server_that_fails_after_it_has_answered_leaves_the_scores_that_it_told(index):
    own = BM25Channel(1, lambda _deadline: LoadedIndex(index, {}))
    ranking = StoredKeywordChannel(AnswersOnce(), own).search(QUERY, 10, DEADLINE)

    scores = ranking.score(np.array([1, 2, 3]))

    assert scores.tolist() == pytest.approx([np.nan, 1.0, 2.0], nan_ok=True)
