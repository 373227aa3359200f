"""Retrieval measures over ir_measures (trec_eval's definitions)."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import ir_measures
import numpy as np
from ir_measures import RR, R, Success, nDCG
from numpy.typing import NDArray

from retrieval.errors import RetrievalError

StageMetrics = TypedDict(
    "StageMetrics",
    {"recall@5": float, "recall@20": float, "hit_rate@1": float, "mrr@10": float, "ndcg@10": float},
)
"""One stage's figures, each between 0 and 1."""

_MEASURES = {"recall@5": R @ 5, "recall@20": R @ 20, "hit_rate@1": Success @ 1, "mrr@10": RR @ 10, "ndcg@10": nDCG @ 10}
_NAMES = {measure: name for name, measure in _MEASURES.items()}

Qrels = Mapping[str, Mapping[str, int]]
"""Grades by document id by query id; a grade of 1 or more is relevant."""

Run = Mapping[str, Sequence[str]]
"""Document ids by query id, best first."""


def evaluate_run(qrels: Qrels, run: Run) -> StageMetrics:
    """The means over every query with a relevant document; a query that the run lacks counts 0.

    Raises:
        RetrievalError: no query has a relevant document, so that there is nothing to average.
        ValueError: a ranking holds a document twice.
    """
    queries = list(per_query(qrels, run).values())
    if not queries:
        raise RetrievalError("no query of this evaluation set has a relevant document: judge some, or import its qrels")
    means = {name: sum(query[name] for query in queries) / len(queries) for name in _MEASURES}  # type: ignore[literal-required]
    return _stage_metrics(means)


def per_query(qrels: Qrels, run: Run) -> dict[str, StageMetrics]:
    """Each query's figures, for every query with a relevant document, in the order of the qrels.

    Raises:
        ValueError: a ranking holds a document twice.
    """
    judged = _judged(qrels)
    if not judged:
        return {}
    figures: dict[str, dict[str, float]] = {query_id: {} for query_id in judged}
    scored = {query_id: _scores(query_id, run[query_id]) for query_id in judged if query_id in run}
    for metric in ir_measures.iter_calc(list(_NAMES), judged, scored):
        figures[metric.query_id][_NAMES[metric.measure]] = float(metric.value)
    return {query_id: _stage_metrics(values) for query_id, values in figures.items()}


def _judged(qrels: Qrels) -> dict[str, dict[str, int]]:
    # trec_eval has no negative grades: what is below 0 is not relevant.
    grades = {query_id: {doc: max(0, grade) for doc, grade in docs.items()} for query_id, docs in qrels.items()}
    return {query_id: docs for query_id, docs in grades.items() if any(docs.values())}


def _scores(query_id: str, ranking: Sequence[str]) -> dict[str, float]:
    """Strictly falling scores, so that the library's way of breaking ties cannot reorder the ranking."""
    scores = {doc_id: float(len(ranking) - place) for place, doc_id in enumerate(ranking)}
    if len(scores) != len(ranking):
        twice = next(doc_id for place, doc_id in enumerate(ranking) if doc_id in ranking[:place])
        raise ValueError(
            f"the ranking of query '{query_id}' holds '{twice}' twice: remove duplicates before evaluating"
        )
    return scores


def _stage_metrics(values: Mapping[str, float]) -> StageMetrics:
    return {
        "recall@5": values["recall@5"],
        "recall@20": values["recall@20"],
        "hit_rate@1": values["hit_rate@1"],
        "mrr@10": values["mrr@10"],
        "ndcg@10": values["ndcg@10"],
    }


def auroc(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """The probability that a score of the first kind is above one of the second, ties counting half.

    Source: the Mann-Whitney U statistic as in Hanley and McNeil, "The meaning and use of the area under a receiver
    operating characteristic (ROC) curve", Radiology 1982.
    """
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    not_above = np.searchsorted(ordered, positive, side="right")
    return float((below + not_above).mean() / (2 * negative.size))
