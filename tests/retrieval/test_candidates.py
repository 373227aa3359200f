import numpy as np
import pytest

from retrieval.config import RetrievalConfig
from retrieval.fusion import channel_weights, fuse
from retrieval.types import Passage, Ranking
from tests.retrieval.pipelines import scope

PAIR = ("vector", "bm25")


def ranking(channel, found, *, kb_id=1, score=None):
    ids, scores = np.array(list(found), dtype=np.int64), np.array(list(found.values()))
    return Ranking(channel, kb_id, ids, scores, score=score)


def fused(*rankings, depth=None, own=None, questions=None, **settings):
    kb_ids = dict.fromkeys(each.kb_id for each in rankings)
    own = own or {}
    passages = {
        chunk_id: Passage(chunk_id, chunk_id, each.kb_id, "", "", None, "text")
        for each in rankings
        for chunk_id in each.chunk_ids.tolist()
    }
    scopes = [scope(kb_id, **settings, **own.get(kb_id, {})) for kb_id in kb_ids]
    return fuse(scopes, rankings, passages, depth, questions or {})


def test_what_every_channel_puts_first_has_all_of_their_agreement():
    first, second = fused(ranking("vector", {1: 0.9, 2: 0.8}), ranking("bm25", {1: 5.0}))
    assert (first.chunk_id, first.agreement) == (1, pytest.approx(1.0))
    assert second.agreement == pytest.approx((0.6 / 62) / (1.0 / 61))


@pytest.mark.parametrize("fusion", ["rrf", "weighted"])
def test_a_chunk_without_questions_agrees_no_less_for_it(fusion):
    vector, bm25 = (ranking(name, {1: 0.9}) for name in PAIR)
    of_it, of_another = ([ranking(name, {key: 0.9}) for name in ("question", "question_bm25")] for key in (1, 2))
    candidates = fused(vector, bm25, *of_another, fusion=fusion)
    assert next(each.agreement for each in candidates if each.chunk_id == 1) == pytest.approx(1.0)
    assert fused(vector, bm25, *of_it, fusion=fusion)[0].agreement == 1.0


def test_what_questions_count_is_shared_as_passages_weights_are():
    weights = channel_weights(RetrievalConfig(vector_weight=0.2, keyword_weight=0.6, question_weight=0.4))
    assert (weights["question"], weights["question_bm25"]) == pytest.approx((0.1, 0.3))


def test_what_has_a_question_that_the_query_equals_comes_first():
    candidates = fused(ranking("bm25", {1: 2.0, 2: 1.0, 3: 0.5}), depth=1, questions={3: "which?"})
    assert [(c.chunk_id, c.question, c.cut_by) for c in candidates] == [
        (3, "which?", None),
        (1, "", "fusion"),
        (2, "", "fusion"),
    ]


def test_weighted_fusion_asks_each_channel_for_the_exact_score_of_every_candidate():
    vector = ranking("vector", {1: 0.9, 2: 0.5}, score=lambda ids: np.array([0.9, 0.5, 0.7])[ids - 1])
    bm25 = ranking("bm25", {3: 4.0}, score=lambda ids: np.array([2.0, 0.0, 4.0])[ids - 1])
    candidates = fused(vector, bm25, fusion="weighted", hybrid_vector_weight=0.5, hybrid_text_weight=0.5)
    # Min-max over the union: vector 1, 0, .5 and bm25 .5, 0, 1.
    assert {c.chunk_id: c.scores["fused"] for c in candidates} == pytest.approx({1: 0.75, 3: 0.75, 2: 0.0})
    assert {c.chunk_id: c.scores["bm25"] for c in candidates} == {1: 2.0, 2: 0.0, 3: 4.0}
    assert "bm25" not in candidates[0].ranks


def test_a_score_that_is_not_known_is_left_out():
    candidate = fused(ranking("vector", {1: 0.9}), ranking("bm25", {1: np.nan}))[0]
    assert (candidate.ranks["bm25"], "bm25" in candidate.scores) == (1, False)


@pytest.mark.parametrize(("depth", "cut"), [(1, [None, "fusion"]), (None, [None, None])])
def test_candidates_beyond_the_depth_are_cut(depth, cut):
    assert [c.cut_by for c in fused(ranking("bm25", {1: 2.0, 2: 1.0}), depth=depth)] == cut


def test_knowledge_bases_merge_by_fused_score_then_by_their_order():
    candidates = fused(ranking("bm25", {21: 1.0, 22: 0.5}, kb_id=2), ranking("bm25", {11: 9.0}, kb_id=1))
    assert [(c.kb_id, c.chunk_id) for c in candidates] == [(2, 21), (1, 11), (2, 22)]


@pytest.mark.parametrize("other", [{"fusion": "weighted"}, {"vector_weight": 600, "keyword_weight": 400}, {"rrf_k": 1}])
def test_a_knowledge_base_whose_fusion_gives_smaller_scores_has_its_place(other):
    many = {chunk_id: 30.0 - chunk_id for chunk_id in range(1, 20)}
    rankings = ranking("vector", many), ranking("bm25", many), *(ranking(name, {99: 1.0}, kb_id=2) for name in PAIR)
    assert {c.chunk_id for c in fused(*rankings, own={1: other})[:2]} == {1, 99}


def test_a_knowledge_base_without_its_vectors_has_its_place():
    many = {chunk_id: 30.0 - chunk_id for chunk_id in range(1, 20)}
    rankings = ranking("vector", many), ranking("bm25", many), ranking("bm25", {99: 1.0}, kb_id=2)
    assert {c.chunk_id for c in fused(*rankings)[:2]} == {1, 99}


def test_n_grams_alone_stay_behind_words():
    lexical, words = ranking("lexical", {99: 1.0}), ranking("bm25", {1: 1.0, 2: 0.9}, kb_id=2)
    assert [c.chunk_id for c in fused(lexical, words)] == [1, 2, 99]
