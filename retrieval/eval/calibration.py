"""Where to cut scores: so that most queries that have an answer keep one, none without does, or F1 is highest."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Doc

DECIMALS = 3
STEP = 10**-DECIMALS
CONFIDENCE = 0.95


def queries_needed(share: float) -> int:
    """The fewest queries by which a cut can be said to keep a share, below 1, of them: 19 for .95."""
    return math.ceil(round(1 / (1 - share), 9)) - 1


def cut_that_keeps(share: float, best: NDArray[np.float64]) -> float | None:
    """The largest cut that keeps a share of the queries that have an answer, among further ones like these.

    `best` holds each query's highest gated score, in any order, minus infinity where nothing was found; `share` is
    above 0 and below 1. Split conformal prediction: of n queries the floor((n + 1)(1 - share))-th lowest score is
    reached by the next one with a probability of at least `share`, whatever the distribution, as long as the queries
    are exchangeable. Source: Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005; Angelopoulos
    and Bates, "Conformal Prediction: A Gentle Introduction", 2023. It is rounded down, and is not below 0, which lets
    everything pass.

    None where there are fewer than `queries_needed`, and where too many found nothing, which no cut keeps.
    """
    lost = math.floor(round((best.size + 1) * (1 - share), 9))
    if not lost:
        return None
    score = float(np.partition(best, lost - 1)[lost - 1])
    return None if score == -math.inf else max(0.0, _rounded_down(score))


def kept_at_least(kept: int, count: int) -> float:
    """The lower confidence bound, at `CONFIDENCE` and one-sided, of a share of which `kept` of `count` are observed.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 1934. It holds for the cut of `cut_that_keeps` too, though that was chosen by the same queries: the
    share above the r-th lowest of n scores has the distribution Beta(n + 1 - r, r), whose quantile this is (Vovk,
    "Conditional validity of inductive conformal predictors", 2012).
    """
    from scipy.special import betaincinv  # noqa: PLC0415 - every process would load it as it starts

    return float(betaincinv(kept, count - kept + 1, 1 - CONFIDENCE)) if kept else 0.0


def cut_that_refuses(best: NDArray[np.float64]) -> float | None:
    """The least cut that refuses all queries without an answer, given each one's highest gated score.

    None where there are none, and where one reaches 1, the highest cut that there is.
    """
    if not best.size:
        return None
    cut = round(_rounded_down(max(0.0, float(best.max()))) + STEP, DECIMALS)
    return cut if cut <= 1 else None


def _rounded_down(score: float) -> float:
    nearest = round(score, DECIMALS)
    return nearest if nearest <= score else round(nearest - STEP, DECIMALS)


@dataclass(frozen=True, slots=True)
class Cut:
    """What a cut does to judged scores; one that equals the cut passes.

    F1 is the harmonic mean of precision and recall (van Rijsbergen, "Information Retrieval", 1979).
    """

    cut: Annotated[float, Doc("The least score that passes; 0: everything does.")]
    precision: float  # share of the relevant among those that pass; 1 where none passes
    recall: float  # share of the relevant that pass
    f1: float


def figures_at(cut: float, relevant: NDArray[np.float64], irrelevant: NDArray[np.float64]) -> Cut:
    """What a cut does to the scores of relevant results, which are not empty, and of irrelevant ones, in any order."""
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
        return _rounded_down(passes)
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
    """How many scores fall into each bin, of rising edges; one beyond the edges counts in the bin at that end."""
    counts: list[int] = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0].tolist()
    return counts
