import json

import pytest

from kb.base.errors import Rejected
from kb.quality.runs.services.report import below_baseline, below_recall, lost_queries, read_baseline


def report(recall=0.9, *, gate=None, stage="reranked", queries=10, incomplete=None):
    return {
        "queries": queries,
        "final_stage": stage,
        "stages": {"fused": {"recall@5": 0.8}, "reranked": {"recall@5": recall}},
        "gate": gate,
        "incomplete": incomplete or {},
    }


def gate(**figures):
    return {"auroc": 0.9, "answerable_kept": 0.8, "unanswerable_passed": 0.1, **figures}


def names(shortfalls):
    return [shortfall.partition(":")[0] for shortfall in shortfalls]


def test_recall_at_its_floor_is_not_below_it():
    assert below_recall(report(0.9), 0.9) == []


@pytest.mark.parametrize(("recall", "floor"), [(float("nan"), 0.5), (0.9, float("nan"))])
def test_nothing_is_at_least_what_is_no_number(recall, floor):
    assert names(below_recall(report(recall), floor)) == ["reranked recall@5"]


def test_recall_below_its_floor_is_told_with_both():
    assert below_recall(report(0.9), 0.95) == ["reranked recall@5: 0.9000, must be at least 0.9500"]


def test_without_a_reranker_the_recall_is_that_of_the_fusion():
    assert names(below_recall(report(0.0, stage="fused"), 0.85)) == ["fused recall@5"]


def test_a_set_without_figures_is_below_every_floor():
    empty = {**report(), "stages": {"fused": {}, "reranked": {}}}
    assert below_recall(empty, 0.0) == ["reranked recall@5: missing, must be at least 0.0000"]


@pytest.mark.parametrize(("figure", "expected"), [(0.896, []), (0.895, []), (0.894, ["reranked recall@5"])])
def test_a_figure_may_fall_by_the_tolerance(figure, expected):
    assert names(below_baseline(report(figure), report(0.9), 0.005)) == expected


def test_a_figure_that_rises_is_no_shortfall():
    assert below_baseline(report(1.0, gate=gate()), report(0.9), 0.0) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"auroc": 0.8}, ["gate auroc"]),
        ({"answerable_kept": 0.7}, ["gate answerable_kept"]),
        ({"unanswerable_passed": 0.2}, ["gate unanswerable_refused"]),
        ({"unanswerable_passed": 0.0}, []),
    ],
)
def test_the_gate_must_not_fall_either(change, expected):
    assert names(below_baseline(report(gate=gate(**change)), report(gate=gate()), 0.005)) == expected


def test_figures_that_are_no_longer_there_are_missing():
    missing = below_baseline(report(), report(gate=gate()), 0.005)
    assert all(": missing, " in each for each in missing)
    assert len(missing) == 3


def test_a_baseline_of_other_queries_is_refused():
    with pytest.raises(Rejected, check=lambda error: error.code == "baseline_of_others"):
        below_baseline(report(queries=12), report(), 0.005)


def test_lost_queries_are_those_that_find_less_than_before():
    before = report(incomplete={"known": 0.5, "same": 0.0, "risen": 0.0})
    now = report(incomplete={"known": 0.25, "same": 0.0, "risen": 0.5, "new": 0.0})
    assert lost_queries(now, before) == [("new", 1.0, 0.0), ("known", 0.5, 0.25)]


def test_without_a_baseline_every_query_that_lacks_something_is_lost():
    assert lost_queries(report(incomplete={"a": 0.5}), None) == [("a", 1.0, 0.5)]


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"stages": 1}', '{"stages": {}}'])
def test_a_file_that_is_no_report_is_refused_with_the_remedy(tmp_path, content):
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(Rejected, match="--json"):
        read_baseline(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(Rejected, match=r"nowhere\.json"):
        read_baseline(tmp_path / "nowhere.json")


def test_a_report_is_read_as_it_was_printed(tmp_path):
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(report()))
    assert read_baseline(path) == report()
