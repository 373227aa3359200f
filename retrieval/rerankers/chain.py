"""The rerankers in order: the first that can score the candidates does."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import (
    ChannelUnavailable,
    Message,
    RerankerNotApplicable,
    RerankerUnavailable,
    gettext_noop,
    message_of,
)
from retrieval.protocols import Reranker
from retrieval.rerankers.guarded import out_of_time
from retrieval.selection import ScoreScale
from retrieval.trace import Degradation, DegradationCode
from retrieval.types import RerankJob

logger = logging.getLogger(__name__)

RESERVED_S = 0.05
STAGE = "rerank"


@dataclass(frozen=True, slots=True, eq=False)
class RerankOutcome:
    """What the chain has made of the candidates.

    Attributes:
        name: of the reranker that has answered; None where none could.
        scale: of its scores; None likewise.
        scores: shape (n_candidates,), finite, higher is better; None likewise.
        intended: the scale of the first reranker that is of use here, whether it has answered or not.
        degradations: why rerankers before it could not answer.
        tried: by name, why each of those has not answered, also those that were of no use here.
    """

    name: str | None
    scale: ScoreScale | None
    scores: NDArray[np.float64] | None
    intended: ScoreScale
    degradations: tuple[Degradation, ...]
    tried: Mapping[str, str]


class RerankChain:
    """Asks its links in order until one answers.

    A model that reads passages may use the time up to a short reserve, in which the links after it answer; those take
    milliseconds. `overlap` as the last link always answers, also past the deadline.
    """

    def __init__(self, links: Sequence[Reranker]) -> None:
        self.links = tuple(links)

    def rerank(self, job: RerankJob, deadline: float) -> RerankOutcome:
        """The scores of the first link that can give them; no error of a link leaves the chain.

        Args:
            job: the candidates.
            deadline: of `time.monotonic`.
        """
        degradations: list[Degradation] = []
        tried: dict[str, str] = {}
        intended: ScoreScale | None = None
        for place, link in enumerate(self.links, start=1):
            reserved = RESERVED_S if _reads_passages(link) and place < len(self.links) else 0.0
            try:
                scores = _ask(link, job, deadline - reserved)
            except RerankerNotApplicable as reason:
                tried[link.name] = str(reason)
            except RerankerUnavailable as error:
                tried[link.name] = error.code.value
                intended = intended or link.scale
                degradations.append(Degradation(STAGE, error.code, message_of(error)))
            else:
                return RerankOutcome(link.name, link.scale, scores, intended or link.scale, tuple(degradations), tried)
        return RerankOutcome(None, None, None, intended or ScoreScale.RRF, tuple(degradations), tried)


def _reads_passages(link: Reranker) -> bool:
    """Whether a link waits for a model; only one that reads query and passage together has this scale."""
    return link.scale == ScoreScale.CROSS_ENCODER


def _ask(link: Reranker, job: RerankJob, deadline: float) -> NDArray[np.float64]:
    """One link's scores, checked.

    Raises:
        RerankerUnavailable: also for an error that nobody foresaw.
        RerankerNotApplicable: the link is of no use here.
    """
    if _reads_passages(link) and time.monotonic() >= deadline:
        raise out_of_time(link.name)
    try:
        scores = np.asarray(link.scores(job, deadline), dtype=np.float64)
    except (RerankerUnavailable, RerankerNotApplicable):
        raise
    except Exception as error:
        logger.exception("reranker %s failed", link.name)
        raise _failed(link, Message(gettext_noop("failed"))) from error
    if scores.shape != (len(job.candidates),):
        raise _failed(
            link,
            Message(
                gettext_noop("returned scores of shape {shape} for {count} candidates"),
                shape=str(scores.shape),
                count=len(job.candidates),
            ),
        )
    if not np.isfinite(scores).all():
        raise _failed(link, Message(gettext_noop("returned scores that are not finite")))
    return scores


def _failed(link: Reranker, fault: str) -> RerankerUnavailable:
    return RerankerUnavailable(
        DegradationCode.RERANKER_FAILED,
        Message(
            gettext_noop("the {name} reranker {fault}: see the server's log, or take it out of the profile's chain"),
            name=link.name,
            fault=fault,
        ),
    )


class CosineReranker:
    """Exact cosine similarity of the stored vectors to the query's, where one model of meanings made all of them."""

    name = "cosine"
    scale = ScoreScale.COSINE

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:
        """Returns shape (n_candidates,), from -1 to 1.

        Raises:
            RerankerUnavailable: the vectors cannot be read, or there is no time left to read them.
            RerankerNotApplicable: the candidates do not share one space, or one has no vector, or the space is the
                hashing embedder's, whose cosines compare words as `overlap` does, and worse.
        """
        kb_ids = sorted({candidate.kb_id for candidate in job.candidates})
        _check_space(job, kb_ids)
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
            raise RerankerNotApplicable(f"{int(np.isnan(scores).sum())} of {len(scores)} candidates have no vector")
        return np.clip(scores, -1.0, 1.0)


def _check_space(job: RerankJob, kb_ids: list[int]) -> None:
    if missing := [kb_id for kb_id in kb_ids if kb_id not in job.spaces or kb_id not in job.similarity]:
        raise RerankerNotApplicable(f"the vectors of knowledge base {missing[0]} have not answered")
    spaces = {job.spaces[kb_id] for kb_id in kb_ids}
    if len(spaces) > 1:
        raise RerankerNotApplicable(
            f"the candidates are of {len(spaces)} embedding models: their cosines do not compare"
        )
    if HASHING_MODEL_ID in spaces:
        raise RerankerNotApplicable("the hashing embedder's cosines compare words, not meanings")
