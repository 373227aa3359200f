"""What stands in for a channel that cannot do its part, and what a channel that is late costs."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from retrieval.errors import NoChannelAvailable
from retrieval.protocols import Fallback
from tests.fakes import BrokenChannel, FakeChannel
from tests.retrieval.pipelines import chunk_ids, pipeline, run, scope


@pytest.fixture
def executor():
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def released():
    """What a hanging channel waits for; the test's end lets it go."""
    event = Event()
    yield event
    event.set()


def full_text(found=None):
    return FakeChannel("fts", 1, {7: 0.5} if found is None else found)


def lexical():
    return FakeChannel("lexical", 1, {8: 0.4})


def fallbacks(fts, ngrams, below=3):
    return (
        Fallback(fts, failed=frozenset({"bm25"})),
        Fallback(ngrams, failed=frozenset({"vector"}), short=frozenset({"bm25", "fts"}), below=below),
    )


def test_a_stand_in_is_not_searched_where_nothing_is_amiss():
    fts, ngrams = full_text(), lexical()
    channels = FakeChannel("vector", 1, {1: 0.9}), FakeChannel("bm25", 1, {1: 3.0, 2: 2.0, 3: 1.0})

    run(pipeline(scope(1, *channels, fallbacks=fallbacks(fts, ngrams))))

    assert (fts.asked, ngrams.asked) == ([], [])


def test_full_text_serves_where_the_keyword_index_cannot():
    fts = full_text()
    channels = FakeChannel("vector", 1, {1: 0.9}), BrokenChannel("bm25", 1)

    result = run(pipeline(scope(1, *channels, fallbacks=fallbacks(fts, lexical(), below=0))))

    assert sorted(chunk_ids(result)) == [1, 7]
    assert [each.code for each in result.degraded] == ["model_unavailable"]


@pytest.mark.parametrize(("found", "asked"), [({7: 0.5}, [120]), ({5: 0.7, 6: 0.6, 7: 0.5}, [])])
def test_n_grams_are_searched_where_full_text_too_finds_next_to_nothing(found, asked):
    ngrams = lexical()
    channels = FakeChannel("vector", 1, {1: 0.9}), BrokenChannel("bm25", 1)

    run(pipeline(scope(1, *channels, fallbacks=fallbacks(full_text(found), ngrams))))

    assert ngrams.asked == asked


@pytest.mark.parametrize(
    "channels",
    [
        (BrokenChannel("vector", 1), FakeChannel("bm25", 1, {1: 3.0, 2: 2.0, 3: 1.0})),
        (FakeChannel("vector", 1, {1: 0.9}), FakeChannel("bm25", 1, {1: 3.0, 2: 2.0})),
    ],
    ids=["the embedder is out", "keywords find next to nothing"],
)
def test_n_grams_are_searched_where(channels):
    ngrams = lexical()

    result = run(pipeline(scope(1, *channels, fallbacks=fallbacks(full_text(), ngrams))))

    assert ngrams.asked == [120]
    assert 8 in chunk_ids(result)


def test_an_answer_of_a_stand_in_alone_is_an_answer():
    channels = BrokenChannel("vector", 1), BrokenChannel("bm25", 1)

    result = run(pipeline(scope(1, *channels, fallbacks=fallbacks(full_text(), lexical()))))

    assert sorted(chunk_ids(result)) == [7, 8]


def test_a_channel_that_hangs_costs_its_candidates_and_the_others_answer(executor, released):
    hanging = FakeChannel("vector", 1, {1: 0.9}, when_asked=released.wait)
    keywords = FakeChannel("bm25", 1, {2: 3.0}, in_memory=True)

    result = run(pipeline(scope(1, hanging, keywords), executor=executor), latency_budget=0.2)

    assert chunk_ids(result) == [2]
    assert [(each.stage, each.code) for each in result.degraded] == [("vector", "channel_timeout")]


def test_a_channels_own_time_limit_ends_before_the_budget(executor, released):
    hanging = FakeChannel("vector", 1, {1: 0.9}, when_asked=released.wait)
    keywords = FakeChannel("bm25", 1, {2: 3.0}, in_memory=True)

    result = run(pipeline(scope(1, hanging, keywords, vector_timeout_ms=20), executor=executor), latency_budget=600)

    assert [(each.stage, each.code) for each in result.degraded] == [("vector", "channel_timeout")]


def test_no_channel_in_time_is_an_error_that_says_so(executor, released):
    hanging = FakeChannel("vector", 1, {1: 0.9}, when_asked=released.wait)

    with pytest.raises(NoChannelAvailable, match="did not answer in time"):
        run(pipeline(scope(1, hanging), executor=executor), latency_budget=0.05)


def test_every_sub_query_is_searched_by_every_channel_and_a_chunk_keeps_its_best_rank():
    vector = FakeChannel("vector", 1, {1: 0.9})
    keywords = FakeChannel("bm25", 1, {1: 3.0, 2: 2.0})

    result = run(pipeline(scope(1, vector, keywords)), query="电池的保修期是多久？\n发票怎么开？")

    assert len(vector.asked) == len(keywords.asked) == len(result.analysis.queries) > 1
    assert result.hits[0].ranks["vector"] == 1
    assert {each.query for each in result.hits[0].provenance} == set(range(len(result.analysis.queries)))
