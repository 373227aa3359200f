import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.eval.metrics import cut_curve, figures_at, histogram, suggest_cut

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
