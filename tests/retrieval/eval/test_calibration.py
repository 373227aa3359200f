import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.eval.calibration import (
    cut_curve,
    cut_that_keeps,
    cut_that_refuses,
    figures_at,
    histogram,
    kept_at_least,
    queries_needed,
    suggest_cut,
)

SHARES = st.integers(50, 95).map(lambda percent: percent / 100)
SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=30).map(np.array)


def by_hand(cut, relevant, irrelevant):
    kept, slipped = sum(relevant >= cut), sum(irrelevant >= cut)
    precision = kept / (kept + slipped) if kept + slipped else 1.0
    recall = kept / len(relevant)
    f1 = 2 * precision * recall / (precision + recall) if kept else 0.0
    return pytest.approx((precision, recall, f1))


@given(st.floats(0, 1), SCORES, SCORES)
def test_figures_are_those_of_the_definition(cut, relevant, irrelevant):
    found = figures_at(cut, relevant, irrelevant)

    assert (found.precision, found.recall, found.f1) == by_hand(cut, relevant, irrelevant)


@given(SCORES, SCORES)
def test_no_cut_has_a_higher_f1_than_the_suggested_one(relevant, irrelevant):
    suggested = suggest_cut(relevant, irrelevant)

    assert suggested == figures_at(suggested.cut, relevant, irrelevant)
    for cut in (*relevant, *irrelevant, 0.0):
        assert figures_at(cut, relevant, irrelevant).f1 <= suggested.f1 + 1e-12


@given(SCORES, SCORES)
def test_a_suggestion_is_a_threshold_that_settings_take(relevant, irrelevant):
    assert 0 <= suggest_cut(relevant, irrelevant).cut <= 1


def test_scores_that_are_apart_are_cut_in_the_middle_between_them():
    suggested = suggest_cut(np.array([0.8, 0.9]), np.array([0.2, 0.4]))

    assert (suggested.cut, suggested.precision, suggested.recall) == (0.6, 1.0, 1.0)


def test_scores_that_are_close_are_told_apart_all_the_same():
    suggested = suggest_cut(np.array([0.50002, 0.9]), np.array([0.50001]))

    assert (suggested.precision, suggested.recall) == (1.0, 1.0)


def test_scores_without_a_number_between_them_are_told_apart():
    least = np.nextafter(0.5, 1)

    assert suggest_cut(np.array([least]), np.array([0.5])).cut == least


def test_a_cut_is_never_below_zero():
    assert suggest_cut(np.array([-0.3, 0.4]), np.array([-0.5])).cut == 0.0


@pytest.mark.parametrize(("relevant", "irrelevant"), [([], [0.5]), ([0.5], []), ([], [])])
def test_one_kind_alone_suggests_nothing(relevant, irrelevant):
    assert suggest_cut(np.array(relevant, float), np.array(irrelevant, float)) is None


@given(SCORES, SCORES)
def test_recall_falls_along_the_curve(relevant, irrelevant):
    recalls = [each.recall for each in cut_curve(np.linspace(0, 1, 21), relevant, irrelevant)]

    assert recalls == sorted(recalls, reverse=True)
    assert recalls[0] == 1.0


@given(st.lists(st.floats(-1, 2), max_size=50))
def test_a_histogram_counts_every_score_once(scores):
    assert sum(histogram(np.array(scores, float), np.linspace(0, 1, 11))) == len(scores)


def test_a_histogram_puts_what_is_beyond_its_edges_at_the_ends():
    assert histogram(np.array([-0.5, 0.1, 0.6, 1.5]), np.linspace(0, 1, 3)) == [2, 2]


# -- The cut that keeps a share ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "count"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99), (0.999, 999)])
def test_a_promise_rests_on_enough_queries(share, count):
    scores = np.linspace(0.1, 0.9, count)

    assert queries_needed(share) == count
    assert cut_that_keeps(share, scores) == pytest.approx(0.1)
    assert cut_that_keeps(share, scores[1:]) is None


