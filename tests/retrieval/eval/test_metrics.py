import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.eval.metrics import auroc, per_query

NAMES = {"recall@5", "recall@20", "hit_rate@1", "mrr@10", "ndcg@10"}


def test_figures_equal_those_computed_by_hand():
    qrels = {"q": {"a": 1, "b": 2, "c": 1, "x": 0}}
    run = {"q": ["x", "b", "y", "a", "z", "c"]}

    # Graded gains, log2(rank + 1) discounts: ranks 2, 4, 6 against the ideal order 2, 1, 1.
    dcg = 2 / math.log2(3) + 1 / math.log2(5) + 1 / math.log2(7)
    ideal = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    assert per_query(qrels, run)["q"] == pytest.approx(
        {"recall@5": 2 / 3, "recall@20": 1.0, "hit_rate@1": 0.0, "mrr@10": 1 / 2, "ndcg@10": dcg / ideal}
    )


def test_a_perfect_ranking_scores_one_everywhere():
    assert per_query({"q": {"a": 1}}, {"q": ["a", "b"]})["q"] == dict.fromkeys(NAMES, 1.0)


@pytest.mark.parametrize(
    ("place", "name"), [(6, "recall@5"), (21, "recall@20"), (2, "hit_rate@1"), (11, "mrr@10"), (11, "ndcg@10")]
)
def test_a_document_just_below_the_cutoff_counts_nothing(place, name):
    ranking = [f"other{number}" for number in range(1, 30)]
    ranking.insert(place - 1, "gold")

    assert per_query({"q": {"gold": 1}}, {"q": ranking})["q"][name] == 0.0


@pytest.mark.parametrize(
    ("place", "name"), [(5, "recall@5"), (20, "recall@20"), (1, "hit_rate@1"), (10, "mrr@10"), (10, "ndcg@10")]
)
def test_a_document_at_the_cutoff_counts(place, name):
    ranking = [f"other{number}" for number in range(1, 30)]
    ranking.insert(place - 1, "gold")

    assert per_query({"q": {"gold": 1}}, {"q": ranking})["q"][name] > 0.0


def test_a_query_without_results_has_figures_of_zero():
    qrels = {"found": {"a": 1}, "empty": {"b": 1}, "absent": {"c": 1}}

    assert per_query(qrels, {"found": ["a"], "empty": []}) == {
        "found": dict.fromkeys(NAMES, 1.0),
        "empty": dict.fromkeys(NAMES, 0.0),
        "absent": dict.fromkeys(NAMES, 0.0),
    }


def test_a_run_without_any_result_scores_zero():
    assert per_query({"q": {"a": 1}}, {}) == {"q": dict.fromkeys(NAMES, 0.0)}


def test_queries_without_a_relevant_document_have_no_figures():
    qrels = {"judged": {"a": 1}, "unanswerable": {}, "irrelevant": {"b": 0, "c": -1}}

    assert per_query(qrels, {"judged": ["a"], "irrelevant": ["b"]}) == {"judged": dict.fromkeys(NAMES, 1.0)}


def test_a_negative_grade_is_not_relevant():
    assert per_query({"q": {"a": 1, "spam": -2}}, {"q": ["a", "spam"]})["q"] == dict.fromkeys(NAMES, 1.0)


def test_unjudged_queries_of_the_run_are_ignored():
    assert per_query({"q": {"a": 1}}, {"q": ["a"], "other": ["b"]}) == {"q": dict.fromkeys(NAMES, 1.0)}


def test_nothing_judged_has_no_figures():
    assert per_query({}, {}) == per_query({"q": {"a": 0}}, {"q": ["a"]}) == {}


def test_a_duplicate_in_a_ranking_is_refused():
    with pytest.raises(ValueError, match="the ranking of query 'q' holds 'a' twice"):
        per_query({"q": {"a": 1}}, {"q": ["a", "b", "a"]})


def test_each_query_has_its_own_figures():
    figures = per_query({"one": {"a": 1}, "two": {"b": 1}}, {"one": ["a"], "two": ["x", "b"]})

    assert figures["one"]["mrr@10"] == 1.0
    assert figures["two"]["mrr@10"] == 0.5
    assert all(set(values) == NAMES for values in figures.values())


@given(st.permutations([f"d{number:02}" for number in range(40)]))
def test_the_order_of_the_ranking_is_kept_whatever_the_ids(ranking):
    figures = per_query({"q": {"d07": 1}}, {"q": ranking})["q"]

    place = ranking.index("d07") + 1
    assert figures["mrr@10"] == pytest.approx(1 / place if place <= 10 else 0.0)
    assert figures["recall@20"] == (1.0 if place <= 20 else 0.0)


SCORES = st.lists(st.sampled_from([-math.inf, 0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_auroc_is_the_share_of_pairs_in_order_with_ties_counting_half(positive, negative):
    pairs = [(one > other) + (one == other) / 2 for one in positive for other in negative]

    assert auroc(np.array(positive), np.array(negative)) == pytest.approx(sum(pairs) / len(pairs))
