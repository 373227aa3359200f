"""Whether two systems differ by more than chance would make them, judged by the same queries."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 9_999
BATCH = 1_000
SIGNS_AT_ONCE = 10_000_000
"""Of a batch: 80 MB; the sets with more than 10,000 queries are exchanged in smaller batches."""
ROUNDING = 1e-12
SEED = 20_070  # fixed, so that the same runs give the same figure each time
SIGNIFICANCE_LEVEL = 0.05


def paired_p_values(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """How often chance alone makes the mean of a measure differ by as much as it does, in either direction.

    Fisher's randomisation test: were the two systems the same, each query's two figures could as well be exchanged, so
    the observed difference is set against those of all exchanges, or of random ones where there are many. A query's measures are exchanged together.
    Source: Smucker, Allan and Carterette, "A comparison of statistical significance tests for information retrieval
    evaluation", CIKM 2007, who recommend it. All measures share the exchanges, which makes them a matrix product:
    `scipy.stats.permutation_test`, whose figures these are, takes seconds for each measure of some thousand queries.

    Args:
        before: a query a row, a measure a column, shape (n_queries, n_measures).
        after: of the same shape, the same queries in the same order.

    Returns:
        From 2 / (RESAMPLES + 1) to 1, shape (n_measures,); 1 where no query differs. Each measure is tested on its own:
        among twenty without a true difference, one is expected below .05.

    Raises:
        ValueError: the shapes differ.
    """
    if before.shape != after.shape:
        raise ValueError(f"{before.shape} and {after.shape}: the figures of the same queries and measures are compared")
    differences = after - before
    p_values = np.ones(differences.shape[1])
    differing = differences.any(axis=0)
    if not differing.any():
        return p_values
    # A query without a difference adds nothing to any sum, whichever way it is exchanged.
    told = differences[differences.any(axis=1)][:, differing]
    p_values[differing] = _randomised(told)
    return p_values


def _randomised(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    observed = differences.sum(axis=0)
    # Sums that are equal but for the order of their addends count as equal.
    at_least, at_most = observed - ROUNDING * abs(observed), observed + ROUNDING * abs(observed)
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
