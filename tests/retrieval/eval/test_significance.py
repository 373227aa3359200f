import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import bootstrap, permutation_test

from retrieval.eval import metrics
from retrieval.eval.metrics import RESAMPLES, mean_intervals, paired_p_values

FIGURES = st.floats(0, 1).map(lambda value: round(value, 3))


def pair(*shape):
    return st.tuples(arrays(float, shape, elements=FIGURES), arrays(float, shape, elements=FIGURES))


@given(pair(7, 2))
@settings(max_examples=15)
def test_agrees_with_the_exact_test_over_every_exchange(figures):
    before, after = figures
    exact = [
        permutation_test((column,), lambda x, axis: x.sum(axis=axis), permutation_type="samples", vectorized=True)
        for column in (after - before).T
    ]

    assert paired_p_values(before, after) == pytest.approx([each.pvalue for each in exact])


@given(pair(13, 1))
@settings(max_examples=10)
def test_random_exchanges_come_close_to_all_of_them(figures):
    before, after = figures
    # The first query differs by nothing to speak of, and makes one exchange too many to try them all.
    padded = np.vstack([before, [[0.0]]]), np.vstack([after, [[1e-9]]])

    assert paired_p_values(*padded) == pytest.approx(paired_p_values(before, after), abs=0.03)


@given(pair(20, 3))
@settings(max_examples=15)
def test_is_a_probability_and_the_same_whichever_comes_first(figures):
    before, after = figures
    forth, back = paired_p_values(before, after), paired_p_values(after, before)

    assert ((forth >= 2 / (RESAMPLES + 1)) & (forth <= 1)).all()
    assert forth == pytest.approx(back, abs=0.03)


def test_a_run_does_not_differ_from_itself():
    figures = np.random.default_rng(1).random((50, 2))

    assert paired_p_values(figures, figures).tolist() == [1.0, 1.0]


def test_a_measure_that_no_query_moves_is_apart_from_those_that_do():
    before = np.zeros((100, 2))
    after = np.column_stack([np.zeros(100), np.full(100, 0.1)])

    still, moved = paired_p_values(before, after)

    assert still == 1.0
    assert moved < 0.001


def test_one_query_alone_proves_nothing():
    before, after = np.zeros((100, 1)), np.zeros((100, 1))
    after[3] = 1.0

    assert paired_p_values(before, after)[0] == 1.0


def test_the_same_runs_give_the_same_figure():
    rng = np.random.default_rng(2)
    before, after = rng.random((40, 4)), rng.random((40, 4))

    assert paired_p_values(before, after).tolist() == paired_p_values(before, after).tolist()


def test_many_queries_are_exchanged_in_smaller_batches(monkeypatch):
    rng = np.random.default_rng(4)
    before, after = rng.random((40, 2)), rng.random((40, 2)) + 0.05
    at_once = paired_p_values(before, after)
    sizes = []
    exchanges = metrics._exchanges
    monkeypatch.setattr(metrics, "SIGNS_AT_ONCE", 40 * 7)
    monkeypatch.setattr(
        metrics, "_exchanges", lambda count: (sizes.append(len(signs)) or signs for signs in exchanges(count))
    )

    assert paired_p_values(before, after) == pytest.approx(at_once, abs=0.03)
    assert (max(sizes), sum(sizes)) == (7, RESAMPLES + 1)


def test_noise_is_rarely_significant():
    rng = np.random.default_rng(3)
    p_values = paired_p_values(rng.random((200, 100)), rng.random((200, 100)))

    assert (p_values < 0.05).mean() < 0.15


def test_no_queries_tell_nothing():
    assert paired_p_values(np.zeros((0, 2)), np.zeros((0, 2))).tolist() == [1.0, 1.0]


def test_figures_of_other_queries_are_refused():
    with pytest.raises(ValueError, match="same queries"):
        paired_p_values(np.zeros((3, 1)), np.zeros((4, 1)))


# -- Intervals of means -----------------------------------------------------------------------------------------------------
def test_an_interval_is_that_of_a_percentile_bootstrap():
    figures = np.random.default_rng(3).normal(0.1, 0.3, (40, 2))

    low, high = mean_intervals(figures)

    for column in range(2):
        own = bootstrap((figures[:, column],), np.mean, method="percentile", rng=np.random.default_rng(1))
        assert (low[column], high[column]) == pytest.approx(tuple(own.confidence_interval), abs=0.005)


@given(arrays(float, (9, 2), elements=FIGURES))
@settings(max_examples=15)
def test_an_interval_holds_the_mean_and_is_the_same_each_time(figures):
    low, high = mean_intervals(figures)

    assert (low <= figures.mean(axis=0) + 1e-12).all()
    assert (high >= figures.mean(axis=0) - 1e-12).all()
    assert mean_intervals(figures).tolist() == [low.tolist(), high.tolist()]


def test_figures_that_are_all_equal_have_no_width():
    assert mean_intervals(np.full((30, 1), 0.25)).tolist() == [[0.25], [0.25]]


def test_drawing_in_batches_changes_nothing_but_the_draws(monkeypatch):
    figures = np.random.default_rng(3).normal(0.1, 0.3, (40, 1))
    at_once = mean_intervals(figures)
    monkeypatch.setattr(metrics, "SIGNS_AT_ONCE", 40 * 7)

    assert mean_intervals(figures) == pytest.approx(at_once, abs=0.01)
