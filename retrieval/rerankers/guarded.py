"""What the rerankers that ask a model have in common: the guard around it, and what its scores must be."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import (
    CircuitOpen,
    Message,
    ModelTimeout,
    ModelUnavailable,
    RerankerNotApplicable,
    RerankerUnavailable,
    gettext_noop,
    message_of,
)
from retrieval.execution import ModelGuard
from retrieval.function_words import CHINESE_PARTICLES_ALONE, CHINESE_STOP_WORDS, ENGLISH_FUNCTION_WORDS
from retrieval.postings import hash_terms
from retrieval.protocols import Tokenizer
from retrieval.selection import ScoreScale
from retrieval.trace import DegradationCode
from retrieval.types import Analysis, Candidate, Lexicon, RerankJob

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


def searchable_text(title: str, heading_path: Sequence[str], text: str) -> str:
    """What is indexed, embedded and reranked: a chunk in its context, as a reader would meet it."""
    return "\n".join(part for part in (title, " > ".join(heading_path), text) if part)


def text_of(candidate: Candidate) -> str:
    """The passage as it was indexed; empty for a candidate without passage."""
    passage = candidate.passage
    return "" if passage is None else searchable_text(passage.title, passage.heading_path, passage.text)


COVERAGE_SHARE = 0.2
SATURATION_SHARE = 0.4


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
    consists of several questions by an answer to one of them: whichever the chunk holds more of. Term statistics come from the keyword index; without it the passage is tokenised here and all
    terms weigh the same.

    Args:
        tokenizers: by knowledge base; every one that the analysis has tokens for. The candidates of others are judged by
            agreement alone.
    """

    name = "overlap"
    scale = ScoreScale.OVERLAP

    def __init__(self, tokenizers: Mapping[int, Tokenizer]) -> None:
        self._tokenizers = tokenizers

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:  # noqa: ARG002 - needs no time to speak of
        """Returns shape (n_candidates,), from 0 to 1.

        Raises:
            RerankerNotApplicable: no candidate's knowledge base has a tokenizer.
        """
        kb_ids = {candidate.kb_id for candidate in job.candidates}
        if kb_ids and kb_ids.isdisjoint(self._tokenizers):
            raise RerankerNotApplicable("no knowledge base of the candidates has a tokenizer")
        covered = np.zeros(len(job.candidates), dtype=np.float64)
        for kb_id in kb_ids & self._tokenizers.keys():
            rows = [row for row, candidate in enumerate(job.candidates) if candidate.kb_id == kb_id]
            own = [job.candidates[row] for row in rows]
            covered[rows] = self._words(kb_id, job.analysis, own, job.lexicons.get(kb_id))
        agreement = np.array([candidate.agreement for candidate in job.candidates], dtype=np.float64)
        return covered + (1 - COVERAGE_SHARE - SATURATION_SHARE) * agreement

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
        telling = [term not in function_terms(self._tokenizers[kb_id]) for term in terms]
        column = {term: place for place, term in enumerate(terms)}
        picks = [[column[term] for term in wording] for wording in wordings]
        picks = [[place for place in pick if telling[place]] or pick for pick in picks]
        best: NDArray[np.float64] = np.max([words(saturation[:, pick], rarity[pick]) for pick in picks], axis=0)
        return best

    def _held(self, kb_id: int, terms: Sequence[str], candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """1 where a candidate's text holds a term, shape (n_candidates, n_terms)."""
        tokenizer = self._tokenizers[kb_id]
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
    """The part of coverage and saturation in the score of each chunk.

    Args:
        saturation: of each chunk with each term, shape (n_chunks, n_terms), from 0 to 1; 0 where the chunk lacks it.
        rarity: of each term, shape (n_terms,), positive.

    Returns:
        Shape (n_chunks,), from 0 to COVERAGE_SHARE + SATURATION_SHARE.
    """
    shares = rarity / rarity.sum()
    part: NDArray[np.float64] = COVERAGE_SHARE * ((saturation > 0) @ shares) + SATURATION_SHARE * (saturation @ shares)
    return part
