import logging

import pytest

from retrieval.errors import NoChannelAvailable
from retrieval.selection import ScoreScale, overlap_cut
from tests.fakes import HASHING_NOTE, BrokenChannel, FakeChannel, FakePassages, FixedReranker, TableLexicon
from tests.retrieval.pipelines import chunk_ids, pipeline, run, scope


def two_channels(kb_id=1, vector=None, bm25=None):
    return (
        FakeChannel("vector", kb_id, vector if vector is not None else {1: 0.9, 2: 0.8}),
        FakeChannel("bm25", kb_id, bm25 if bm25 is not None else {2: 7.0, 3: 5.0}),
    )


def test_hits_carry_ranks_and_scores_of_every_stage():
    pipe = pipeline(scope(1, *two_channels()), rerankers=[FixedReranker({2: 0.9, 1: 0.5, 3: 0.1})])
    first = run(pipe).hits[0]
    assert first.passage.chunk_id == 2
    assert first.ranks == {"vector": 2, "bm25": 1, "fused": 1, "rerank": 1}
    fused = 0.6 / 62 + 0.4 / 61
    order = 0.5 * 0.9 + 0.5 * fused / (1 / 61)  # the fused score as a share of the best possible one
    assert first.scores == pytest.approx({"vector": 0.8, "bm25": 7.0, "fused": fused, "rerank": 0.9, "order": order})
    assert (first.score, first.score_scale) == (0.9, "overlap")


def test_the_reranker_decides_the_order_and_ties_keep_the_fused_one():
    pipe = pipeline(scope(1, *two_channels()), rerankers=[FixedReranker({3: 0.9})])
    assert chunk_ids(run(pipe)) == [3, 2, 1]


def test_each_channel_is_read_to_twice_the_depth_of_candidates():
    vector, bm25 = two_channels()
    run(pipeline(scope(1, vector, bm25, top_k=30)))
    assert (vector.asked, bm25.asked) == ([180], [180])


def test_a_candidate_of_one_channel_has_its_rank_in_another_beyond_the_depth():
    vector = FakeChannel("vector", 1, {1: 0.9, 2: 0.8, 3: 0.7})
    bm25 = FakeChannel("bm25", 1, {1: 9.0, 3: 7.0, 2: 6.0, 4: 5.0})
    result = run(pipeline(scope(1, vector, bm25, vector_top_k=2, bm25_top_k=2)))
    places = {c.chunk_id: (c.ranks["vector"], c.ranks["bm25"]) for c in result.candidates}
    assert places == {1: (1, 1), 2: (2, 3), 3: (3, 2)}


def test_weights_come_from_the_knowledge_base():
    keyword_led = scope(1, *two_channels(), vector_weight=0.01, keyword_weight=0.99)
    assert chunk_ids(run(pipeline(keyword_led))) == [2, 3, 1]


def test_candidates_beyond_the_reranker_are_cut_by_fusion():
    channel = FakeChannel("bm25", 1, {n: 100.0 - n for n in range(1, 41)})
    result = run(pipeline(scope(1, channel), rerankers=[FixedReranker({})]), top_k=5, rerank_candidates=10)
    assert [candidate.cut_by for candidate in result.candidates] == [None] * 5 + ["top_k"] * 5 + ["fusion"] * 30


def test_the_gate_cuts_scores_below_the_threshold_on_the_rerankers_scale():
    pipe = pipeline(scope(1, *two_channels()), rerankers=[FixedReranker({1: 0.5, 2: 0.3, 3: 0.1})])
    result = run(pipe, score_threshold=0.3)
    assert chunk_ids(result) == [2, 1]  # the channels agree on the second more
    assert {c.chunk_id: c.cut_by for c in result.candidates} == {1: None, 2: None, 3: "gate"}
    assert result.threshold == 0.3


