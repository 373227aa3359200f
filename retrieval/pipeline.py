"""The order of the stages, and nothing else."""

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import numpy as np

from retrieval.analysis import Analyser, normalise_query
from retrieval.config import RetrievalConfig
from retrieval.dedupe import deduplicate
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import Degradation, DegradationCode, _
from retrieval.evidence import character_rankings
from retrieval.execution import Budget
from retrieval.external import SearchLexicon, with_external_scores
from retrieval.fusion import QUESTION_CHANNELS, fuse, match_terms, promoted
from retrieval.protocols import FactStore, PassageStore, Scope
from retrieval.questions import equal_questions
from retrieval.recall import dropped_chunks, search_channels
from retrieval.rerankers.chain import RerankChain
from retrieval.selection import (
    ORDER,
    RELEVANCE,
    Cut,
    ScoreScale,
    borders,
    cut_for,
    relevance_label,
    result_count,
    select,
    with_near_misses,
)
from retrieval.types import (
    Analysis,
    Candidate,
    CutBy,
    Fact,
    Hit,
    Passage,
    Ranking,
    RerankJob,
    Result,
    Trace,
    Turn,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Scored:
    """Candidates in the order of the scores that the gate and the caller see: those of a stage, on a scale."""

    candidates: list[Candidate]
    scale: ScoreScale
    stage: str
    intended: ScoreScale  # the scale that an explicit threshold is meant for


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Runs one search over one or several knowledge bases, whose order breaks ties."""

    scopes: tuple[Scope, ...]
    analyser: Analyser
    passages: PassageStore
    chain: RerankChain
    executor: Executor  # runs the channels that wait for other servers
    facts: FactStore | None = None
    fact_kb_ids: tuple[int, ...] = field(default=())  # the knowledge bases that have any

    def run(
        self,
        query: str,
        config: RetrievalConfig,
        *,
        history: Sequence[Turn] = (),
        explain: bool = False,
        latency_budget: float = 10.0,
    ) -> Result:
        """Searches for a text, at most for `latency_budget` seconds; a blank text finds nothing.

        `config` holds the settings of the stages that serve all knowledge bases together, `history` the earlier turns
        of the conversation, oldest first. `explain` also reports which terms candidates hold that will not be results,
        and what was dropped before.

        Raises NoChannelAvailable where no channel of any knowledge base could answer, and ScopeOutdated where a
        knowledge base has changed in a way that this pipeline cannot serve.
        """
        trace = Trace(explains=explain)
        budget = Budget.of(latency_budget)
        analysis = self._analyse(query, history, config, budget, trace)
        facts = self._begin_facts(analysis, config)
        found = search_channels(self.scopes, analysis, budget, self.executor, trace)
        passages = self._load_passages(found, trace)
        equal = equal_questions((normalise_query(query), analysis.text), passages.values())
        with trace.span("dedupe") as detail:
            unique = deduplicate(found, passages)
            detail["dropped"] = len(unique.dropped)
            if explain:
                trace.dropped += [
                    dataclasses.replace(each, represented_by=unique.dropped[each.chunk_id])
                    for each in dropped_chunks("dedupe", unique.found, lambda chunk_id: chunk_id in unique.dropped)
                ]
        questions = {unique.dropped.get(chunk_id, chunk_id): question for chunk_id, question in equal.items()}
        fused = _fused_channels(unique.rankings, config, questions)
        fused = with_external_scores(fused, passages, analysis, self.scopes, budget.channels_end)
        by_characters, characters = character_rankings(self.scopes, fused, passages, analysis, trace)
        fused += by_characters
        with trace.span("fusion") as detail:
            # Without a reranker the cosines of all candidates decide.
            depth = max(config.rerank_candidates, config.top_k) if config.use_rerank else None
            candidates = self._fuse(fused, passages, depth, questions, trace)
            detail |= {"method": config.fusion, "candidates": len(candidates)}
            if questions:
                detail["equal_questions"] = sorted(questions)
            if explain and not config.use_rerank:
                known = {candidate.chunk_id for candidate in candidates}
                trace.dropped += dropped_chunks("vector_only", unique.rankings, lambda each: each not in known)
        lexicons = {
            ranking.kb_id: SearchLexicon(ranking.lexicon)
            for ranking in (fused if config.use_rerank else unique.rankings)
            if ranking.lexicon is not None
        }
        # Candidates that are cut already have their terms only where the search is explained.
        shown = [c for c in candidates if explain or c.cut_by is None]
        candidates = match_terms(analysis, shown, lexicons) + [c for c in candidates if not explain and c.cut_by]
        job = RerankJob(
            analysis=analysis,
            candidates=(),
            lexicons=lexicons,
            characters=characters,
            questions={each.kb_id: each.questions for each in fused if each.questions is not None},
            spaces={scope.kb_id: scope.space for scope in self.scopes},
            similarity={
                ranking.kb_id: ranking.score
                for ranking in fused
                if ranking.channel == "vector" and ranking.score is not None
            },
        )
        scored = self._rerank(job, candidates, config, budget, trace)
        # Of the knowledge bases whose keyword index has answered; unknown where none has.
        chunk_count = sum(lexicon.chunk_count for lexicon in lexicons.values()) if lexicons else None
        candidates, cut = self._gate(scored, chunk_count, config, trace)
        with trace.span("selection") as detail:
            candidates = select(candidates, config)
            if not cut.refuses:
                by_meaning = {scope.kb_id for scope in self.scopes if scope.space != HASHING_MODEL_ID}
                candidates = with_near_misses(candidates, config, scored.stage, by_meaning)
                detail["near_misses"] = sum(candidate.is_near_miss for candidate in candidates)
            # Where a search is not explained nobody sees where candidates that are cut were found.
            found_at = unique.provenance_of([c.chunk_id for c in candidates if explain or c.is_given])
            candidates = [
                c._replace(provenance=found_at[c.chunk_id]) if c.chunk_id in found_at else c for c in candidates
            ]
            detail["count"] = result_count(config)
            candidates = self._with_neighbours(candidates, config)
            # The longer passages that are given in place of chunks, by chunk id.
            chosen = [c.passage for c in candidates if c.is_given and c.passage and c.passage.parent_id is not None]
            larger = self.passages.parents(chosen) if chosen else {}
            if larger:
                detail["larger"] = len(larger)
        return Result(
            query=query,
            hits=_hits([c for c in candidates if c.cut_by is None], scored, larger, chunk_count),
            near_misses=_hits([c for c in candidates if c.is_near_miss], scored, larger, chunk_count),
            candidates=tuple(candidates),
            analysis=analysis,
            score_scale=scored.scale.value,
            threshold=cut.threshold,
            facts=_await_facts(facts, budget, trace),
            degraded=tuple(trace.degradations),
            spans=tuple(trace.spans),
            timings_ms=trace.timings_ms(),
            dropped=tuple(trace.dropped),
            lexicons=lexicons if explain else {},
            characters=characters if explain else {},
        )

    def _analyse(
        self, query: str, history: Sequence[Turn], config: RetrievalConfig, budget: Budget, trace: Trace
    ) -> Analysis:
        with trace.span("analysis") as detail:
            analysis, degradations, is_rewritten = self.analyser.analyse(query, history, config, budget.channels_end)
            detail |= {"terms": list(analysis.all_terms), "language": analysis.language, "intent": analysis.intent}
            detail["keywords"] = list(analysis.keywords)
            if is_rewritten:
                detail["rewritten"] = analysis.text
            if analysis.sub_queries:
                detail["sub_queries"] = [each.text for each in analysis.sub_queries]
            if analysis.concepts:
                detail["concepts"] = [
                    {"id": concept.concept_id, "name": concept.name, "mention": concept.mention}
                    for concept in analysis.concepts
                ]
        trace.degrade(*degradations)
        return analysis

    def _begin_facts(self, analysis: Analysis, config: RetrievalConfig) -> "Future[tuple[Fact, ...]] | None":
        if self.facts is None or not config.graph_facts or not analysis.text:
            return None
        names = [name for concept in analysis.concepts for name in (concept.name, *concept.names)]
        return self.executor.submit(self.facts.facts, self.fact_kb_ids, analysis.text, names, config.max_graph_facts)

    def _load_passages(self, rankings: Sequence[Ranking], trace: Trace) -> Mapping[int, Passage]:
        """A chunk that was deleted since an index was read, or that the caller may not see, is not among them.

        Nor are the questions of a knowledge base that is not searched by them.
        """
        with trace.span("passages") as detail:
            brought = {key: passage for ranking in rankings for key, passage in ranking.passages.items()}
            wanted = list(
                {chunk_id for ranking in rankings for chunk_id in ranking.chunk_ids.tolist()} - brought.keys()
            )
            passages = self.passages.fetch(wanted) if wanted else {}
            if silent := {scope.kb_id for scope in self.scopes if not scope.config.question_weight}:
                passages = {
                    key: each._replace(questions=()) if each.kb_id in silent else each for key, each in passages.items()
                }
            detail["loaded"] = len(passages)
            if brought:
                detail["brought"] = len(brought)
            if trace.explains and len(passages) < len(wanted):
                trace.dropped += dropped_chunks("passages", rankings, lambda chunk_id: chunk_id not in passages)
        return {**passages, **brought} if brought else passages

    def _fuse(
        self,
        rankings: list[Ranking],
        passages: Mapping[int, Passage],
        depth: int | None,
        questions: Mapping[int, str],
        trace: Trace,
    ) -> list[Candidate]:
        """Falls back to the scores that the channels have found where their exact ones cannot be read."""
        try:
            return fuse(self.scopes, rankings, passages, depth, questions)
        except Exception:
            logger.exception("the exact scores of candidates could not be read")
            trace.degrade(
                Degradation(
                    "fusion",
                    DegradationCode.CHANNEL_FAILED,
                    _(
                        "the exact scores of candidates could not be read, so one counts 0 in a channel that did "
                        "not find it: see the server's log"
                    ),
                )
            )
            inexact = [dataclasses.replace(each, score=None) for each in rankings]
            return fuse(self.scopes, inexact, passages, depth, questions)

    def _rerank(
        self, job: RerankJob, candidates: list[Candidate], config: RetrievalConfig, budget: Budget, trace: Trace
    ) -> _Scored:
        """Orders the candidates that are still alive by the chain's scores; ties keep the fused order.

        No score is above 1, which is that of a chunk with a question that the query equals, whatever the reranker says.
        Those that are `promoted` for it stand first, others where the reranker puts them.
        """
        alive = [c for c in candidates if c.cut_by is None]
        rest = [c for c in candidates if c.cut_by is not None]
        if not config.use_rerank or not alive:
            return self._without_reranker(alive, rest, ScoreScale.COSINE)
        with trace.span("rerank") as detail:
            outcome = self.chain.rerank(dataclasses.replace(job, candidates=tuple(alive)), budget.end)
            detail |= {"reranker": outcome.name, "scored": len(alive), "passed_over": dict(outcome.tried)}
        trace.degrade(*outcome.degradations)
        if outcome.scores is None or outcome.order is None or outcome.scale is None:
            if not self.chain.links:  # none was wanted: the fused order stays
                return _Scored(candidates, ScoreScale.RRF, "fused", ScoreScale.RRF)
            return self._without_reranker(alive, rest, outcome.intended)
        first = promoted(alive, [each.chunk_id for each in alive if each.question])
        scores = np.where([bool(each.question) for each in alive], 1.0, outcome.scores).tolist()
        by = np.where([each.chunk_id in first for each in alive], 1.0, outcome.order).tolist()
        order = sorted(range(len(alive)), key=lambda place: (-by[place], place))
        reranked = [
            alive[place]._replace(
                ranks={**alive[place].ranks, "rerank": rank},
                scores={**alive[place].scores, RELEVANCE: scores[place], ORDER: by[place]},
            )
            for rank, place in enumerate(order, start=1)
        ]
        return _Scored(reranked + rest, outcome.scale, RELEVANCE, outcome.intended)

    def _without_reranker(self, alive: list[Candidate], rest: list[Candidate], intended: ScoreScale) -> _Scored:
        """By cosine where all candidates have one of the same space; else only the fused order is left.

        First comes what is `promoted` for a question that the query equals; the cosine of all such is 1.
        """
        first = promoted(alive, [each.chunk_id for each in alive if each.question])
        is_one_space = len({scope.space for scope in self.scopes}) == 1
        by_cosine = is_one_space and all("vector" in c.scores or c.question for c in alive)
        stage, scale = ("vector", ScoreScale.COSINE) if by_cosine else ("fused", ScoreScale.RRF)
        order = {scope.kb_id: position for position, scope in enumerate(self.scopes)}
        alive.sort(key=lambda c: (c.chunk_id not in first, -c.scores.get(stage, 0.0), order[c.kb_id], c.chunk_id))
        if by_cosine:
            alive = [c._replace(scores={**c.scores, "vector": 1.0}) if c.question else c for c in alive]
        return _Scored(alive + rest, scale, stage, intended)

    def _gate(
        self, scored: _Scored, chunk_count: int | None, config: RetrievalConfig, trace: Trace
    ) -> tuple[list[Candidate], Cut]:
        scale = scored.scale
        cut = cut_for(scale, config, scored.intended, chunk_count)
        if cut.replaced:
            trace.degrade(
                Degradation(
                    "gate",
                    DegradationCode.THRESHOLD_NOT_APPLIED,
                    _(
                        "the threshold {score_threshold} is meant for scores of the scale {intended}, and these "
                        "are of the scale {scale}: its default, {threshold:g}, applies; fix the reranker, or "
                        "give score_threshold 0",
                        score_threshold=str(config.score_threshold),
                        intended=str(scored.intended),
                        scale=str(scale),
                        threshold=cut.threshold,
                    ),
                )
            )
        with trace.span("gate", scale=scale.value, threshold=cut.threshold) as detail:
            gated = [
                c._replace(cut_by=CutBy.GATE)
                if c.cut_by is None and cut.threshold and c.scores[scored.stage] < cut.threshold
                else c
                for c in scored.candidates
            ]
            detail["passed"] = sum(candidate.cut_by is None for candidate in gated)
            if found := borders(scale, chunk_count):
                detail["medium"], detail["high"] = found
        return gated, cut

    def _with_neighbours(self, candidates: list[Candidate], config: RetrievalConfig) -> list[Candidate]:
        # A longer passage holds its chunks' neighbours.
        results = (c.passage for c in candidates if c.is_given and c.passage)
        chosen = [each for each in results if each.parent_id is None and each.origin is None]
        if not config.neighbours or not chosen:
            return candidates
        beside = self.passages.neighbours(chosen, config.neighbours)
        return [c._replace(neighbours=beside.get(c.chunk_id, ())) for c in candidates]


def _fused_channels(rankings: Sequence[Ranking], config: RetrievalConfig, questions: Collection[int]) -> list[Ranking]:
    """Without a reranker the vector channel's results are returned as they are, or the others' where it is unavailable.

    Beside them stand the chunks with a question that the query equals.
    """
    if config.use_rerank:
        return list(rankings)
    with_vectors = {ranking.kb_id for ranking in rankings if ranking.channel == "vector"}
    kept = [r for r in rankings if r.channel == "vector" or r.kb_id not in with_vectors]
    for ranking in rankings if questions else ():
        if ranking.channel in QUESTION_CHANNELS and ranking.kb_id in with_vectors:
            is_equal = np.isin(ranking.chunk_ids, list(questions))
            chunk_ids, scores = ranking.chunk_ids[is_equal], ranking.scores[is_equal]
            kept.append(dataclasses.replace(ranking, chunk_ids=chunk_ids, scores=scores))
    return kept


def _hits(
    candidates: Sequence[Candidate], scored: _Scored, larger: Mapping[int, Passage], chunk_count: int | None
) -> tuple[Hit, ...]:
    """The candidates as they are given; where there is a longer passage around one, that is its text."""
    return tuple(
        Hit(
            larger.get(c.passage.chunk_id, c.passage),
            c.scores[scored.stage],
            scored.scale.value,
            c.ranks,
            c.scores,
            c.matched_terms,
            c.provenance,
            c.neighbours,
            relevance_label(scored.scale, c.scores[scored.stage], chunk_count),
            c.question,
        )
        for c in candidates
        if c.passage is not None
    )


def _await_facts(facts: "Future[tuple[Fact, ...]] | None", budget: Budget, trace: Trace) -> tuple[Fact, ...]:
    """What the graph says, if it says it in time; a search does not fail for it."""
    if facts is None:
        return ()
    with trace.span("facts") as detail:
        try:
            found = facts.result(timeout=budget.remaining())
        except Exception as error:
            logger.exception("the facts of the graph could not be read", exc_info=error)
            trace.degrade(
                Degradation(
                    "facts",
                    DegradationCode.FACTS_FAILED,
                    _("the facts of the graph could not be read, or not in time: see the server's log"),
                )
            )
            found = ()
        detail["found"] = len(found)
    return found
