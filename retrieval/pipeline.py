"""The order of the stages and what happens when one of them cannot answer; nothing else."""

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from retrieval.config import RetrievalConfig
from retrieval.errors import ChannelUnavailable, NoChannelAvailable, ScopeOutdated
from retrieval.execution import InlineExecutor
from retrieval.fusion import WeightedRanking, best_fused_score, reciprocal_rank_fusion
from retrieval.gate import ScoreScale, cut_for
from retrieval.postings import hash_terms
from retrieval.protocols import Channel, Lexicon, PassageStore, Reranker, Tokenizer
from retrieval.trace import Degradation, DegradationCode, Span, Trace
from retrieval.types import Analysis, Candidate, Hit, Ranking, Result

logger = logging.getLogger(__name__)

DEFAULT_LATENCY_BUDGET = 10.0
_OWN_THREAD = InlineExecutor()


@dataclass(frozen=True, slots=True)
class Scope:
    """One knowledge base of a search: its channels, and its own weights.

    Attributes:
        space: id of the embedding model; cosines of different spaces are never compared.
        tokenizer: None when there is none to be had.
    """

    kb_id: int
    space: str
    tokenizer: Tokenizer | None
    channels: tuple[Channel, ...]
    config: RetrievalConfig


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Runs one search over one or several knowledge bases.

    Attributes:
        scopes: the knowledge bases, in the caller's order, which breaks ties.
        reranker: None leaves the fused order.
        executor: runs the channels that wait for other servers.
    """

    scopes: tuple[Scope, ...]
    passages: PassageStore
    reranker: Reranker | None
    executor: Executor

    def run(
        self,
        query: str,
        config: RetrievalConfig,
        *,
        explain: bool = False,
        latency_budget: float = DEFAULT_LATENCY_BUDGET,
    ) -> Result:
        """Searches.

        Args:
            query: any text; blank finds nothing.
            config: settings of the stages that serve all knowledge bases together.
            explain: also load the passages of candidates that will not be results.
            latency_budget: seconds that a channel may wait for what is still being prepared.

        Raises:
            NoChannelAvailable: no channel of any knowledge base could answer.
            ScopeOutdated: a knowledge base has changed in a way that this pipeline cannot serve.
        """
        trace = Trace()
        deadline = time.monotonic() + latency_budget
        with trace.span("analysis") as detail:
            analysis = self._analyse(query)
            detail["terms"] = list(analysis.all_terms)
        rankings = self._search_channels(analysis, config, deadline, trace)
        lexicons = {ranking.kb_id: ranking.lexicon for ranking in rankings if ranking.lexicon is not None}
        with trace.span("fusion") as detail:
            candidates = self._fuse(rankings, config)
            detail |= {"candidates": len(candidates)}
        reranker = self.reranker if config.use_rerank else None
        scale = ScoreScale(reranker.scale) if reranker else self._scale_without_reranker(candidates)
        if scale is ScoreScale.COSINE:
            candidates = self._by_cosine(candidates)
        candidates = self._load_passages(candidates, config, explain=explain, trace=trace)
        candidates = _match_terms(analysis, candidates, lexicons)
        if reranker:
            candidates = _rerank(reranker, analysis, candidates, lexicons, trace)
        threshold = cut_for(scale, config.score_threshold)
        with trace.span("gate", scale=scale.value, threshold=threshold) as detail:
            candidates = _gate(candidates, scale, threshold)
            detail["passed"] = sum(candidate.cut_by is None for candidate in candidates)
        candidates = _cut_after(candidates, config.top_k, "top_k")
        return _result(query, analysis, candidates, scale, threshold, trace)

    def _analyse(self, query: str) -> Analysis:
        text = query.strip()
        cut: dict[str, tuple[str, ...]] = {}
        tokens = {}
        for scope in self.scopes:
            if scope.tokenizer is not None:
                if scope.tokenizer.id not in cut:
                    cut[scope.tokenizer.id] = tuple(scope.tokenizer(text))
                tokens[scope.kb_id] = cut[scope.tokenizer.id]
        return Analysis(text, tokens)

    def _search_channels(
        self, analysis: Analysis, config: RetrievalConfig, deadline: float, trace: Trace
    ) -> list[Ranking]:
        if not analysis.text:
            return []
        channels = [channel for scope in self.scopes for channel in scope.channels]
        jobs = {}
        # Those that wait for other servers start first, and wait while this thread does the rest.
        for channel in sorted(channels, key=lambda each: each.in_memory):
            executor = _OWN_THREAD if channel.in_memory else self.executor
            jobs[channel] = executor.submit(_search, channel, analysis, _depth(channel, config), deadline)
        rankings = []
        for channel in channels:
            outcome, milliseconds = jobs[channel].result()
            if isinstance(outcome, Degradation):
                trace.degrade(outcome)
                trace.add(Span(channel.name, milliseconds, {"kb_id": channel.kb_id, "error": outcome.code.value}))
                continue
            for degradation in outcome.degradations:
                trace.degrade(degradation)
            found = {"kb_id": channel.kb_id, "found": len(outcome.chunk_ids), **outcome.detail}
            trace.add(Span(channel.name, milliseconds, found))
            rankings.append(outcome)
        if jobs and not rankings:
            raise NoChannelAvailable(tuple(trace.degradations))
        return rankings

    def _fuse(self, rankings: Sequence[Ranking], config: RetrievalConfig) -> list[Candidate]:
        """The candidates of all knowledge bases: by fused score, then by the order of the bases, then by chunk id."""
        candidates: list[Candidate] = []
        for scope in self.scopes:
            own = [ranking for ranking in rankings if ranking.kb_id == scope.kb_id]
            if not config.use_rerank:
                own = [ranking for ranking in own if ranking.channel == "vector"] or own
            weights = {"vector": scope.config.vector_weight, "bm25": scope.config.keyword_weight}
            weighted = [WeightedRanking(ranking.chunk_ids, weights[ranking.channel]) for ranking in own]
            chunk_ids, scores = reciprocal_rank_fusion(weighted, config.rrf_k)
            best = best_fused_score(weighted, config.rrf_k)
            candidates += _candidates(scope.kb_id, chunk_ids.tolist(), scores.tolist(), best, own)
        order = {scope.kb_id: position for position, scope in enumerate(self.scopes)}
        candidates.sort(key=lambda c: (-c.scores["fused"], order[c.kb_id], c.chunk_id))
        return _ranked(candidates, "fused")

    def _load_passages(
        self, candidates: list[Candidate], config: RetrievalConfig, *, explain: bool, trace: Trace
    ) -> list[Candidate]:
        depth = max(config.rerank_candidates, config.top_k)
        with trace.span("passages") as detail:
            wanted = candidates if explain else candidates[:depth]
            passages = self.passages.fetch([candidate.chunk_id for candidate in wanted]) if wanted else {}
            detail["loaded"] = len(passages)
        loaded = [dataclasses.replace(c, passage=passages.get(c.chunk_id)) for c in candidates]
        # A chunk that was deleted since the index was read, or that the caller may not see, is no candidate.
        gone = {c.chunk_id for c in wanted if c.chunk_id not in passages}
        return [c for c in _cut_after(loaded, depth, "fusion") if c.chunk_id not in gone]

    def _scale_without_reranker(self, candidates: Sequence[Candidate]) -> ScoreScale:
        """Cosine where all candidates have one of the same space; else only the fused order is left."""
        one_space = len({scope.space for scope in self.scopes}) == 1
        return ScoreScale.COSINE if one_space and all("vector" in c.scores for c in candidates) else ScoreScale.RRF

    def _by_cosine(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        order = {scope.kb_id: position for position, scope in enumerate(self.scopes)}
        return sorted(candidates, key=lambda c: (-c.scores["vector"], order[c.kb_id], c.chunk_id))


def _rerank(
    reranker: Reranker,
    analysis: Analysis,
    candidates: list[Candidate],
    lexicons: Mapping[int, Lexicon],
    trace: Trace,
) -> list[Candidate]:
    """Orders the candidates that are still alive by the reranker's score; ties keep the fused order."""
    with trace.span("rerank") as detail:
        alive = [c for c in candidates if c.cut_by is None]
        scores = reranker.scores(analysis, alive, lexicons)
        scored = [_scored(c, "rerank", float(score)) for c, score in zip(alive, scores, strict=True)]
        scored.sort(key=lambda c: (-c.scores["rerank"], c.ranks["fused"]))
        detail |= {"scale": reranker.scale, "scored": len(scored)}
    return _ranked(scored, "rerank") + [c for c in candidates if c.cut_by is not None]


