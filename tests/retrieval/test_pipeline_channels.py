"""On which thread a channel runs, in what order, and how long it may wait."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident

import pytest

from retrieval.channels import BM25Channel
from retrieval.errors import ChannelUnavailable, DegradationCode
from retrieval.execution import Budget
from tests.fakes import FakeChannel
from tests.retrieval.pipelines import pipeline, run as run_pipeline, scope

PATIENCE = 30


@pytest.fixture
def run():
    """Searches knowledge base 1, 2, ... with the channels given for each."""
    with ThreadPoolExecutor(4) as executor:

        def search(*channels, **options):
            scopes = [scope(kb_id, *own) for kb_id, own in enumerate(channels, start=1)]
            return run_pipeline(pipeline(*scopes, executor=executor), **options)

        yield search


def vector(kb_id, **options):
    return FakeChannel("vector", kb_id, {kb_id * 10: 0.5}, **options)


def bm25(kb_id, **options):
    return FakeChannel("bm25", kb_id, {kb_id * 10 + 1: 5.0}, in_memory=True, **options)


def test_a_channel_in_memory_runs_on_the_callers_thread_and_others_elsewhere(run):
    keyword, remote = bm25(1), vector(1)

    run((remote, keyword))

    assert keyword.threads == [get_ident()]
    assert get_ident() not in remote.threads


def test_channels_that_wait_for_other_servers_run_while_the_callers_thread_does_the_rest(run):
    all_are_searching = Barrier(3, timeout=PATIENCE)
    keyword = bm25(1, when_asked=all_are_searching.wait)
    remotes = [vector(kb_id, when_asked=all_are_searching.wait) for kb_id in (1, 2)]

    # The remote channel of the second knowledge base stands behind the first one's keyword channel.
    result = run((keyword, remotes[0]), (bm25(2), remotes[1]))

    assert result.degraded == ()
    assert len(result.candidates) == 4


def test_the_trace_lists_channels_as_they_were_given_whichever_ran_first(run):
    result = run((bm25(1), vector(1)), (vector(2), bm25(2)))

    ran = [(span.stage, span.detail["kb_id"]) for span in result.spans if span.stage in ("bm25", "vector")]
    assert ran == [("bm25", 1), ("vector", 1), ("vector", 2), ("bm25", 2)]


def test_every_channel_is_told_one_deadline_that_leaves_time_for_the_later_stages(run):
    channels = bm25(1), vector(1), vector(2)

    earliest = Budget.of(500.0).channels_end
    run(channels[:2], channels[2:], latency_budget=500.0)
    latest = Budget.of(500.0)

    deadlines = {deadline for channel in channels for deadline in channel.deadlines}
    assert len(deadlines) == 1
    assert earliest <= deadlines.pop() <= latest.channels_end < latest.end


def test_while_the_keyword_index_is_being_built_vectors_answer_and_the_result_says_so(run):
    def not_there_by(deadline):
        raise ChannelUnavailable(DegradationCode.BM25_INDEX_BUILDING, "still being built: search again in a moment")

    result = run((vector(1), BM25Channel(1, not_there_by)))

    assert [hit.passage.chunk_id for hit in result.hits] == [10]
    assert [each.as_dict() for each in result.degraded] == [
        {"stage": "bm25", "code": "bm25_index_building", "detail": "still being built: search again in a moment"}
    ]
    assert [span.detail for span in result.spans if span.stage == "bm25"] == [
        {"kb_id": 1, "error": "bm25_index_building"}
    ]


def test_without_exact_scores_the_weighted_sum_takes_those_that_were_found(caplog):
    def gone(_chunk_ids):
        raise OSError("connection lost")

    vector = FakeChannel("vector", 1, {1: 0.9, 2: 0.8}, score=gone)
    bm25 = FakeChannel("bm25", 1, {2: 7.0, 3: 5.0})
    result = run_pipeline(pipeline(scope(1, vector, bm25, fusion="weighted")))
    assert {hit.passage.chunk_id for hit in result.hits} == {1, 2, 3}
    assert [(each.stage, each.code) for each in result.degraded if each.stage == "fusion"] == [
        ("fusion", DegradationCode.CHANNEL_FAILED)
    ]
    assert "exact scores" in caplog.text
