"""Runs the queries of an evaluation set and notes what each stage made of them."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.base.db.threads import ConnectionReturningExecutor
from kb.content.models.documents import Chunk
from kb.index.models.index import KnowledgeBaseVersion
from kb.quality.models import EvalQuery, EvalRunQuery, EvalSet, Judgment
from kb.quality.runs.services.observe import STAGES, Observed, observe
from kb.quality.runs.services.units import Judged, load_judged
from kb.search.services.search import SearchRequest, wire
from kb.search.wiring import Wiring
from retrieval.config import RetrievalConfig
from retrieval.eval.metrics import per_query
from retrieval.execution import InlineExecutor
from retrieval.gate import ScoreScale, cut_for

DEPTH = 20
BUDGET_S = 60.0  # a slow model is measured, not left out
MEASURING = {"top_k": DEPTH, "score_threshold": 0.0}
"""Deep enough for recall@20, and without the gate, which would hide what the reranker did."""
ALL_STAGES = {**MEASURING, "use_rerank": True}
"""Without a reranker a search fuses nothing, and tells of what the vectors find only."""
SEARCHES_AT_ONCE = 2
"""While one waits for the database, another computes; with more, each takes much longer."""
TICK_S = 0.3
QUERIES_A_BATCH = 200

Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Attributes:
        profile: blank: the knowledge base's own.
        profile_version: None: the published one.
        overrides: unsaved settings over it.
        limit: only the first so many queries, with an answer and without.
        embedding_model: that the vectors searched are of; blank: that which the knowledge base uses.
    """

    eval_set: EvalSet
    profile: str = ""
    profile_version: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    embedding_model: str = ""

    @property
    def knowledge_base(self) -> KnowledgeBase:
        return self.eval_set.knowledge_base

    def wire(self, principal: Principal, **more: Any) -> Wiring:
        """A pipeline under the profile.

        Raises:
            NotVisible: the knowledge base or the profile does not exist for this principal.
            InvalidConfiguration: an override is unknown or out of range.
            Rejected: the knowledge base does not hold the model's vectors.
        """
        return wire(
            principal,
            SearchRequest(
                query="",
                knowledge_base_ids=[self.knowledge_base.pk],
                profile=self.profile,
                profile_version=self.profile_version,
                overrides={**self.overrides, **more},
            ),
            embedding_model=self.embedding_model,
        )


def ranked_queries(eval_set: EvalSet, limit: int | None = None) -> QuerySet[EvalQuery]:
    """The queries by which rankings are measured: those with a relevant document."""
    relevant = Judgment.objects.filter(query__eval_set=eval_set, grade__gt=0).values("query")
    return EvalQuery.objects.filter(eval_set=eval_set, answerable=True, pk__in=relevant).order_by("pk")[:limit]


def unanswerable_queries(eval_set: EvalSet, limit: int | None = None) -> QuerySet[EvalQuery]:
    """The queries by which only the gate is measured."""
    return EvalQuery.objects.filter(eval_set=eval_set, answerable=False).order_by("pk")[:limit]


def query_count(eval_set: EvalSet, limit: int | None = None) -> int:
    return ranked_queries(eval_set, limit).count() + unanswerable_queries(eval_set, limit).count()


