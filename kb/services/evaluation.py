"""Runs an evaluation set through the pipeline that every search runs, and measures each stage."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from kb.conf import Wiring
from kb.models import Chunk, EvalQuery, EvalSet, Judgment, KnowledgeBase, Principal
from kb.services.search import SearchRequest, wire
from retrieval.eval.metrics import evaluate_run
from retrieval.types import Result

STAGES = {"bm25": "bm25", "vector": "vector", "fused": "fused", "reranked": "rerank"}
DEPTH = 20


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
        limit: only the first so many queries.
        on_progress: told how many further queries are done.

    Returns:
        The JSON that `manage.py evaluate --json` prints; figures are 0 to 1, latencies milliseconds.
    """
    kb = eval_set.knowledge_base
    wiring = wire(principal, _request(kb, profile))
    queries = list(
        EvalQuery.objects.filter(eval_set=eval_set, answerable=True, judgments__grade__gt=0)
        .distinct()
        .order_by("pk")[:limit]
    )
    documents = dict(Chunk.objects.filter(knowledge_base=kb).values_list("pk", "document_id"))
    runs: dict[str, dict[str, list[str]]] = {stage: {} for stage in STAGES}
    latencies = []
    degraded: dict[str, dict[str, str]] = {}
    for query in queries:
        result = wiring.pipeline.run(query.text, wiring.config)
        for stage, key in STAGES.items():
            runs[stage][query.external_id] = stage_ranking(result, key, documents)
        latencies.append(result.timings_ms["total"])
        degraded |= {degradation.code.value: degradation.as_dict() for degradation in result.degraded}
        on_progress(1)
    qrels = _qrels(queries)
    return {
        "kb": kb.name,
        "eval_set": eval_set.name,
        "profile": {"name": wiring.profile.name, "version": wiring.profile.version},
        "queries": len(queries),
        "candidates": {"vector": wiring.config.vector_candidates, "bm25": wiring.config.bm25_candidates},
        "stages": {stage: _figures(qrels, run) for stage, run in runs.items()},
        "latency_ms": _latency(latencies),
        "gate": None,
        "degraded": list(degraded.values()),
        "configuration": _configuration(wiring),
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
