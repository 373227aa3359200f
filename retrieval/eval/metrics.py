"""Retrieval measures over ir_measures (trec_eval's definitions), and whether two systems differ by more than chance."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict, cast

import ir_measures
import numpy as np
from ir_measures import RR, R, Success, nDCG
from numpy.typing import NDArray

# One stage's figures, each between 0 and 1.
StageMetrics = TypedDict(
    "StageMetrics", {"recall@5": float, "recall@20": float, "hit_rate@1": float, "mrr@10": float, "ndcg@10": float}
)

_MEASURES = {"recall@5": R @ 5, "recall@20": R @ 20, "hit_rate@1": Success @ 1, "mrr@10": RR @ 10, "ndcg@10": nDCG @ 10}
_NAMES = {measure: name for name, measure in _MEASURES.items()}

# Grades by document id by query id; a grade of 1 or more is relevant.
Qrels = Mapping[str, Mapping[str, int]]
# Document ids by query id, best first.
Run = Mapping[str, Sequence[str]]


def per_query(qrels: Qrels, run: Run) -> dict[str, StageMetrics]:
    """Each query's figures, for every query with a relevant document, in the order of the qrels.

    Raises ValueError where a ranking holds a document twice.
    """
    # trec_eval has no negative grades: what is below 0 is not relevant.
    grades = {query_id: {doc: max(0, grade) for doc, grade in docs.items()} for query_id, docs in qrels.items()}
    judged = {query_id: docs for query_id, docs in grades.items() if any(docs.values())}
    if not judged:
        return {}
    figures: dict[str, dict[str, float]] = {query_id: {} for query_id in judged}
    scored = {query_id: _scores(query_id, run[query_id]) for query_id in judged if query_id in run}
    for metric in ir_measures.iter_calc(list(_NAMES), judged, scored):
        figures[metric.query_id][_NAMES[metric.measure]] = float(metric.value)
    return cast("dict[str, StageMetrics]", figures)


def _scores(query_id: str, ranking: Sequence[str]) -> dict[str, float]:
    """Strictly falling scores, so that the library's way of breaking ties cannot reorder the ranking."""
    scores = {doc_id: float(len(ranking) - place) for place, doc_id in enumerate(ranking)}
    if len(scores) != len(ranking):
        twice = next(doc_id for place, doc_id in enumerate(ranking) if doc_id in ranking[:place])
        raise ValueError(
            f"the ranking of query '{query_id}' holds '{twice}' twice: remove duplicates before evaluating"
        )
    return scores


def auroc(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """The probability that a score of the first kind is above one of the second, ties counting half.

    Source: the Mann-Whitney U statistic as in Hanley and McNeil, "The meaning and use of the area under a receiver
    operating characteristic (ROC) curve", Radiology 1982.
    """
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    not_above = np.searchsorted(ordered, positive, side="right")
    return float((below + not_above).mean() / (2 * negative.size))


RESAMPLES = 9_999
BATCH = 1_000
# Of a batch: 80 MB; the sets with more than 10,000 queries are exchanged in smaller batches.
SIGNS_AT_ONCE = 10_000_000
ROUNDING = 1e-12
SEED = 20_070  # fixed, so that the same runs give the same figure each time
SIGNIFICANCE_LEVEL = 0.05


def paired_p_values(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """How often chance alone makes the mean of a measure differ by as much as it does, in either direction.

    Fisher's randomisation test: were the two systems the same, each query's two figures could as well be exchanged, so
    the observed difference is set against those of all exchanges, or of random ones where there are many. A query's
    measures are exchanged together. Source: Smucker, Allan and Carterette, "A comparison of statistical significance
    tests for information retrieval evaluation", CIKM 2007, who recommend it. All measures share the exchanges, which
    makes them a matrix product: `scipy.stats.permutation_test`, whose figures these are, takes seconds for each measure
    of some thousand queries.

    Figures have a query a row and a measure a column, the same queries in the same order, or ValueError is raised. The
    p-values, shape (n_measures,), are from 2 / (RESAMPLES + 1) to 1; 1 where no query differs. Each measure is tested
    on its own: among twenty without a true difference, one is expected below .05.
    """
    if before.shape != after.shape:
        raise ValueError(f"{before.shape} and {after.shape}: the figures of the same queries and measures are compared")
    differences = after - before
    p_values = np.ones(differences.shape[1])
    differing = differences.any(axis=0)
    if differing.any():
        # A query without a difference adds nothing to any sum, whichever way it is exchanged.
        p_values[differing] = _randomised(differences[differences.any(axis=1)][:, differing])
    return p_values


def _randomised(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    observed = differences.sum(axis=0)
    # Sums that are equal but for the order of their addends count as equal, also where the addends cancel out.
    rounding = ROUNDING * abs(differences).sum(axis=0)
    at_least, at_most = observed - rounding, observed + rounding
    above, below, tried = np.zeros(observed.size), np.zeros(observed.size), 0
    for signs in _exchanges(len(differences)):
        exchanged = signs @ differences
        above += (exchanged >= at_least).sum(axis=0)
        below += (exchanged <= at_most).sum(axis=0)
        tried += len(signs)
    return np.minimum(1.0, 2 * np.minimum(above, below) / tried)


def _exchanges(count: int) -> Iterator[NDArray[np.float64]]:
    """Signs of the differences, -1 where the figures are exchanged, an exchange a row, shape (n, count).

    All there are, where these are fewer than `RESAMPLES`; else random ones, and what was observed.
    """
    if 2**count <= RESAMPLES:
        yield np.where(np.arange(2**count)[:, np.newaxis] >> np.arange(count) & 1, -1.0, 1.0)
        return
    yield np.ones((1, count))
    rng = np.random.default_rng(SEED)
    batch = min(BATCH, max(1, SIGNS_AT_ONCE // count))
    for start in range(0, RESAMPLES, batch):
        shape = (min(batch, RESAMPLES - start), count)
        yield np.where(rng.integers(0, 2, shape, dtype=np.int8), 1.0, -1.0)


CONFIDENCE = 0.95


def mean_intervals(figures: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where the mean of each measure is in `CONFIDENCE` of all samples of queries, shape (2, n_measures).

    Percentile bootstrap: queries are drawn with replacement, the same ones for all measures. Source: Efron and
    Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13. Figures, or differences of two systems' figures,
    have a query a row and a measure a column.
    """
    count = len(figures)
    rng = np.random.default_rng(SEED)
    batch = min(BATCH, max(1, SIGNS_AT_ONCE // count))
    means = []
    for start in range(0, RESAMPLES, batch):
        size = min(batch, RESAMPLES - start)
        drawn = rng.integers(0, count, (size, count)) + count * np.arange(size)[:, np.newaxis]
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        means.append(times @ figures / count)
    outside = (1 - CONFIDENCE) / 2
    intervals: NDArray[np.float64] = np.quantile(np.concatenate(means), [outside, 1 - outside], axis=0)
    return intervals
