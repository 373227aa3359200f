import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.fusion import min_max, reciprocal_rank_fusion, weighted_sum


def ranking(ids, weight):
    return np.array(ids, dtype=np.int64), weight


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


NAN = float("nan")


def weighted(ids, *channels):
    """Fuses `(scores, weight)` of the same chunks."""
    scored = [(np.array(scores, dtype=np.float64), weight) for scores, weight in channels]
    ids, scores = weighted_sum(np.array(ids, dtype=np.int64), scored)
    return dict(zip(ids.tolist(), scores.tolist(), strict=True))


def test_scores_are_normalised_over_the_union_before_they_are_weighed():
    fused = weighted([1, 2, 3], ([0.8, 0.4, 0.6], 0.7), ([0.0, 10.0, 5.0], 0.3))
    assert fused == pytest.approx({1: 0.7, 3: 0.5, 2: 0.3})
    assert list(fused) == [1, 3, 2]


def test_weights_count_by_their_share():
    assert weighted([1, 2], ([1, 0], 7), ([0, 1], 3)) == pytest.approx({1: 0.7, 2: 0.3})


def test_a_missing_score_counts_nothing_and_moves_no_other():
    assert weighted([1, 2, 3], ([0.9, NAN, 0.5], 1.0)) == {1: 1.0, 2: 0.0, 3: 0.0}


def test_equal_scores_lead_missing_ones():
    assert weighted([1, 2, 3], ([NAN, 0.5, 0.5], 1.0)) == {2: 1.0, 3: 1.0, 1: 0.0}


def test_a_channel_that_finds_no_term_in_common_lifts_nobody():
    assert weighted([1, 2], ([1, 0], 0.7), ([0, 0], 0.3)) == pytest.approx({1: 0.7, 2: 0.0})


def test_equal_sums_go_by_chunk_id():
    assert list(weighted([9, 3], ([1, 0], 0.5), ([0, 1], 0.5))) == [3, 9]


@pytest.mark.parametrize("channels", [[], [([0.5, 0.9], 0.0)], [([NAN, NAN], 1.0)]])
def test_channels_that_tell_nothing_leave_all_at_zero(channels):
    assert weighted([1, 2], *channels) == {1: 0.0, 2: 0.0}


def test_no_candidates_give_nothing():
    assert weighted([], ([], 1.0)) == {}


@st.composite
def unions(draw):
    size = draw(st.integers(1, 12))
    ids = draw(st.lists(st.integers(1, 99), unique=True, min_size=size, max_size=size))
    score = st.one_of(st.just(NAN), st.floats(-1e6, 1e6, allow_subnormal=False))
    column = st.lists(score, min_size=size, max_size=size)
    return ids, draw(st.lists(st.tuples(column, st.floats(0.01, 10)), min_size=1, max_size=3))


def naive_weighted_sum(ids, channels):
    fused = {}
    for position, chunk_id in enumerate(ids):
        fused[chunk_id] = 0.0
        for scores, weight in channels:
            known = [score for score in scores if not math.isnan(score)]
            if math.isnan(scores[position]):
                share = 0.0
            elif max(known) == min(known):
                share = float(max(known) > 0)
            else:
                share = (scores[position] - min(known)) / (max(known) - min(known))
            fused[chunk_id] += share * weight
    return {chunk_id: score / sum(weight for _, weight in channels) for chunk_id, score in fused.items()}


@given(unions())
def test_the_weighted_sum_agrees_with_the_formula_written_out(union):
    assert weighted(union[0], *union[1]) == pytest.approx(naive_weighted_sum(*union))


@given(unions())
def test_weighted_sums_descend_from_at_most_one_to_at_least_zero(union):
    scores = list(weighted(union[0], *union[1]).values())
    assert scores == sorted(scores, reverse=True)
    assert scores[0] <= 1
    assert scores[-1] >= 0


@given(unions(), st.randoms(use_true_random=False))
def test_the_order_of_candidates_and_channels_does_not_matter(union, random):
    ids, channels = union
    order = random.sample(range(len(ids)), len(ids))
    shuffled = [([scores[position] for position in order], weight) for scores, weight in channels]
    random.shuffle(shuffled)
    assert weighted([ids[position] for position in order], *shuffled) == pytest.approx(weighted(ids, *channels))


@given(unions(), st.data())
def test_a_better_score_never_costs_a_candidate_standing(union, data):
    ids, channels = union
    position = data.draw(st.integers(0, len(ids) - 1))
    scores, weight = channels[0]
    least = -1e6 if math.isnan(scores[position]) else scores[position]
    raised = [*scores[:position], data.draw(st.floats(least, 2e6)), *scores[position + 1 :]]
    before, after = weighted(ids, *channels), weighted(ids, (raised, weight), *channels[1:])
    assert after[ids[position]] >= before[ids[position]] - 1e-9


@given(st.lists(st.lists(st.one_of(st.just(NAN), st.floats(-9, 9)), min_size=4, max_size=4), min_size=1, max_size=5))
def test_each_row_is_normalised_by_itself(rows):
    together = min_max(np.array(rows))
    assert together.tolist() == [min_max(np.array(row)).tolist() for row in rows]
