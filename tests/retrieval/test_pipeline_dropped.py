"""What an explained search tells of the chunks that were found and are no candidates."""

import pytest

from retrieval.types import Dropped
from tests.fakes import FakeChannel, FakePassages, TableLexicon
from tests.retrieval.pipelines import pipeline, run, scope


def dropped(*scopes, explain=True, passages=None, **settings):
    return run(pipeline(*scopes, passages=passages), explain=explain, **settings).dropped


def test_chunks_too_far_back_in_every_channel_are_told_best_first():
    vector = FakeChannel("vector", 1, {1: 0.9, 2: 0.8})
    bm25 = FakeChannel("bm25", 1, {1: 9.0, 3: 7.0, 2: 6.0})

    found = dropped(scope(1, vector, bm25, vector_top_k=1, bm25_top_k=1))

    assert found == (
        Dropped("channels", 1, 2, {"vector": 2}),
        Dropped("channels", 1, 3, {"bm25": 2}),
    )


def test_a_chunk_that_is_gone_is_told():
    bm25 = FakeChannel("bm25", 1, {1: 9.0, 2: 7.0})

    assert dropped(scope(1, bm25), passages=FakePassages(gone=[2])) == (Dropped("passages", 1, 2, {"bm25": 2}),)


def test_a_double_is_told_with_the_chunk_that_stands_for_it():
    bm25 = FakeChannel("bm25", 1, {1: 9.0, 2: 7.0})

    found = dropped(scope(1, bm25), passages=FakePassages({1: "the same", 2: "the same"}))

    assert found == (Dropped("dedupe", 1, 2, {"bm25": 2}, represented_by=1),)


def test_without_a_reranker_what_only_keywords_found_is_told():
    vector, bm25 = FakeChannel("vector", 1, {1: 0.9}), FakeChannel("bm25", 1, {1: 9.0, 2: 7.0})

    assert dropped(scope(1, vector, bm25), use_rerank=False) == (Dropped("vector_only", 1, 2, {"bm25": 2}),)


@pytest.mark.parametrize("explain", [True, False])
def test_only_an_explained_search_tells_of_dropped_chunks_and_hands_out_lexicons(explain):
    bm25 = FakeChannel("bm25", 1, {1: 9.0, 2: 7.0}, lexicon=TableLexicon({"a": 1.0, "query": 1.0}, {1: ["a"], 2: []}))

    result = run(pipeline(scope(1, bm25), passages=FakePassages(gone=[2])), explain=explain)

    assert bool(result.dropped) is explain
    assert set(result.lexicons) == ({1} if explain else set())
