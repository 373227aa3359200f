import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from retrieval.rerankers.chain import UnusableAnswer, relevance


@given(st.integers(0, 20).flatmap(lambda count: arrays(np.float64, count, elements=st.floats(0, 1))))
def test_probabilities_stay_as_they_are(scores):
    assert relevance(scores, len(scores), model="m").tolist() == scores.tolist()


@given(arrays(np.float64, 5, elements=st.floats(0, 1)), st.integers(0, 9).filter(lambda count: count != 5))
def test_another_number_of_scores_is_unusable(scores, count):
    with pytest.raises(UnusableAnswer, match=f"for {count} passages"):
        relevance(scores, count, model="m")


@given(
    arrays(np.float64, 5, elements=st.floats(0, 1)),
    st.integers(0, 4),
    st.floats().filter(lambda score: not 0 <= score <= 1),
)
def test_one_score_outside_of_the_range_makes_all_unusable(scores, place, score):
    scores[place] = score
    with pytest.raises(UnusableAnswer):
        relevance(scores, 5, model="m")


def test_a_column_of_scores_is_unusable():
    with pytest.raises(UnusableAnswer, match="one label"):
        relevance([[0.5], [0.5]], 2, model="m")