def test_the_borders_are_those_of_the_sizes_that_are_known():
    small = TableLexicon({"a": 1.0, "query": 1.0}, {1: ["a"]})
    small.chunk_count = 30
    scopes = [
        scope(1, FakeChannel("bm25", 1, {1: 9.0}, lexicon=small)),
        scope(2, FakeChannel("vector", 2, {11: 0.9})),  # its keyword index is being built
    ]
    result = run(pipeline(*scopes, rerankers=[FixedReranker({1: 0.2, 11: 0.1})]), score_threshold=None)
    assert result.threshold == overlap_cut(30)
    assert [hit.relevance for hit in result.hits] == ["high", "medium"]


def test_the_best_below_a_cut_that_nobody_chose_are_near_misses():
    pipe = pipeline(scope(1, *two_channels()), rerankers=[FixedReranker({1: 0.9, 2: 0.3, 3: 0.1})])
    result = run(pipe, score_threshold=None)
    assert chunk_ids(result) == [1]
    assert [(each.passage.chunk_id, each.score, each.relevance) for each in result.near_misses] == [
        (2, 0.3, "low"),
        (3, 0.1, "low"),
    ]
    assert result.hits[0].relevance == "high"
    assert {c.chunk_id: (c.cut_by, c.is_near_miss) for c in result.candidates} == {
        1: (None, False),
        2: ("gate", True),
        3: ("gate", True),
    }
    assert result.near_misses[0].provenance
    assert next(span.detail["near_misses"] for span in result.spans if span.stage == "selection") == 2


@pytest.mark.parametrize("chosen", [{"score_threshold": 0.655}, {"score_threshold": None, "overlap_threshold": 0.655}])
def test_a_cut_that_somebody_chose_refuses(chosen):
    pipe = pipeline(scope(1, *two_channels()), rerankers=[FixedReranker({1: 0.9, 2: 0.6})])
    result = run(pipe, **chosen)
    assert (chunk_ids(result), result.near_misses) == ([1], ())


def test_a_cross_encoder_refuses():
    reranker = FixedReranker({1: 0.9, 2: 0.59}, scale=ScoreScale.CROSS_ENCODER)
    result = run(pipeline(scope(1, *two_channels()), rerankers=[reranker]), score_threshold=None)
    assert (chunk_ids(result), result.near_misses) == ([1], ())


def test_sums_of_ranks_have_no_label():
    result = run(pipeline(scope(1, *two_channels())))
    assert {hit.relevance for hit in result.hits} == {None}


def test_use_rerank_false_returns_the_vector_results_directly():
    result = run(pipeline(scope(1, *two_channels()), rerankers=[FixedReranker({3: 1.0})]), use_rerank=False)
    assert chunk_ids(result) == [1, 2]
    assert [(hit.score, hit.score_scale) for hit in result.hits] == [(0.9, "cosine"), (0.8, "cosine")]


def test_where_no_reranker_is_wanted_the_fused_order_stays():
    """Also where every candidate has a cosine, as in a weighted sum: another order would belie the setting."""
    channels = two_channels(vector={1: 0.9, 2: 0.2, 3: 0.1}, bm25={3: 9.0, 2: 8.0, 1: 1.0})
    settings = {"fusion": "weighted", "hybrid_vector_weight": 0.1, "hybrid_text_weight": 0.9}
    result = run(pipeline(scope(1, *channels, **settings)), **settings)
    assert chunk_ids(result) == [3, 2, 1]
    assert {hit.score_scale for hit in result.hits} == {"rrf"}


def test_use_rerank_false_without_a_vector_channel_falls_back_to_keywords():
    channels = (BrokenChannel("vector", 1), FakeChannel("bm25", 1, {3: 5.0}))
    result = run(pipeline(scope(1, *channels)), use_rerank=False)
    assert chunk_ids(result) == [3]
    assert result.hits[0].score_scale == "rrf"
    assert [each.code for each in result.degraded] == ["model_unavailable"]


