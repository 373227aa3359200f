import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.fusion import WeightedRanking, best_fused_score, reciprocal_rank_fusion


def ranking(ids, weight):
    return WeightedRanking(np.array(ids, dtype=np.int64), weight)


def test_scores_are_weight_over_k_plus_rank_from_one():
    ids, scores = reciprocal_rank_fusion([ranking([7, 8], 0.6), ranking([8, 9], 0.4)], k=60)
    assert ids.tolist() == [8, 7, 9]
    assert scores.tolist() == pytest.approx([0.6 / 62 + 0.4 / 61, 0.6 / 61, 0.4 / 62])


def test_ties_are_broken_by_chunk_id():
    ids, _ = reciprocal_rank_fusion([ranking([9], 0.5), ranking([3], 0.5)], k=60)
    assert ids.tolist() == [3, 9]


def test_nothing_to_fuse_gives_nothing():
    ids, scores = reciprocal_rank_fusion([], k=60)
    assert len(ids) == len(scores) == 0


def test_the_best_score_is_that_of_a_chunk_which_all_rankings_put_first():
    rankings = [ranking([4, 5], 0.6), ranking([4, 6], 0.4)]
    _, scores = reciprocal_rank_fusion(rankings, k=60)
    assert best_fused_score(rankings, k=60) == pytest.approx(scores[0])


rankings = st.lists(
    st.tuples(st.lists(st.integers(1, 30), unique=True, max_size=20), st.floats(0.01, 10)), min_size=1, max_size=4
)


@given(rankings, st.integers(1, 100))
def test_agrees_with_the_formula_written_out(parts, k):
    expected = {}
    for ids, weight in parts:
        for rank, chunk_id in enumerate(ids, start=1):
            expected[chunk_id] = expected.get(chunk_id, 0.0) + weight / (k + rank)
    ids, scores = reciprocal_rank_fusion([ranking(*part) for part in parts], k)
    assert dict(zip(ids.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected)
    assert (np.diff(scores) <= 0).all()