def _depth(channel: Channel, config: RetrievalConfig) -> int:
    return config.vector_candidates if channel.name == "vector" else config.bm25_candidates


def _search(channel: Channel, analysis: Analysis, k: int, deadline: float) -> tuple[Ranking | Degradation, float]:
    """Runs a channel; one that fails costs its candidates, never the answer."""
    started = time.perf_counter()
    outcome: Ranking | Degradation
    try:
        outcome = channel.search(analysis, k, deadline)
    except ScopeOutdated:
        raise
    except ChannelUnavailable as error:
        outcome = Degradation(channel.name, error.code, str(error))
    except Exception:
        logger.exception("channel %s of knowledge base %s failed", channel.name, channel.kb_id)
        outcome = Degradation(
            channel.name,
            DegradationCode.CHANNEL_FAILED,
            f"the {channel.name} channel failed: see the server's log and run `manage.py doctor`",
        )
    return outcome, (time.perf_counter() - started) * 1_000


def _candidates(
    kb_id: int, chunk_ids: Sequence[int], fused: Sequence[float], best: float, rankings: Sequence[Ranking]
) -> list[Candidate]:
    places = {
        ranking.channel: {
            chunk_id: (rank, score)
            for rank, (chunk_id, score) in enumerate(
                zip(ranking.chunk_ids.tolist(), ranking.scores.tolist(), strict=True), start=1
            )
        }
        for ranking in rankings
    }
    candidates = []
    for chunk_id, score in zip(chunk_ids, fused, strict=True):
        found = {channel: place[chunk_id] for channel, place in places.items() if chunk_id in place}
        ranks = {channel: rank for channel, (rank, _) in found.items()}
        scores = {channel: value for channel, (_, value) in found.items()}
        candidates.append(Candidate(chunk_id, kb_id, ranks, {**scores, "fused": score}, score / best if best else 0.0))
    return candidates