def test_several_knowledge_bases_merge_by_score_with_ties_in_their_order():
    pipe = pipeline(
        scope(2, FakeChannel("bm25", 2, {21: 3.0, 22: 2.0})),
        scope(1, FakeChannel("bm25", 1, {11: 9.0, 12: 8.0})),
        rerankers=[FixedReranker({11: 0.5, 21: 0.5, 12: 0.7, 22: 0.1})],
    )
    assert chunk_ids(run(pipe)) == [12, 21, 11, 22]


def test_cosines_of_different_models_are_never_compared():
    scopes = (
        scope(1, FakeChannel("vector", 1, {11: 0.2, 12: 0.1}), space="a"),
        scope(2, FakeChannel("vector", 2, {21: 0.9, 22: 0.8}), space="b"),
    )
    result = run(pipeline(*scopes), use_rerank=False)
    assert chunk_ids(result) == [11, 21, 12, 22]
    assert {hit.score_scale for hit in result.hits} == {"rrf"}


def test_cosines_of_one_model_merge_knowledge_bases():
    scopes = (
        scope(1, FakeChannel("vector", 1, {11: 0.2, 12: 0.1})),
        scope(2, FakeChannel("vector", 2, {21: 0.9, 22: 0.8})),
    )
    assert chunk_ids(run(pipeline(*scopes), use_rerank=False)) == [21, 22, 11, 12]


def test_a_failing_channel_degrades_and_the_other_answers(caplog):
    crash = BrokenChannel("vector", 1, RuntimeError("bug"))
    with caplog.at_level(logging.ERROR):
        result = run(pipeline(scope(1, crash, FakeChannel("bm25", 1, {3: 5.0}))))
    assert chunk_ids(result) == [3]
    assert [(each.stage, each.code) for each in result.degraded] == [("vector", "channel_failed")]
    assert "bug" in caplog.text


def test_what_a_channel_notes_reaches_the_result():
    channel = FakeChannel("vector", 1, {1: 0.5}, degradations=[HASHING_NOTE])
    assert run(pipeline(scope(1, channel))).degraded == (HASHING_NOTE,)


def test_no_channel_at_all_is_an_error_that_says_why():
    with pytest.raises(NoChannelAvailable, match="fetch it") as caught:
        run(pipeline(scope(1, BrokenChannel("vector", 1), BrokenChannel("bm25", 1))))
    assert len(caught.value.degradations) == 2


def test_a_blank_query_finds_nothing_and_asks_no_channel():
    channel = FakeChannel("bm25", 1, {1: 1.0})
    result = run(pipeline(scope(1, channel)), query="  \n")
    assert (result.hits, channel.asked) == ((), [])


def test_a_chunk_that_is_gone_is_no_candidate():
    result = run(pipeline(scope(1, *two_channels()), passages=FakePassages(gone=[2])))
    assert chunk_ids(result) == [1, 3]


def test_all_candidates_are_loaded_at_once():
    passages = FakePassages()
    run(pipeline(scope(1, FakeChannel("bm25", 1, {n: 100.0 - n for n in range(1, 51)})), passages=passages))
    assert [sorted(ids) for ids in passages.fetched] == [list(range(1, 51))]


def test_the_trace_times_every_stage():
    result = run(pipeline(scope(1, *two_channels()), rerankers=[FixedReranker({})]))
    assert set(result.timings_ms) == {
        *("analysis", "vector", "bm25", "passages", "dedupe", "fusion", "rerank", "gate", "selection", "total")
    }


def test_a_knowledge_base_without_tokenizer_has_no_terms():
    result = run(pipeline(scope(1, *two_channels(), tokenizer=None)))
    assert (result.analysis.all_terms, len(result.hits)) == ((), 3)


def test_the_next_candidate_takes_the_place_of_a_chunk_that_is_gone():
    channel = FakeChannel("bm25", 1, {n: 10.0 - n for n in range(1, 10)})
    pipe = pipeline(scope(1, channel), passages=FakePassages(gone=[1]), rerankers=[FixedReranker({4: 1.0})])
    assert chunk_ids(run(pipe, top_k=3, rerank_candidates=3)) == [4, 2, 3]
