"""The rerankers in order, of which the first that can score the candidates does, and those without a model.

What the ones that ask a model have in common stands here too: the guard around it, and what its scores must be.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import (
    ChannelUnavailable,
    CircuitOpen,
    Degradation,
    DegradationCode,
    ModelTimeout,
    ModelUnavailable,
    RerankerNotApplicable,
    RerankerUnavailable,
    _,
    message_of,
)
from retrieval.execution import ModelGuard
from retrieval.fusion import QUESTION_CHANNELS
from retrieval.postings import ngrams
from retrieval.protocols import Reranker
from retrieval.selection import ScoreScale
from retrieval.types import Candidate, RerankJob

logger = logging.getLogger(__name__)

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

    Without any time left the model is not asked, which its breaker does not count as a failure. Raises
    RerankerUnavailable with the code for what went wrong.
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
        _(
            "too little time was left for reranker {name!r}: allow a longer latency budget, or rerank fewer candidates",
            name=name,
        ),
    )


def relevance(scores: ArrayLike, count: int, *, model: str) -> NDArray[np.float64]:
    """The scores, shape (count,), each from 0 to 1; raises UnusableAnswer where they are not so."""
    checked = np.asarray(scores, dtype=np.float64)
    if checked.shape != (count,):
        raise UnusableAnswer(
            _(
                "reranker {model!r} returned scores of shape {shape} for {count} passages: choose a "
                "cross-encoder with one label",
                model=model,
                shape=str(checked.shape),
                count=count,
            )
        )
    if not np.isfinite(checked).all():
        raise UnusableAnswer(
            _(
                "reranker {model!r} returned scores that are not finite: check its files or its precision settings",
                model=model,
            )
        )
    if count and not (checked.min() >= 0.0 and checked.max() <= 1.0):
        raise UnusableAnswer(
            _(
                "reranker {model!r} returned scores from {least:g} to {most:g}: have its server apply the sigmoid "
                "(not `raw_scores`), so that they are from 0 to 1",
                model=model,
                least=float(checked.min()),
                most=float(checked.max()),
            )
        )
    return checked


# Of a passage's questions so many, and of each so much, are compared with the query: n-grams of much text take long.
MOST_COMPARED = 20
COMPARED_CHARACTERS = 200


def text_of(candidate: Candidate, query: str) -> str:
    """The passage as it was indexed, after the one of its questions that holds most of the query's n-grams.

    So a model sees the best wording without reading a second text. Only of a candidate that was found by its questions,
    and of the first of these, by their beginnings. Empty for a candidate without passage.
    """
    passage = candidate.passage
    if passage is None or not passage.questions or QUESTION_CHANNELS.isdisjoint(candidate.ranks):
        return "" if passage is None else passage.searchable
    wanted = set(ngrams(query[:COMPARED_CHARACTERS]))
    questions = passage.questions[:MOST_COMPARED]
    shared = [len(wanted.intersection(ngrams(question[:COMPARED_CHARACTERS]))) for question in questions]
    closest = questions[shared.index(max(shared))]
    return f"{closest}\n{passage.searchable}" if any(shared) else passage.searchable


# What the channels' agreement, the fused score as a share of the best possible one, has in the order of results. Of overlap, NDCG@10
# with 0, .5 and 1: scifact with MiniLM .698, .738, .734, xquad-en .969, .971, .970, cmrc2018 .990, .989, .980.
AGREEMENT_SHARE: Mapping[ScoreScale, float] = {ScoreScale.OVERLAP: 0.5}


RESERVED_S = 0.05
STAGE = "rerank"


@dataclass(frozen=True, slots=True, eq=False)
class RerankOutcome:
    """What the chain has made of the candidates; the first three are None where no reranker could answer."""

    name: str | None
    scale: ScoreScale | None
    scores: NDArray[np.float64] | None  # shape (n_candidates,), finite: what is gated
    order: NDArray[np.float64] | None  # of the same shape: what the candidates are ordered by, higher is better
    intended: ScoreScale  # of the first reranker that is of use here, whether it has answered or not
    degradations: tuple[Degradation, ...]  # why rerankers before it could not answer
    tried: Mapping[str, str]  # by name, why each of those has not answered, also those that were of no use here


@dataclass(frozen=True, slots=True)
class RerankChain:
    """Asks its links in order until one answers.

    A model that reads passages may use the time up to a short reserve, in which the links after it answer; those take
    milliseconds. `overlap` as the last link always answers, also past the deadline.
    """

    links: Sequence[Reranker]

    def rerank(self, job: RerankJob, deadline: float) -> RerankOutcome:
        """The scores of the first link that answers by the deadline (of `time.monotonic`); raises nothing."""
        degradations: list[Degradation] = []
        tried: dict[str, str] = {}
        intended: ScoreScale | None = None
        for place, link in enumerate(self.links, start=1):
            reserved = RESERVED_S if _reads_passages(link) and place < len(self.links) else 0.0
            try:
                scores = _ask(link, job, deadline - reserved)
            except RerankerNotApplicable as reason:
                tried[link.name] = message_of(reason)
            except RerankerUnavailable as error:
                tried[link.name] = error.code.value
                intended = intended or link.scale
                degradations.append(Degradation(STAGE, error.code, message_of(error)))
            else:
                order = order_of(link.scale, scores, np.array([each.agreement for each in job.candidates]))
                scale = intended or link.scale
                return RerankOutcome(link.name, link.scale, scores, order, scale, tuple(degradations), tried)
        return RerankOutcome(None, None, None, None, intended or ScoreScale.RRF, tuple(degradations), tried)


def _reads_passages(link: Reranker) -> bool:
    """Whether a link waits for a model; only one that reads query and passage together has this scale."""
    return link.scale == ScoreScale.CROSS_ENCODER


def _ask(link: Reranker, job: RerankJob, deadline: float) -> NDArray[np.float64]:
    """One link's scores, checked; an error that nobody foresaw makes it unavailable, too."""
    if _reads_passages(link) and time.monotonic() >= deadline:
        raise out_of_time(link.name)
    try:
        scores = np.asarray(link.scores(job, deadline), dtype=np.float64)
    except (RerankerUnavailable, RerankerNotApplicable):
        raise
    except Exception as error:
        logger.exception("reranker %s failed", link.name)
        raise _failed(link, _("failed")) from error
    if scores.shape != (len(job.candidates),):
        raise _failed(
            link,
            _(
                "returned scores of shape {shape} for {count} candidates",
                shape=str(scores.shape),
                count=len(job.candidates),
            ),
        )
    if not np.isfinite(scores).all():
        raise _failed(link, _("returned scores that are not finite"))
    return scores


