"""Runs the queries of an evaluation set and notes what each stage made of them."""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from kb.access.models import KnowledgeBase, Principal
from kb.base.db.transactions import ConnectionReturningExecutor
from kb.content.models import Chunk
from kb.index.models import KnowledgeBaseVersion
from kb.profiles.services import reference
from kb.quality.eval_sets.services.sets import PARTLY, documents_by_label
from kb.quality.models import EvalQuery, EvalRun, EvalRunQuery, EvalSet, Judgment
from kb.search.services.search import SearchRequest, wire
from kb.search.wiring import Wiring
from retrieval.config import RetrievalConfig
from retrieval.eval.judged_sets import same_passage, squeezed
from retrieval.eval.metrics import per_query
from retrieval.execution import InlineExecutor
from retrieval.selection import ORDER, RELEVANCE, ScoreScale, cut_for, gated_stage, result_count, select
from retrieval.types import Candidate, CutBy, Result

QUERIES_AT_ONCE, DOCUMENTS_AT_ONCE = 2_000, 100


@dataclass(slots=True)
class Judged:
    """The judgments of one query, on the documents and chunks of today, with grades by unit.

    A document judged as a whole is one unit (`documents`, by id), and so is a judged passage, in whatever chunks it
    stands (`passages`, by chunk id): as `retrieval.eval.judged_sets.same_passage` has it. `unanchored` are relevant
    judgments to which nothing in the knowledge base answers any more; they have a unit all the same, which no search
    finds.
    """

    grades: dict[str, int] = field(default_factory=dict)
    documents: dict[int, str] = field(default_factory=dict)
    passages: dict[int, list[str]] = field(default_factory=dict)
    unanchored: list[Judgment] = field(default_factory=list)
    by_passage: bool = False

    @property
    def relevant(self) -> frozenset[str]:
        return frozenset(unit for unit, grade in self.grades.items() if grade >= PARTLY)

    def units(self, chunk_id: int, document_id: int) -> Sequence[str]:
        """What a found chunk counts as: its judged passages, else its document, else itself.

        A document counts where it is judged as a whole, and everywhere for a query that judges documents only.
        """
        if found := self.passages.get(chunk_id):
            return found
        if unit := self.documents.get(document_id):
            return (unit,)
        return (f"chunk:{chunk_id}" if self.by_passage else str(document_id),)


def load_judged(knowledge_base: KnowledgeBase, queries: Iterable[EvalQuery]) -> dict[int, Judged]:
    """The judgments of queries by the queries' ids, anchored to what the knowledge base holds now.

    A judgment whose document is gone belongs to the documents of the same source, or of the same title where that is what
    it was known by.
    """
    ids = [query.pk for query in queries]
    judged: dict[int, Judged] = {}
    for start in range(0, len(ids), QUERIES_AT_ONCE):
        rows = Judgment.objects.filter(query__in=ids[start : start + QUERIES_AT_ONCE]).order_by("pk")
        _anchor(knowledge_base, list(rows), judged)
    for of_query in judged.values():
        # A chunk in which relevant and irrelevant passages stand is a relevant one; the best of its passages comes first.
        for chunk_id, units in of_query.passages.items():
            ordered = sorted(units, key=lambda unit: -of_query.grades[unit])
            of_query.passages[chunk_id] = [unit for unit in ordered if of_query.grades[unit] >= PARTLY] or ordered[:1]
    return judged


def _anchor(knowledge_base: KnowledgeBase, judgments: Sequence[Judgment], judged: dict[int, Judged]) -> None:
    moved = documents_by_label(knowledge_base, {each.source for each in judgments if each.document_id is None})
    homes = {each.pk: [each.document_id] if each.document_id else moved.get(each.source, []) for each in judgments}
    chunks = _matching_chunks(judgments, homes)
    for judgment in judgments:
        of_query = judged.setdefault(judgment.query_id, Judged())
        unit = f"judgment:{judgment.pk}"
        anchors = (chunks if judgment.quote else homes).get(judgment.pk, [])
        if judgment.quote:
            of_query.by_passage = True
            for chunk_id in anchors:
                of_query.passages.setdefault(chunk_id, []).append(unit)
        elif anchors:
            # Of two judgments of one document the later one counts
            unit = next((of_query.documents[each] for each in anchors if each in of_query.documents), str(anchors[0]))
            of_query.documents = dict.fromkeys(anchors, unit) | of_query.documents
        if not anchors and judgment.grade >= PARTLY:
            of_query.unanchored.append(judgment)
        if anchors or judgment.grade >= PARTLY:
            of_query.grades[unit] = judgment.grade