def _scored(candidate: Candidate, stage: str, score: float) -> Candidate:
    return dataclasses.replace(candidate, scores={**candidate.scores, stage: score})


def _ranked(candidates: Sequence[Candidate], stage: str) -> list[Candidate]:
    return [
        dataclasses.replace(candidate, ranks={**candidate.ranks, stage: rank})
        for rank, candidate in enumerate(candidates, start=1)
    ]


def _match_terms(analysis: Analysis, candidates: list[Candidate], lexicons: Mapping[int, Lexicon]) -> list[Candidate]:
    """Notes which query terms each loaded candidate holds."""
    held: dict[int, tuple[str, ...]] = {}
    for kb_id, lexicon in lexicons.items():
        terms = analysis.terms(kb_id)
        own = [c.chunk_id for c in candidates if c.kb_id == kb_id and c.passage is not None]
        matrix = lexicon.frequencies(hash_terms(terms), np.array(own, dtype=np.int64)) > 0
        for chunk_id, row in zip(own, matrix, strict=True):
            held[chunk_id] = tuple(term for term, holds in zip(terms, row, strict=True) if holds)
    return [dataclasses.replace(c, matched_terms=held.get(c.chunk_id, ())) for c in candidates]


def _gate(candidates: list[Candidate], scale: ScoreScale, threshold: float) -> list[Candidate]:
    stage = "rerank" if scale is ScoreScale.OVERLAP else "vector"
    if threshold == 0:
        return candidates
    return [
        dataclasses.replace(c, cut_by="gate") if c.cut_by is None and c.scores.get(stage, 1.0) < threshold else c
        for c in candidates
    ]


def _cut_after(candidates: list[Candidate], count: int, stage: str) -> list[Candidate]:
    """Marks the candidates still alive after the first `count` as cut by a stage."""
    alive = 0
    marked = []
    for candidate in candidates:
        if candidate.cut_by is None:
            alive += 1
            marked.append(candidate if alive <= count else dataclasses.replace(candidate, cut_by=stage))
        else:
            marked.append(candidate)
    return marked


def _result(
    query: str,
    analysis: Analysis,
    candidates: list[Candidate],
    scale: ScoreScale,
    threshold: float,
    trace: Trace,
) -> Result:
    stage = {ScoreScale.COSINE: "vector", ScoreScale.RRF: "fused"}.get(scale, "rerank")
    hits = tuple(
        Hit(c.passage, c.scores[stage], scale.value, c.ranks, c.scores, c.matched_terms)
        for c in candidates
        if c.cut_by is None and c.passage is not None
    )
    return Result(
        query=query,
        hits=hits,
        candidates=tuple(candidates),
        analysis=analysis,
        score_scale=scale.value,
        threshold=threshold,
        degraded=tuple(trace.degradations),
        spans=tuple(trace.spans),
        timings_ms=trace.timings_ms(),
    )
