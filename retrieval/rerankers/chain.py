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
from retrieval.postings import hash_terms
from retrieval.protocols import Reranker, Tokenizer
from retrieval.selection import ScoreScale
from retrieval.tokenize import CHINESE_PARTICLES_ALONE, CHINESE_STOP_WORDS, ENGLISH_FUNCTION_WORDS
from retrieval.types import Analysis, Candidate, Lexicon, RerankJob

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


def searchable_text(title: str, heading_path: Sequence[str], text: str) -> str:
    """What is indexed, embedded and reranked: a chunk in its context, as a reader would meet it."""
    return "\n".join(part for part in (title, " > ".join(heading_path), text) if part)


def text_of(candidate: Candidate) -> str:
    """The passage as it was indexed; empty for a candidate without passage."""
    passage = candidate.passage
    return "" if passage is None else searchable_text(passage.title, passage.heading_path, passage.text)


COVERAGE_SHARE = 0.2
SATURATION_SHARE = 0.4


@dataclass(frozen=True, eq=False)
class OverlapReranker:
    """The link without a model: what of the query's words a chunk holds, joined with the channels' agreement, 0 to 1.

    score = 0.2 x coverage + 0.4 x saturation + 0.4 x agreement. Coverage is the share of the query terms' rarity that the
    chunk holds; saturation is what BM25 makes of it, as a share of the most that any chunk could have; agreement is the fused
    score as a share of the best possible one.

    Measured, as NDCG@10 on scifact (MiniLM) and cmrc2018-reject (hashing), and AUROC of the best score on the latter:
    coverage alone .675, .976, .955; saturation alone .690, .987, .964; agreement alone (the fused order) .699, .985, .870;
    joined .718, .988, .968. Cosine as a reranker: .651 on scifact.

    Function words do not count where a query has others: in a small knowledge base they are as rare as any.

    A query that names a concept is covered in its own words or in those of another name of the concept, and one that
    consists of several questions by an answer to one of them: whichever the chunk holds more of. Term statistics come
    from the keyword index; without it the passage is tokenised here and all terms weigh the same. Candidates of a
    knowledge base without a tokenizer are judged by agreement alone.
    """

    name = "overlap"
    scale = ScoreScale.OVERLAP

    tokenizers: Mapping[int, Tokenizer]

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:  # noqa: ARG002 - needs no time to speak of
        """Returns shape (n_candidates,), from 0 to 1; RerankerNotApplicable where none of them has a tokenizer."""
        return order_of(self.scale, self.covered(job), np.array([each.agreement for each in job.candidates]))

    def covered(self, job: RerankJob) -> NDArray[np.float64]:
        """What the words of each candidate make of its score, whatever the channels say; shape and errors as `scores`."""
        kb_ids = {candidate.kb_id for candidate in job.candidates}
        if kb_ids and kb_ids.isdisjoint(self.tokenizers):
            raise RerankerNotApplicable("no knowledge base of the candidates has a tokenizer")
        covered = np.zeros(len(job.candidates), dtype=np.float64)
        for kb_id in kb_ids & self.tokenizers.keys():
            rows = [row for row, candidate in enumerate(job.candidates) if candidate.kb_id == kb_id]
            own = [job.candidates[row] for row in rows]
            covered[rows] = self._words(kb_id, job.analysis, own, job.lexicons.get(kb_id))
        return covered

    def _words(
        self, kb_id: int, analysis: Analysis, candidates: Sequence[Candidate], lexicon: Lexicon | None
    ) -> NDArray[np.float64]:
        """The part of the score that words make, the best over the query's wordings, shape (n_candidates,)."""
        # The query, its sub-queries and each variant of them, where they have terms.
        texts = (
            each for query in analysis.queries for each in (query.tokens(kb_id), *query.variants_by_kb.get(kb_id, ()))
        )
        wordings = [tuple(dict.fromkeys(tokens)) for tokens in texts if tokens]
        if not wordings:
            return np.zeros(len(candidates), dtype=np.float64)
        terms = list(dict.fromkeys(term for wording in wordings for term in wording))
        if lexicon is None:
            # How often a chunk holds a term would need the lengths of all chunks: holding it counts in full.
            rarity, saturation = np.ones(len(terms)), self._held(kb_id, terms, candidates)
        else:
            hashes = hash_terms(terms)
            chunk_ids = np.array([candidate.chunk_id for candidate in candidates], dtype=np.int64)
            rarity, saturation = lexicon.rarity(hashes), lexicon.saturation(hashes, chunk_ids)
        telling = [term not in function_terms(self.tokenizers[kb_id]) for term in terms]
        column = {term: place for place, term in enumerate(terms)}
        picks = [[column[term] for term in wording] for wording in wordings]
        picks = [[place for place in pick if telling[place]] or pick for pick in picks]
        best: NDArray[np.float64] = np.max([words(saturation[:, pick], rarity[pick]) for pick in picks], axis=0)
        return best

    def _held(self, kb_id: int, terms: Sequence[str], candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """1 where a candidate's text holds a term, shape (n_candidates, n_terms)."""
        tokenizer = self.tokenizers[kb_id]
        texts = [set(tokenizer(text_of(candidate))) for candidate in candidates]
        return np.array([[term in text for term in terms] for text in texts], dtype=np.float64)


_function_terms: dict[str, frozenset[str]] = {}


def function_terms(tokenizer: Tokenizer) -> frozenset[str]:
    """The terms that a tokenizer makes of function words; made once for each tokenizer."""
    if tokenizer.id not in _function_terms:
        words_of_both = CHINESE_STOP_WORDS | CHINESE_PARTICLES_ALONE | ENGLISH_FUNCTION_WORDS
        _function_terms[tokenizer.id] = frozenset(term for word in words_of_both for term in tokenizer(word))
    return _function_terms[tokenizer.id]


def words(saturation: NDArray[np.float64], rarity: NDArray[np.float64]) -> NDArray[np.float64]:
    """What coverage and saturation add to each score, shape (n_chunks,), at most COVERAGE_SHARE + SATURATION_SHARE.

    Saturation of each chunk with each term has the shape (n_chunks, n_terms), from 0 to 1; 0 where the chunk lacks it.
    The rarity of each term is positive.
    """
    shares = rarity / rarity.sum()
    part: NDArray[np.float64] = COVERAGE_SHARE * ((saturation > 0) @ shares) + SATURATION_SHARE * (saturation @ shares)
    return part


# Of the scores on each scale that has one.
AGREEMENT_SHARE: Mapping[ScoreScale, float] = {ScoreScale.OVERLAP: 1 - COVERAGE_SHARE - SATURATION_SHARE}


def order_of(scale: ScoreScale, scores: NDArray[np.float64], agreement: NDArray[np.float64]) -> NDArray[np.float64]:
    """What candidates are ordered by: scores, with a share of the channels' agreement where the scale has one."""
    return scores + AGREEMENT_SHARE.get(scale, 0.0) * agreement


RESERVED_S = 0.05
STAGE = "rerank"


@dataclass(frozen=True, slots=True, eq=False)
class RerankOutcome:
    """What the chain has made of the candidates; the first three are None where no reranker could answer."""

    name: str | None
    scale: ScoreScale | None
    scores: NDArray[np.float64] | None  # shape (n_candidates,), finite, higher is better
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
