"""Where to cut scores, so that what is relevant passes and what is not does not."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Doc

DECIMALS = 3


@dataclass(frozen=True, slots=True)
class Cut:
    """What a cut does to judged scores; one that equals the cut passes.

    Attributes:
        precision: share of the relevant among those that pass; 1 where none passes.
        recall: share of the relevant that pass.
        f1: the harmonic mean of both (van Rijsbergen, "Information Retrieval", 1979).
    """

    cut: Annotated[float, Doc("The least score that passes; 0: everything does.")]
    precision: float
    recall: float
    f1: float


def figures_at(cut: float, relevant: NDArray[np.float64], irrelevant: NDArray[np.float64]) -> Cut:
    """What a cut does to the scores of relevant and of irrelevant results.

    Args:
        cut: the least score that passes.
        relevant: shape (n,), n > 0.
        irrelevant: shape (m,), in any order as the others.
    """
    precision, recall, f1 = _measured(np.array([cut]), relevant, irrelevant)
    return Cut(cut, float(precision[0]), float(recall[0]), float(f1[0]))


def suggest_cut(relevant: NDArray[np.float64], irrelevant: NDArray[np.float64]) -> Cut | None:
    """The cut with the highest F1, and of equals the highest one; None unless there are scores of both kinds.

    It stands in the middle between the least score that is to pass and the next one below it, rounded where there is room,
    and is not below 0, which lets everything pass.
    """
    if not relevant.size or not irrelevant.size:
        return None
    scores = np.unique(np.concatenate([relevant, irrelevant]))
    f1 = _measured(scores, relevant, irrelevant)[2]
    best = int(scores.size - 1 - np.argmax(f1[::-1]))
    passes = float(scores[best])
    below = float(scores[best - 1]) if best else None
    return figures_at(max(0.0, _between(below, passes)), relevant, irrelevant)


def _between(below: float | None, passes: float) -> float:
    """A short number above `below` and at most `passes`."""
    if below is None:
        return float(np.floor(passes * 10**DECIMALS) / 10**DECIMALS)
    middle = (below + passes) / 2
    rounded = round(middle, DECIMALS)
    if below < rounded <= passes:
        return rounded
    return middle if below < middle else passes  # neighbouring floats have no middle


def cut_curve(cuts: NDArray[np.float64], relevant: NDArray[np.float64], irrelevant: NDArray[np.float64]) -> list[Cut]:
    """What each of some cuts does; `relevant` is not empty."""
    measured = (each.tolist() for each in (cuts, *_measured(cuts, relevant, irrelevant)))
    return [Cut(*figures) for figures in zip(*measured, strict=True)]


def _measured(
    cuts: NDArray[np.float64], relevant: NDArray[np.float64], irrelevant: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Precision, recall and F1 of each cut, shape as `cuts`."""
    kept = relevant.size - np.searchsorted(np.sort(relevant), cuts, side="left")
    slipped = irrelevant.size - np.searchsorted(np.sort(irrelevant), cuts, side="left")
    passed = kept + slipped
    precision = np.where(passed > 0, kept / np.maximum(passed, 1), 1.0)
    return precision, kept / relevant.size, 2 * kept / (passed + relevant.size)


def histogram(scores: NDArray[np.float64], edges: NDArray[np.float64]) -> list[int]:
    """How many scores fall into each bin; one beyond the edges counts in the bin at that end.

    Args:
        scores: in any order.
        edges: rising, one more than there are bins.
    """
    counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)
    return [int(count) for count in counts]