class Measurement:
    """One run over a set.

    Args:
        principal: whose rights apply.
        subject: what is measured.

    Attributes:
        version: of the knowledge base when the run began.
        config: that a search under the profile has.
        rows: what was measured of each query so far, in the order of the set, those with an answer first; not saved.
        degraded: by code, what searches could not do.
        rerankers: the names of those that have answered.

    Raises:
        NotVisible: the knowledge base or the profile does not exist for this principal.
        InvalidConfiguration: an override is unknown or out of range.
    """

    def __init__(self, principal: Principal, subject: Subject) -> None:
        self.subject = subject
        kb = subject.knowledge_base
        self.version = KnowledgeBaseVersion.objects.get(knowledge_base=kb)
        self.config: RetrievalConfig = subject.wire(principal).config
        self.wiring = subject.wire(principal, **ALL_STAGES)
        # What readers get of a profile whose reranker is off is another search.
        self._results = self.wiring if self.config.use_rerank else subject.wire(principal, **MEASURING)
        ranked = list(ranked_queries(subject.eval_set, subject.limit))
        self.ranked_count = len(ranked)
        self.queries = ranked + list(unanswerable_queries(subject.eval_set, subject.limit))
        self.judged = load_judged(kb, ranked)
        self.chunk_count = Chunk.objects.filter(knowledge_base=kb, enabled=True).count()
        self.rows: list[EvalRunQuery] = []
        self.degraded: dict[str, dict[str, str]] = {}
        self.rerankers: set[str] = set()
        self._cuts: dict[str, float] = {}

    def cut(self, scale: str) -> float:
        """The least score of a scale that passes the gate of a search under the profile."""
        if scale not in self._cuts:
            known = ScoreScale(scale)
            self._cuts[scale] = cut_for(known, self.config, known, self.chunk_count).threshold
        return self._cuts[scale]

    def run(self, tick: Tick) -> None:
        """Searches for every query; what was measured until an error stays in `rows`.

        Args:
            tick: told how many further queries are done, and, with 0, every moment that none is; what it raises ends
                the run.

        Raises:
            NoChannelAvailable: no channel could answer a query.
            ScopeOutdated: the knowledge base moved to another tokenizer meanwhile.
        """
        executor: Executor = InlineExecutor()
        if not connection.in_atomic_block:  # other threads would not see what the open transaction has written
            executor = ConnectionReturningExecutor(SEARCHES_AT_ONCE, thread_name_prefix="evaluation")
        batch: list[tuple[EvalQuery, Observed]] = []
        try:
            _landed(executor.submit(self.wiring.load_models), tick)
            for query, observed in self._observed(executor, tick):
                batch.append((query, observed))
                if len(batch) == QUERIES_A_BATCH:
                    whole, batch = batch, []
                    self._add(whole)
                tick(1)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            self._add(batch)

    def _observed(self, executor: Executor, tick: Tick) -> Iterator[tuple[EvalQuery, Observed]]:
        """The queries in their order, each with what a search for it made of the judgments."""
        running: deque[tuple[EvalQuery, Future[Observed]]] = deque()
        for query in self.queries:
            running.append((query, executor.submit(self._observe, query)))
            if len(running) > SEARCHES_AT_ONCE:
                first, future = running.popleft()
                yield first, _landed(future, tick)
        for rest, future in running:
            yield rest, _landed(future, tick)

    def _observe(self, query: EvalQuery) -> Observed:
        found = self.wiring.pipeline.run(query.text, self.wiring.config, latency_budget=BUDGET_S)
        result = found
        if self._results is not self.wiring:
            result = self._results.pipeline.run(query.text, self._results.config, latency_budget=BUDGET_S)
        return observe(result, self._judged(query), self.config, self.cut(result.score_scale), DEPTH, found)

    def _add(self, batch: Sequence[tuple[EvalQuery, Observed]]) -> None:
        qrels = {query.external_id: self._judged(query).grades for query, _ in batch}
        figures: dict[str, dict[str, Any]] = defaultdict(dict)
        for stage in STAGES:
            rankings = {query.external_id: observed.rankings[stage] for query, observed in batch}
            for external_id, of_query in per_query(qrels, rankings).items():
                figures[external_id][stage] = of_query
        for query, observed in batch:
            self.rows.append(_row(query, observed, figures.get(query.external_id, {})))
            self.degraded |= {each.code.value: each.as_dict() for each in observed.degraded}
            self.rerankers |= {observed.reranker} - {""}

    def _judged(self, query: EvalQuery) -> Judged:
        return self.judged.get(query.pk) or Judged()


def _row(query: EvalQuery, observed: Observed, figures: Mapping[str, Mapping[str, float]]) -> EvalRunQuery:
    return EvalRunQuery(
        query=query,
        external_id=query.external_id,
        text=query.text,
        answerable=query.answerable,
        figures=figures,
        best_score=observed.best_score,
        score_scale=observed.score_scale,
        first_relevant=dict(observed.first_relevant),
        lost_at=observed.lost_at,
        judged=[list(each) for each in observed.judged],
        latency_ms=observed.latency_ms,
    )


def _landed(future: "Future[Any]", tick: Tick) -> Any:
    while not wait([future], timeout=TICK_S).done:
        tick(0)
    return future.result()