def _matching_chunks(judgments: Sequence[Judgment], homes: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """The ids of the chunks in which each judged passage stands, by the judgment's id."""
    quotes: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for judgment in judgments:
        if judgment.quote:
            quote = squeezed(judgment.quote)
            for document_id in homes[judgment.pk]:
                quotes[document_id].append((judgment.pk, quote))
    matching: dict[int, list[int]] = defaultdict(list)
    documents = sorted(quotes)
    for start in range(0, len(documents), DOCUMENTS_AT_ONCE):
        rows = Chunk.objects.filter(document__in=documents[start : start + DOCUMENTS_AT_ONCE])
        for chunk_id, document_id, text in rows.order_by("pk").values_list("pk", "document_id", "text"):
            own = squeezed(text)
            for judgment_id, quote in quotes[document_id]:
                if same_passage(quote, own):
                    matching[judgment_id].append(chunk_id)
    return matching


# The stages that are measured, with the name that candidates have their ranks under.
STAGES = {"bm25": "bm25", "vector": "vector", "fused": "fused", "reranked": "rerank"}
UNANCHORED, NOT_FOUND, RERANK = "unanchored", "channels", "rerank"
_GATE_ON = [str(each) for each in CutBy if each not in (CutBy.FUSION, CutBy.PARENT)]
# What can lose what is relevant, in the order of the pipeline: nothing answers to the judgments any more, no channel
# found it, and the stages that cut candidates. The reranker loses what it moves from the places of results to below
# them.
LOST_AT = (UNANCHORED, NOT_FOUND, str(CutBy.FUSION), RERANK, *_GATE_ON)
Rankings = Mapping[str, Sequence[str]]  # judged units by stage, best first, each at its best chunk's place


def observe(
    result: Result, judged: Judged, config: RetrievalConfig, cut: float, depth: int, found: Result | None = None
) -> tuple[EvalRunQuery, Rankings]:
    """What a search without a gate made of the judgments, as a row without its query and its figures.

    The gate and selection of `config`, that of a search for readers, are applied here, with `cut`, the least score that
    passes; the rankings are `depth` long at most. `found` is the same search with a reranker, whose candidates show the
    stages before it; where the reranker is off, the order of the results stands for what it would have made.
    """
    found = found or result
    if config.use_rerank:
        result = _reranked_for_readers(result, config)
        candidates = tuple(result.candidates)
    else:
        candidates = tuple(
            each._replace(ranks={**each.ranks, RERANK: place}) for place, each in enumerate(result.candidates, start=1)
        )
    after, before = _with_units(candidates, judged), _with_units(found.candidates, judged)
    relevant, gated = judged.relevant, gated_stage(result)
    rankings, first_relevant = {}, {}
    for stage, key in STAGES.items():
        rankings[stage], rank = _ranking(after if key == RERANK else before, key, relevant, depth)
        if rank:
            first_relevant[stage] = rank
    row = EvalRunQuery(
        first_relevant=first_relevant,
        # What is first need not score best, and a cut that anything passes lets the query pass.
        best_score=max((each.scores[gated] for each in candidates if each.cut_by != CutBy.FUSION), default=None),
        score_scale=result.score_scale if result.hits else "",
        lost_at=_lost_at(result, after, before, judged, config, cut) if relevant else "",
        judged=_judged_scores(after, judged, gated),
        latency_ms=result.timings_ms["total"],
    )
    return row, rankings


def _reranked_for_readers(result: Result, config: RetrievalConfig) -> Result:
    """Without what only this search, which is deeper than one for readers, has reranked."""
    deeper = {
        each.chunk_id
        for each in result.candidates
        if RERANK in each.ranks and each.ranks["fused"] > max(config.rerank_candidates, config.top_k)
    }
    candidates = tuple(
        each._replace(
            cut_by=CutBy.FUSION,
            ranks={stage: rank for stage, rank in each.ranks.items() if stage != RERANK},
            scores={stage: score for stage, score in each.scores.items() if stage not in (RELEVANCE, ORDER)},
        )
        if each.chunk_id in deeper
        else each
        for each in result.candidates
    )
    return replace(
        result, candidates=candidates, hits=tuple(hit for hit in result.hits if hit.passage.chunk_id not in deeper)
    )


Found = Sequence[tuple[Candidate, Sequence[str]]]  # candidates with the judged units that they count as


def _with_units(candidates: Iterable[Candidate], judged: Judged) -> Found:
    return [(each, judged.units(each.chunk_id, each.passage.document_id if each.passage else 0)) for each in candidates]


def _ranking(found: Found, key: str, relevant: Set[str], depth: int) -> tuple[list[str], int]:
    """The units of a stage, at most as many as the depth, and the rank of the first that is relevant, or 0."""
    ranked = {candidate.ranks[key]: units for candidate, units in found if key in candidate.ranks}
    seen: dict[str, None] = {}
    first = 0
    for rank in sorted(ranked):
        for unit in ranked[rank]:
            seen.setdefault(unit)
            if not first and unit in relevant:
                first = len(seen)
        if first and len(seen) >= depth:
            break
    return list(seen)[:depth], first


def _judged_scores(found: Found, judged: Judged, key: str) -> list[list[float]]:
    """Score and grade of each judged unit that reached the gate, best first."""
    scores: dict[str, float] = {}
    for candidate, units in found:
        for unit in units if candidate.cut_by != CutBy.FUSION else ():
            if unit in judged.grades:
                scores[unit] = max(candidate.scores[key], scores.get(unit, -math.inf))
    return [[score, judged.grades[unit]] for unit, score in sorted(scores.items(), key=lambda each: -each[1])]


def _lost_at(result: Result, after: Found, before: Found, judged: Judged, config: RetrievalConfig, cut: float) -> str:
    """The stage that lost the relevant result that got furthest, as a search with a gate would have it.

    `after` are the candidates of the result, `before` all that the channels found; the others are as for `observe`.
    """
    relevant, key = judged.relevant, gated_stage(result)
    found = [each for each, units in after if not relevant.isdisjoint(units)]
    if not found:
        if not all(relevant.isdisjoint(units) for _, units in before):
            return "fusion"
        return UNANCHORED if len(judged.unanchored) == len(relevant) else NOT_FOUND
    # As the gate leaves them; what came after the gate is taken back.
    gated = [
        each._replace(cut_by=CutBy.GATE if cut and each.scores[key] < cut else None)
        for each in result.candidates
        if each.cut_by != CutBy.FUSION
    ]
    cut_by = {each.chunk_id: each.cut_by for each in select(gated, config)}
    stages = {each.chunk_id: cut_by.get(each.chunk_id, CutBy.FUSION) for each in found}
    if not {None, CutBy.PARENT}.isdisjoint(stages.values()):  # PARENT: it is read in the longer passage of a result
        return ""
    stage = max(map(str, stages.values()), key=LOST_AT.index)
    places = (each.ranks["fused"] for each in found if stages[each.chunk_id] == stage)
    return RERANK if stage == CutBy.TOP_K and key == RELEVANCE and min(places) <= result_count(config) else stage


DEPTH = 20
BUDGET_S = 60.0  # a slow model is measured, not left out
# Deep enough for recall@20, and without the gate, which would hide what the reranker did.
MEASURING = {"top_k": DEPTH, "score_threshold": 0.0}
# Without a reranker a search fuses nothing, and tells of what the vectors find only.
ALL_STAGES = {**MEASURING, "use_rerank": True}
SEARCHES_AT_ONCE = 2  # while one waits for the database, another computes; with more, each takes much longer
TICK_S = 0.3
QUERIES_A_BATCH = 200

Tick = Callable[[int], None]


def wiring_of(principal: Principal, run: EvalRun, **more: Any) -> Wiring:
    """The pipeline of a run, perhaps with further settings.

    Raises `NotVisible` where the knowledge base or the profile does not exist for this principal,
    `InvalidConfiguration` where an override is unknown or out of range, and `Rejected` where the base does not hold the
    model's vectors.
    """
    request = SearchRequest(
        query="",
        knowledge_base_ids=[run.eval_set.knowledge_base_id],
        profile=reference(run.profile) if run.profile_id else "",
        profile_version=run.profile.version if run.profile_id else None,
        overrides={**run.overrides, **more},
    )
    return wire(principal, request, embedding_model=run.embedding_model)


def measured_queries(eval_set: EvalSet, limit: int | None) -> tuple[QuerySet[EvalQuery], QuerySet[EvalQuery]]:
    """The queries by which rankings are measured, those with a relevant document, and those without an answer."""
    relevant = Judgment.objects.filter(query__eval_set=eval_set, grade__gt=0).values("query")
    own = EvalQuery.objects.filter(eval_set=eval_set).order_by("pk")
    return own.filter(answerable=True, pk__in=relevant)[:limit], own.filter(answerable=False)[:limit]


def query_count(eval_set: EvalSet, limit: int | None = None) -> int:
    return sum(queries.count() for queries in measured_queries(eval_set, limit))


Observed = tuple[EvalRunQuery, Rankings, Result]


class Measurement:
    """The searches of one run, saved or not, which without a profile has the knowledge base's own. Raises as `wiring_of`.

    Attributes:
        version: of the knowledge base when the run began.
        config: that a search under the profile has.
        rows: what was measured of each query so far, in the order of the set, those with an answer first; not saved.
        degraded: by code, what searches could not do.
        rerankers: the names of those that have answered.
    """

    def __init__(self, principal: Principal, run: EvalRun) -> None:
        self.eval_run = run
        kb = run.eval_set.knowledge_base
        self.version = KnowledgeBaseVersion.objects.get(knowledge_base=kb)
        self.config: RetrievalConfig = wiring_of(principal, run).config
        self.wiring = wiring_of(principal, run, **ALL_STAGES)
        # What readers get of a profile whose reranker is off is another search.
        self._results = self.wiring if self.config.use_rerank else wiring_of(principal, run, **MEASURING)
        ranked, unanswerable = map(list, measured_queries(run.eval_set, run.query_limit))
        self.queries = [*ranked, *unanswerable]
        self.judged = load_judged(kb, ranked)
        self.chunk_count = Chunk.objects.filter(knowledge_base=kb, enabled=True).count()
        self.rows: list[EvalRunQuery] = []
        self.degraded: dict[str, dict[str, str]] = {}
        self.rerankers: set[str] = set()

    def cut(self, scale: str) -> float:
        """The least score of a scale that passes the gate of a search under the profile."""
        known = ScoreScale(scale)
        return cut_for(known, self.config, known, self.chunk_count).threshold

    def run(self, tick: Tick) -> None:
        """Searches for every query; what was measured until an error stays in `rows`.

        `tick` is called with how many further queries are done, and, with 0, every moment that none is; what it raises
        ends the run. Raises `NoChannelAvailable`, and `ScopeOutdated` where the base moved to another tokenizer
        meanwhile.
        """
        executor: Executor = InlineExecutor()
        if not connection.in_atomic_block:  # other threads would not see what the open transaction has written
            executor = ConnectionReturningExecutor(SEARCHES_AT_ONCE, thread_name_prefix="evaluation")
        batch: list[tuple[EvalRunQuery, Rankings]] = []
        try:
            _landed(executor.submit(self.wiring.load_models), tick)
            for row, rankings, result in self._measured(executor, tick):
                batch.append((row, rankings))
                self.degraded |= {each.code.value: each.as_dict() for each in result.degraded}
                self.rerankers |= {
                    str(span.detail["reranker"] or "") for span in result.spans if span.stage == RERANK
                } - {""}
                if len(batch) == QUERIES_A_BATCH:
                    whole, batch = batch, []
                    self._add(whole)
                tick(1)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            self._add(batch)

    def conclude(self) -> dict[str, Any]:
        """Further fields of the run, once it is done; called in the transaction that ends it."""
        return {}

    def _measured(self, executor: Executor, tick: Tick) -> Iterator[Observed]:
        running: deque[Future[Observed]] = deque()
        for query in self.queries:
            running.append(executor.submit(self.measure, query))
            if len(running) > SEARCHES_AT_ONCE:
                yield _landed(running.popleft(), tick)
        for future in running:
            yield _landed(future, tick)

    def measure(self, query: EvalQuery) -> Observed:
        """Searches for one query, in a thread of its own."""
        found = self.wiring.run(query.text, latency_budget=BUDGET_S)
        result = found
        if self._results is not self.wiring:
            result = self._results.run(query.text, latency_budget=BUDGET_S)
        judged = self.judged.get(query.pk) or Judged()
        row, rankings = observe(result, judged, self.config, self.cut(result.score_scale), DEPTH, found)
        row.query, row.external_id, row.text, row.answerable = query, query.external_id, query.text, query.answerable
        return row, rankings, result

    def _add(self, batch: Sequence[tuple[EvalRunQuery, Rankings]]) -> None:
        qrels = {row.external_id: self.judged[row.query_id].grades for row, _ in batch if row.query_id in self.judged}
        for stage in STAGES:
            figures = per_query(qrels, {row.external_id: rankings[stage] for row, rankings in batch})
            for row, _ in batch:
                if row.external_id in figures:
                    row.figures[stage] = figures[row.external_id]
        self.rows += [row for row, _ in batch]


def _landed(future: "Future[Any]", tick: Tick) -> Any:
    while not wait([future], timeout=TICK_S).done:
        tick(0)
    return future.result()
