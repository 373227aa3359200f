"""What the rerankers that ask a model have in common: the guard around it, and what its scores must be."""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import CircuitOpen, ModelTimeout, ModelUnavailable, RerankerUnavailable
from retrieval.execution import ModelGuard
from retrieval.messages import Message, gettext_noop, message_of
from retrieval.trace import DegradationCode

R = TypeVar("R")


class UnusableAnswer(ModelUnavailable):
    """A model has answered, but not with a relevance for every passage."""


_CODES = {
    CircuitOpen: DegradationCode.MODEL_CIRCUIT_OPEN,
    ModelTimeout: DegradationCode.RERANKER_TIMEOUT,
    UnusableAnswer: DegradationCode.RERANKER_FAILED,
}


def ask(guard: ModelGuard, function: Callable[[], R], deadline: float) -> R:
    """What the function returns, at the latest at `deadline` (of `time.monotonic`).

    Without any time left the model is not asked, which its breaker does not count as a failure.

    Raises:
        RerankerUnavailable: with the code for what went wrong.
    """
    if time.monotonic() >= deadline:
        raise out_of_time(guard.name)
    try:
        return guard.call(function, deadline)
    except ModelUnavailable as error:
        code = _CODES.get(type(error), DegradationCode.RERANKER_UNAVAILABLE)
        raise RerankerUnavailable(code, message_of(error)) from error


def out_of_time(name: str) -> RerankerUnavailable:
    """The error for a search that leaves a reranker too little time."""
    return RerankerUnavailable(
        DegradationCode.RERANKER_TIMEOUT,
        Message(
            gettext_noop(
                "too little time was left for reranker {name!r}: allow a longer latency budget, or rerank fewer "
                "candidates"
            ),
            name=name,
        ),
    )


def relevance(scores: ArrayLike, count: int, *, model: str) -> NDArray[np.float64]:
    """The scores, shape (count,), each from 0 to 1.

    Raises:
        UnusableAnswer: there are more or fewer, or one is no number or out of range.
    """
    checked = np.asarray(scores, dtype=np.float64)
    if checked.shape != (count,):
        raise UnusableAnswer(
            Message(
                gettext_noop(
                    "reranker {model!r} returned scores of shape {shape} for {count} passages: choose a "
                    "cross-encoder with one label"
                ),
                model=model,
                shape=str(checked.shape),
                count=count,
            )
        )
    if not np.isfinite(checked).all():
        raise UnusableAnswer(
            Message(
                gettext_noop(
                    "reranker {model!r} returned scores that are not finite: check its files or its precision settings"
                ),
                model=model,
            )
        )
    if count and not (checked.min() >= 0.0 and checked.max() <= 1.0):
        raise UnusableAnswer(
            Message(
                gettext_noop(
                    "reranker {model!r} returned scores from {least:g} to {most:g}: have its server apply the sigmoid "
                    "(not `raw_scores`), so that they are from 0 to 1"
                ),
                model=model,
                least=float(checked.min()),
                most=float(checked.max()),
            )
        )
    return checked
