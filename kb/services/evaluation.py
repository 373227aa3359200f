"""Runs an evaluation set through the pipeline that every search runs, and measures each stage."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from django.db.models import QuerySet

from kb.conf import Wiring
from kb.models import Chunk, EvalQuery, EvalSet, Judgment, KnowledgeBase, Principal
from kb.services.search import SearchRequest, wire
from retrieval.eval.metrics import auroc, evaluate_run
from retrieval.gate import ScoreScale, default_cut
from retrieval.types import Result

STAGES = {"bm25": "bm25", "vector": "vector", "fused": "fused", "reranked": "rerank"}
DEPTH = 20
BUDGET_S = 60.0  # a slow model is measured, not left out


def evaluate(
    principal: Principal,
    eval_set: EvalSet,
    *,
    profile: str = "",
    limit: int | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Measures bm25, vector, fused and reranked (before the gate) against the set's judgments.

    Args:
        principal: whose rights apply.
        eval_set: with its knowledge base.
        profile: blank: the knowledge base's own.
        limit: only the first so many queries, with an answer and without.
        on_progress: told how many further queries are done.

    Returns:
        The JSON that `manage.py evaluate --json` prints; figures are 0 to 1, latencies milliseconds.
    """
    kb = eval_set.knowledge_base
    wiring = wire(principal, _request(kb, profile))
    wiring.load_models()
    documents = dict(Chunk.objects.filter(knowledge_base=kb).values_list("pk", "document_id"))
    runs: dict[str, dict[str, list[str]]] = {stage: {} for stage in STAGES}
    measured = _Measured()
    queries = list(ranked_queries(eval_set, limit))
    for query in queries:
        result = wiring.pipeline.run(query.text, wiring.config, latency_budget=BUDGET_S)
        for stage, key in STAGES.items():
            runs[stage][query.external_id] = stage_ranking(result, key, documents)
        measured.add(result, measured.answerable)
        on_progress(1)
    for query in unanswerable_queries(eval_set, limit):
        result = wiring.pipeline.run(query.text, wiring.config, latency_budget=BUDGET_S)
        measured.add(result, measured.unanswerable)
        on_progress(1)
    qrels = _qrels(queries)
    return {
        "kb": kb.name,
        "eval_set": eval_set.name,
        "profile": {"name": wiring.profile.name, "version": wiring.profile.version},
        "queries": len(queries),
        "candidates": {"vector": wiring.config.vector_candidates, "bm25": wiring.config.bm25_candidates},
        "stages": {stage: _figures(qrels, run) for stage, run in runs.items()},
        "latency_ms": _latency(measured.latencies),
        "gate": _gate(measured, wiring, len(documents)),
        "degraded": list(measured.degraded.values()),
        "configuration": _configuration(wiring),
    }


@dataclass(slots=True)
class _Measured:
    """What a run leaves behind besides rankings.

    Attributes:
        answerable: the best score of each query that has an answer, before the gate; minus infinity: nothing was found.
        unanswerable: likewise of each query that has none.
        scales: of these scores.
    """

    latencies: list[float] = field(default_factory=list)
    answerable: list[float] = field(default_factory=list)
    unanswerable: list[float] = field(default_factory=list)
    scales: set[str] = field(default_factory=set)
    degraded: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, result: Result, scores: list[float]) -> None:
        scores.append(result.hits[0].score if result.hits else -math.inf)
        if result.hits:
            self.scales.add(result.score_scale)
        self.latencies.append(result.timings_ms["total"])
        self.degraded |= {degradation.code.value: degradation.as_dict() for degradation in result.degraded}


def ranked_queries(eval_set: EvalSet, limit: int | None = None) -> QuerySet[EvalQuery]:
    """The queries by which rankings are measured: those with a relevant document."""
    queries = EvalQuery.objects.filter(eval_set=eval_set, answerable=True, judgments__grade__gt=0)
    return queries.distinct().order_by("pk")[:limit]


def unanswerable_queries(eval_set: EvalSet, limit: int | None = None) -> QuerySet[EvalQuery]:
    """The queries by which only the gate is measured."""
    return EvalQuery.objects.filter(eval_set=eval_set, answerable=False).order_by("pk")[:limit]


def _gate(measured: _Measured, wiring: Wiring, chunk_count: int) -> dict[str, Any] | None:
    """How well the scores tell queries with an answer from those without, and what the default cut does to both.

    None for a set without queries of both kinds, and where the scores of one run are on several scales, or on none that is
    gated.
    """
    if not measured.unanswerable or not measured.answerable or len(measured.scales) != 1:
        return None
    scale = ScoreScale(next(iter(measured.scales)))
    if scale is ScoreScale.RRF:
        return None
    cut = default_cut(scale, wiring.config, chunk_count)
    answerable, unanswerable = np.array(measured.answerable), np.array(measured.unanswerable)
    return {
        "scale": scale.value,
        "cut": cut,
        "auroc": round(auroc(answerable, unanswerable), 4),
        "answerable_kept": round(float((answerable >= cut).mean()), 4),
        "unanswerable_passed": round(float((unanswerable >= cut).mean()), 4),
        "unanswerable": len(measured.unanswerable),
    }


def _request(kb: KnowledgeBase, profile: str) -> SearchRequest:
    """Deep enough for recall@20, and without the gate, which would hide what the reranker did."""
    overrides = {"top_k": DEPTH, "score_threshold": 0.0, "use_rerank": True}
    return SearchRequest(query="", knowledge_base_ids=[kb.pk], profile=profile, overrides=overrides)


def stage_ranking(result: Result, stage: str, documents: Mapping[int, int]) -> list[str]:
    """The documents of a stage, each at its best chunk's place."""
    ranked = sorted(
        (candidate.ranks[stage], candidate.chunk_id) for candidate in result.candidates if stage in candidate.ranks
    )
    found = dict.fromkeys(documents[chunk_id] for _, chunk_id in ranked if chunk_id in documents)
    return [str(document_id) for document_id in found]


def _qrels(queries: Sequence[EvalQuery]) -> dict[str, dict[str, int]]:
    names = {query.pk: query.external_id for query in queries}
    qrels: dict[str, dict[str, int]] = {}
    judgments = Judgment.objects.filter(query__in=names).values_list("query_id", "document_id", "grade")
    for query_id, document_id, grade in judgments:
        qrels.setdefault(names[query_id], {})[str(document_id)] = grade
    return qrels


def _figures(qrels: Mapping[str, Mapping[str, int]], run: Mapping[str, Sequence[str]]) -> dict[str, float]:
    if not qrels:
        return {}
    return {name: round(value, 4) for name, value in cast(dict[str, float], evaluate_run(qrels, run)).items()}


def _latency(latencies: Sequence[float]) -> dict[str, float]:
    if not latencies:
        return {}
    p50, p95 = np.percentile(latencies, [50, 95])
    return {"p50": round(float(p50), 2), "p95": round(float(p95), 2)}


def _configuration(wiring: Wiring) -> dict[str, Any]:
    return wiring.pipeline.scopes[0].config.as_dict()
