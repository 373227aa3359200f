"""Whether two systems differ by more than chance would make them, judged by the same queries."""

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 9_999
BATCH = 1_000
ROUNDING = 1e-12
SEED = 20_070  # fixed, so that the same runs give the same figure each time
SIGNIFICANCE_LEVEL = 0.05


def paired_p_values(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """How often chance alone makes the mean of a measure differ by as much as it does, in either direction.

    Fisher's randomisation test: were the two systems the same, each query's two figures could as well be exchanged, so
    the observed difference is set against those of random exchanges. A query's measures are exchanged together.
    Source: Smucker, Allan and Carterette, "A comparison of statistical significance tests for information retrieval
    evaluation", CIKM 2007, who recommend it. All measures share the exchanges, which makes them a matrix product:
    `scipy.stats.permutation_test`, whose figures these are, takes seconds for each measure of some thousand queries.

    Args:
        before: a query a row, a measure a column, shape (n_queries, n_measures).
        after: of the same shape, the same queries in the same order.

    Returns:
        From 1 / (RESAMPLES + 1) to 1, shape (n_measures,); 1 where no query differs. Each measure is tested on its own:
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
    rng = np.random.default_rng(SEED)
    observed = differences.sum(axis=0)
    # Sums that are equal but for the order of their addends count as equal.
    at_least, at_most = observed - ROUNDING * abs(observed), observed + ROUNDING * abs(observed)
    above, below = np.ones(observed.size), np.ones(observed.size)  # what was observed is one of the exchanges
    for start in range(0, RESAMPLES, BATCH):
        shape = (min(BATCH, RESAMPLES - start), len(differences))
        exchanged = (2.0 * rng.integers(0, 2, shape, dtype=np.int8) - 1.0) @ differences
        above += (exchanged >= at_least).sum(axis=0)
        below += (exchanged <= at_most).sum(axis=0)
    return np.minimum(1.0, 2 * np.minimum(above, below) / (RESAMPLES + 1))
