"""Which stage a search lost what is relevant at, on results made by hand."""

import pytest

from kb.quality.runs.services.run import Judged, observe
from retrieval.config import RetrievalConfig
from retrieval.types import Analysis, Candidate, Hit, Passage, Result, Span

CUT = 0.5


def candidate(number, score=0.9, *, fused=None, cut_by=None, kind="book", **ranks):
    passage = Passage(number, number, 1, "", "", None, f"text {number}", source_type=kind)
    fused = fused or number
    ranks = {"bm25": number, **ranks, "fused": fused}
    scores = {"fused": 1 / fused}
    if cut_by != "fusion":
        ranks["rerank"], scores["rerank"] = number, score
    return Candidate(number, 1, ranks, scores, passage=passage, cut_by=cut_by)


def result(*candidates, scale="overlap"):
    alive = [each for each in candidates if each.cut_by is None]
    return Result(
        query="q",
        hits=tuple(Hit(each.passage, each.scores["rerank"], scale, each.ranks, each.scores) for each in alive),
        candidates=candidates,
        analysis=Analysis("q"),
        score_scale=scale,
        threshold=0.0,
        degraded=(),
        spans=(Span("rerank", 1.0, {"reranker": "overlap"}),),
        timings_ms={"total": 2.5},
    )


def relevant(*documents, **fields):
    return Judged(grades={str(each): 1 for each in documents}, **fields)


def observed(found, judged, **settings):
    return observe(found, judged, RetrievalConfig(**{"top_k": 2, **settings}), CUT, 20)[0]


def rankings(found, judged, *, depth=20, **settings):
    return observe(found, judged, RetrievalConfig(**{"top_k": 2, **settings}), CUT, depth)[1]


def lost_at(found, judged, **settings):
    return observed(found, judged, **settings).lost_at


def test_nothing_is_lost_where_something_relevant_is_a_result():
    assert lost_at(result(candidate(1), candidate(2)), relevant(2, 3)) == ""


def test_what_no_channel_found_is_lost_by_the_channels():
    assert lost_at(result(candidate(1)), relevant(7)) == "channels"


def test_what_is_not_given_to_the_reranker_is_lost_by_the_fusion():
    assert lost_at(result(candidate(1), candidate(2, cut_by="fusion")), relevant(2)) == "fusion"


def test_what_only_the_deeper_search_of_the_measurement_reranks_is_lost_by_the_fusion():
    found = result(candidate(2, fused=4), candidate(1, fused=1))

    assert lost_at(found, relevant(2), rerank_candidates=3) == "fusion"
    assert rankings(found, relevant(2), rerank_candidates=3)["reranked"] == ["1"]
    assert rankings(found, relevant(2), rerank_candidates=4)["reranked"] == ["1", "2"]


def test_what_scores_below_the_cut_is_lost_at_the_gate():
    assert lost_at(result(candidate(1), candidate(2, 0.4)), relevant(2)) == "gate"


def test_a_gate_that_is_open_loses_nothing():
    found = result(candidate(1), candidate(2, 0.0))
    assert observe(found, relevant(2), RetrievalConfig(top_k=2), 0.0, 20)[0].lost_at == ""


def test_what_stands_below_the_last_result_is_lost_by_the_count():
    assert lost_at(result(candidate(1), candidate(2), candidate(3)), relevant(3)) == "top_k"


def test_what_the_reranker_moved_out_of_the_results_is_lost_by_it():
    assert lost_at(result(candidate(1), candidate(2), candidate(3, fused=1)), relevant(3)) == "rerank"


def test_what_is_over_the_cap_of_its_kind_is_lost_there():
    found = result(candidate(1, kind="web"), candidate(2, kind="web"))
    assert lost_at(found, relevant(2), general_retrieval=False, max_web=1) == "per_source"


def test_the_cuts_of_the_measuring_search_are_not_those_of_readers():
    assert lost_at(result(candidate(1, cut_by="top_k")), relevant(1)) == ""


def test_of_several_the_one_that_came_furthest_counts():
    found = result(candidate(1, 0.4), candidate(2, cut_by="fusion"))
    assert lost_at(found, relevant(1, 2, 9)) == "gate"


def test_judgments_of_what_is_gone_are_lost_by_no_stage():
    assert lost_at(result(candidate(1)), relevant(7, unanchored=["the judgment"])) == "unanchored"


def test_a_query_without_judgments_loses_nothing():
    assert lost_at(result(candidate(1)), Judged()) == ""


def test_first_ranks_are_told_by_stage_and_missing_where_a_stage_has_none():
    found = result(candidate(1, vector=3), candidate(2, vector=1), candidate(3, cut_by="fusion", vector=2))
    assert observed(found, relevant(3)).first_relevant == {"bm25": 3, "vector": 2, "fused": 3}


def test_rankings_hold_each_unit_once_and_end_at_the_depth():
    judged = Judged(documents={1: "unit", 2: "unit"})
    found = result(candidate(1), candidate(2), candidate(3), candidate(4))
    assert rankings(found, judged, depth=2)["reranked"] == ["unit", "3"]


def test_scores_are_told_of_judged_units_that_reached_the_gate():
    found = result(candidate(1, 0.9), candidate(2, 0.3), candidate(3, 0.2), candidate(4, cut_by="fusion"))
    judged = Judged(grades={"1": 2, "3": 0, "4": 1})
    assert observed(found, judged).judged == [[0.9, 2], [0.2, 0]]


def test_the_best_score_is_the_highest_whatever_the_order():
    seen = observed(result(candidate(1, 0.7), candidate(2, 0.8), scale="cross_encoder"), Judged())
    assert (seen.best_score, seen.score_scale, seen.latency_ms) == (0.8, "cross_encoder", 2.5)


def test_the_best_score_is_that_of_a_search_that_reranks_no_more_than_one_for_readers():
    found = result(candidate(1, 0.6), candidate(2, 0.9, fused=30), candidate(3, cut_by="fusion"))
    assert observed(found, Judged(), rerank_candidates=20).best_score == 0.6


def test_a_unit_scores_as_its_best_chunk():
    found = result(candidate(1, 0.4), candidate(2, 0.9), candidate(3, 0.6))
    judged = Judged(grades={"unit": 1, "3": 0}, documents={1: "unit", 2: "unit", 3: "3"})
    assert observed(found, judged).judged == [[0.9, 1], [0.6, 0]]


def test_a_search_without_results_has_no_score_and_no_scale():
    seen = observed(result(), relevant(1))
    assert (seen.best_score, seen.score_scale, seen.lost_at) == (None, "", "channels")


@pytest.mark.parametrize(("scale", "scores"), [("cosine", [[0.4, 1]]), ("rrf", [[1.0, 1]])])
def test_without_a_reranker_the_scores_are_those_that_order_the_results(scale, scores):
    passage = Passage(1, 1, 1, "", "", None, "text")
    alone = Candidate(1, 1, {"vector": 1, "fused": 1}, {"vector": 0.4, "fused": 1.0}, passage=passage)
    found = Result("q", (), (alone,), Analysis("q"), scale, 0.0, (), (), {"total": 1.0})
    assert observed(found, relevant(1)).judged == scores