def _failed(link: Reranker, fault: str) -> RerankerUnavailable:
    return RerankerUnavailable(
        DegradationCode.RERANKER_FAILED,
        _(
            "the {name} reranker {fault}: see the server's log, or take it out of the profile's chain",
            name=link.name,
            fault=fault,
        ),
    )


def order_of(scale: ScoreScale, scores: NDArray[np.float64], agreement: NDArray[np.float64]) -> NDArray[np.float64]:
    """What candidates are ordered by: their scores, with a share of the channels' agreement where the scale has one."""
    share = AGREEMENT_SHARE.get(scale, 0.0)
    joined: NDArray[np.float64] = (1 - share) * scores + share * agreement
    return joined


class CosineReranker:
    """Exact cosine similarity of the stored vectors to the query's, where one model of meanings made all of them."""

    name = "cosine"
    scale = ScoreScale.COSINE

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:
        """Returns shape (n_candidates,), from -1 to 1.

        Raises RerankerUnavailable where the vectors cannot be read or there is no time left for it, and
        RerankerNotApplicable where the candidates do not share one space, one has no vector, or the space is the
        hashing embedder's, whose cosines compare words as `overlap` does, and worse.
        """
        kb_ids = sorted({candidate.kb_id for candidate in job.candidates})
        if missing := [kb_id for kb_id in kb_ids if kb_id not in job.spaces or kb_id not in job.similarity]:
            raise RerankerNotApplicable(_("the vectors of knowledge base {kb_id} did not answer", kb_id=missing[0]))
        spaces = {job.spaces[kb_id] for kb_id in kb_ids}
        if len(spaces) > 1:
            raise RerankerNotApplicable(
                _("the candidates are of {count} embedding models: their cosines do not compare", count=len(spaces))
            )
        if HASHING_MODEL_ID in spaces:
            raise RerankerNotApplicable(_("without an embedding model cosines compare words, not meaning"))
        if time.monotonic() >= deadline:
            raise out_of_time(self.name)
        scores = np.empty(len(job.candidates), dtype=np.float64)
        for kb_id in kb_ids:
            rows = [row for row, candidate in enumerate(job.candidates) if candidate.kb_id == kb_id]
            chunk_ids = np.array([job.candidates[row].chunk_id for row in rows], dtype=np.int64)
            try:
                scores[rows] = job.similarity[kb_id](chunk_ids)
            except ChannelUnavailable as error:
                raise RerankerUnavailable(DegradationCode.RERANKER_FAILED, message_of(error)) from error
        if np.isnan(scores).any():
            raise RerankerNotApplicable(
                _(
                    "{lacking} of {count} candidates have no vector",
                    lacking=int(np.isnan(scores).sum()),
                    count=len(scores),
                )
            )
        return np.clip(scores, -1.0, 1.0)