def test_of_a_hundred_queries_the_fifth_lowest_is_the_cut_that_keeps_95_percent():
    scores = np.arange(100) / 100

    assert cut_that_keeps(0.95, np.random.default_rng(0).permutation(scores)) == 0.05 - 0.01


@given(SHARES, st.lists(st.floats(0, 1), min_size=19, max_size=60).map(np.array))
def test_a_cut_keeps_its_share_of_the_queries_it_was_made_by(share, scores):
    assert (scores >= cut_that_keeps(share, scores)).mean() >= share


@given(
    SHARES, st.lists(st.floats(0, 1), min_size=19, max_size=60, unique_by=lambda score: round(score, 2)).map(np.array)
)
def test_no_cut_that_is_larger_by_more_than_the_rounding_makes_the_promise(share, scores):
    larger = cut_that_keeps(share, scores) + 0.001

    assert (scores < larger).sum() + 1 > (scores.size + 1) * (1 - share) - 1e-9


@pytest.mark.parametrize("share", [0.8, 0.95])
@pytest.mark.parametrize("count", [19, 60, 400])
def test_the_next_query_is_kept_as_often_as_promised(share, count):
    rng = np.random.default_rng(7)
    kept = [
        rng.beta(5, 2) >= cut_that_keeps(share, rng.beta(5, 2, count))  # a query like those of the set
        for _ in range(4_000)
    ]

    deviation = math.sqrt(share * (1 - share) / len(kept))
    assert share - 3 * deviation <= np.mean(kept) <= share + 1 / (count + 1) + 0.002 + 3 * deviation


def test_queries_that_find_nothing_count_as_lost():
    scores = np.array([*[-math.inf] * 4, *np.linspace(0.2, 0.9, 96)])

    assert cut_that_keeps(0.95, scores) == 0.2
    assert cut_that_keeps(0.97, scores) is None


def test_a_cut_that_keeps_is_not_below_zero():
    assert cut_that_keeps(0.5, np.array([-0.2, 0.4])) == 0.0


@pytest.mark.parametrize("score", [0.57, np.nextafter(0.57, 0), np.nextafter(0.57, 1), 0.29, 1.0])
def test_rounding_breaks_no_promise(score):
    keeps, refuses = cut_that_keeps(0.5, np.array([score])), cut_that_refuses(np.array([score]))

    assert score - 0.002 < keeps <= score
    assert refuses is None or score < refuses < score + 0.002


# One-sided: the lower ends of two-sided intervals of 90 %. The first two have a closed form.
@pytest.mark.parametrize(
    ("kept", "count", "bound"),
    [(19, 19, 0.05 ** (1 / 19)), (1, 10, 1 - 0.95 ** (1 / 10)), (9, 10, 0.6058), (95, 100, 0.8977), (0, 10, 0.0)],
)
def test_the_bound_is_that_of_clopper_and_pearson(kept, count, bound):
    assert kept_at_least(kept, count) == pytest.approx(bound, abs=5e-5)


@given(st.integers(1, 300).flatmap(lambda count: st.tuples(st.integers(1, count), st.just(count))))
def test_at_the_bound_as_many_or_more_are_kept_in_one_case_of_twenty(kept_of_count):
    kept, count = kept_of_count
    share = kept_at_least(kept, count)

    tail = sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(kept, count + 1))
    assert tail == pytest.approx(0.05)


def test_the_bound_holds_though_the_cut_was_chosen_by_the_same_queries():
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(2_000):
        scores = rng.random(200)
        cut = cut_that_keeps(0.95, scores)
        held += 1 - cut >= kept_at_least(int((scores >= cut).sum()), scores.size)  # of uniform scores 1 - cut pass

    assert held / 2_000 >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 2_000)


# -- The cut that refuses ----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=30).map(np.array))
def test_no_query_without_an_answer_passes(scores):
    cut = cut_that_refuses(scores)

    assert scores.max() < cut <= scores.max() + 0.002


def test_without_queries_to_refuse_there_is_no_such_cut():
    assert cut_that_refuses(np.array([])) is None


def test_what_scores_as_high_as_can_be_is_refused_by_no_cut():
    assert cut_that_refuses(np.array([0.2, 1.0])) is None
