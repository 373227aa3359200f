"""What a run over a set says: figures by stage, the gate, latency, and the queries that were lost."""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.base.errors import Rejected
from kb.base.shapes import as_values
from kb.profiles.models import RetrievalProfile
from kb.quality.models import EvalRun, EvalRunQuery, EvalSet
from kb.quality.runs.services.run import LOST_AT, SEARCHES_AT_ONCE, STAGES, Measurement
from kb.search.services.search import models_in_use
from retrieval.errors import Degradation
from retrieval.eval.metrics import auroc
from retrieval.rerankers.cross_encoder import CrossEncoderReranker, HttpReranker
from retrieval.selection import ScoreScale

MOST_LISTED = 50
QUOTE_CHARS = 200
# The roles of models that rerank, and what their links in the chain are called.
RERANKERS = {"reranker": CrossEncoderReranker.name, "rerank_server": HttpReranker.name}


def evaluate(
    principal: Principal,
    eval_set: EvalSet,
    *,
    profile: RetrievalProfile | None = None,
    overrides: Mapping[str, Any] | None = None,
    limit: int | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Measures bm25, vector, fused and reranked (before the gate) by the judgments of a set with its knowledge base.

    The arguments are those of `start_run`; `on_progress` is called with how many further queries are done, at times 0,
    and what it raises ends the evaluation. Returns the JSON that `manage.py evaluate --json` prints; figures are 0 to
    1, latencies milliseconds. Raises as `wiring_of`.
    """
    own = {"overrides": dict(overrides or {}), "query_limit": limit, "embedding_model": ""}
    measurement = Measurement(principal, EvalRun(eval_set=eval_set, profile=profile, **own))
    measurement.run(on_progress)
    return report_of(measurement)


def report_as_json(report: Mapping[str, Any]) -> dict[str, Any]:
    """A stored report, with its degradations in the language in force."""
    if not report.get("degraded"):
        return dict(report)
    return {**report, "degraded": as_values(list(map(Degradation.from_dict, report["degraded"])))}


def report_of(measurement: Measurement) -> dict[str, Any]:
    run, wiring, rows = measurement.eval_run, measurement.wiring, measurement.rows
    ranked = [row for row in rows if row.answerable]
    gate = _gate(measurement)
    final = final_stage(measurement)
    # That of the other queries is 1
    recalls = {row.external_id: row.figures[final]["recall@5"] for row in ranked if row.figures}
    return {
        "kb": run.eval_set.knowledge_base.name,
        "eval_set": run.eval_set.name,
        "profile": {"name": wiring.profile.name, "version": wiring.profile.version},
        "overrides": dict(run.overrides),
        "queries": len(ranked),
        "candidates": {"vector": wiring.config.vector_candidates, "bm25": wiring.config.bm25_candidates},
        "stages": {stage: _means(ranked, stage) for stage in STAGES},
        "final_stage": final,
        "latency_ms": _latency([row.latency_ms for row in rows]),
        "searches_at_once": SEARCHES_AT_ONCE,
        "gate": gate,
        "false_answers": [] if gate is None else _false_answers(rows, gate["cut"]),
        "degraded": list(measurement.degraded.values()),
        **_misses(ranked),
        "incomplete": {external_id: round(recall, 4) for external_id, recall in recalls.items() if recall < 1},
        **_unanchored(measurement),
        "models": answered_models(model_ids(measurement), measurement.rerankers),
        "rerankers": sorted(measurement.rerankers),
        "kb_version": measurement.version.version,
        "content_version": measurement.version.content_version,
        "configuration": wiring.pipeline.scopes[0].config.as_dict(),
    }


def final_stage(measurement: Measurement) -> str:
    """The stage that made the order of the results: the fusion where no reranker has answered."""
    return "reranked" if measurement.rerankers or not measurement.config.use_rerank else "fused"


def models_of(run: EvalRun) -> dict[str, str]:
    """By role what answered in a run, once that is known; a reranker that is no model by the name of its scale."""
    answered = run.report.get("rerankers")
    if answered is None:
        return dict(run.model_ids)
    models = answered_models(run.model_ids, answered)
    by_words = [each for each in answered if each not in RERANKERS.values()]
    reranker = ", ".join(filter(None, [models.get("reranker"), *by_words]))
    return models | ({"reranker": reranker} if reranker else {})


def answered_models(models: Mapping[str, str], rerankers: Collection[str]) -> dict[str, str]:
    """Without the rerankers that were to be asked, and did not answer."""
    return {role: model for role, model in models.items() if RERANKERS.get(role) in {None, *rerankers}}


def model_ids(measurement: Measurement) -> dict[str, str]:
    run, in_use = measurement.eval_run, models_in_use()
    kb = run.eval_set.knowledge_base
    kinds = {type(link) for link in measurement.wiring.links}
    models = {
        "embedding": run.embedding_model or kb.embedding_model,
        "tokenizer": kb.tokenizer_id,
        "llm": in_use["llm"],
        "reranker": in_use["reranker"] if CrossEncoderReranker in kinds else "",
        "rerank_server": in_use["rerank_server"] if HttpReranker in kinds else "",
    }
    return {role: model for role, model in models.items() if model}


def _means(rows: Sequence[EvalRunQuery], stage: str) -> dict[str, float]:
    figures = [row.figures[stage] for row in rows if row.figures]
    return {
        metric: round(sum(each[metric] for each in figures) / len(figures), 4)
        for metric in (figures[0] if figures else ())
    }


def _latency(latencies: Sequence[float]) -> dict[str, float]:
    if not latencies:
        return {}
    p50, p95 = np.percentile(latencies, [50, 95])
    return {"p50": round(float(p50), 2), "p95": round(float(p95), 2)}


def _gate(measurement: Measurement) -> dict[str, Any] | None:
    """How well the scores tell queries with an answer from those without, and what the cut in force does to both.

    None without queries of both kinds, and where the scores are on several scales, or on none that is gated.
    """
    rows = measurement.rows
    scales = {row.score_scale for row in rows if row.score_scale}
    # What found nothing scores minus infinity
    scores = [(row.answerable, -math.inf if row.best_score is None else row.best_score) for row in rows]
    answerable, unanswerable = (np.array([score for kind, score in scores if kind is each]) for each in (True, False))
    if not answerable.size or not unanswerable.size or len(scales) != 1 or ScoreScale.RRF in scales:
        return None
    (scale,) = scales
    cut = measurement.cut(scale)
    passed = round(float((unanswerable >= cut).mean()), 4)
    return {
        "scale": scale,
        "cut": cut,
        "auroc": round(auroc(answerable, unanswerable), 4),
        "answerable_kept": round(float((answerable >= cut).mean()), 4),
        "unanswerable_passed": passed,
        "false_answer_rate": passed,
        "unanswerable": len(unanswerable),
    }


def _false_answers(rows: Sequence[EvalRunQuery], cut: float) -> list[dict[str, Any]]:
    passed = [(row.best_score, row) for row in rows if not row.answerable and row.best_score is not None]
    passed = sorted((pair for pair in passed if pair[0] >= cut), key=lambda pair: -pair[0])
    return [{"external_id": row.external_id, "text": row.text, "score": score} for score, row in passed[:MOST_LISTED]]


def _misses(rows: Sequence[EvalRunQuery]) -> dict[str, Any]:
    missed = {stage: [row for row in rows if row.lost_at == stage] for stage in LOST_AT}
    return {
        "miss_counts": {stage: len(lost) for stage, lost in missed.items() if lost},
        "misses": {
            stage: [
                {"external_id": row.external_id, "text": row.text, "first_relevant": row.first_relevant}
                for row in lost[:MOST_LISTED]
            ]
            for stage, lost in missed.items()
            if lost
        },
    }


def _unanchored(measurement: Measurement) -> dict[str, Any]:
    names = {query.pk: query.external_id for query in measurement.queries}
    found = [judgment for of_query in measurement.judged.values() for judgment in of_query.unanchored]
    listed = [
        {
            "external_id": names[judgment.query_id],
            "source": judgment.source,
            "quote": judgment.quote[:QUOTE_CHARS],
            "grade": judgment.grade,
        }
        for judgment in found[:MOST_LISTED]
    ]
    return {"unanchored_count": len(found), "unanchored": listed}


TOLERANCE = 0.005
LEADING = "recall@5"


def read_baseline(path: Path) -> dict[str, Any]:
    """What an earlier `manage.py evaluate --json` printed; `Rejected` where the file cannot be read or is no report."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = _("The baseline %(path)s cannot be read (%(reason)s): make one with `manage.py evaluate … --json`.")
        raise Rejected("baseline_unreadable", message, path=path, reason=error) from error
    if not isinstance(report, dict) or not isinstance(report.get("stages"), dict) or "queries" not in report:
        message = _("The baseline %(path)s is no report of an evaluation: make one with `manage.py evaluate … --json`.")
        raise Rejected("baseline_unreadable", message, path=path)
    return report


def below_recall(report: Mapping[str, Any], floor: float) -> list[str]:
    """Says whether recall@5 after the reranker, or after the fusion where none has answered, is below a floor."""
    return _below(dict(_figures(report)), {f"{report['final_stage']} {LEADING}": floor})


def below_baseline(report: Mapping[str, Any], baseline: Mapping[str, Any], tolerance: float) -> list[str]:
    """Says which figures are lower than an earlier report's by more than a tolerance.

    Compared are every metric of every stage and, where the earlier report has one, the gate: AUROC, the share of the
    answerable queries that it keeps and that of the unanswerable ones that it refuses. Raises `Rejected` where the
    earlier report is of other queries.
    """
    if report["queries"] != baseline["queries"]:
        raise Rejected(
            "baseline_of_others",
            _("The baseline is of %(before)s queries, and these are %(after)s: make a new one with --json."),
            before=baseline["queries"],
            after=report["queries"],
        )
    floors = {metric: round(figure - tolerance, 6) for metric, figure in _figures(baseline)}
    return _below(dict(_figures(report)), floors)


def _below(figures: Mapping[str, float], floors: Mapping[str, float]) -> list[str]:
    return [
        f"{metric}: {f'{figures[metric]:.4f}' if metric in figures else 'missing'}, must be at least {floor:.4f}"
        for metric, floor in floors.items()
        if not figures.get(metric, math.nan) >= floor  # nothing is at least NaN
    ]


def lost_queries(report: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> list[tuple[str, float, float]]:
    """The queries whose recall@5 is lower than in an earlier report, or, without one, than 1; the most lost first.

    Each has its id, its recall in the earlier report, and that in this one.
    """
    before = (baseline or {}).get("incomplete", {})
    found = ((key, before.get(key, 1.0), recall) for key, recall in report["incomplete"].items())
    return sorted((each for each in found if each[2] < each[1]), key=lambda each: each[2] - each[1])


def _figures(report: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for stage, figures in report["stages"].items():
        for metric, figure in figures.items():
            yield f"{stage} {metric}", figure
    if gate := report.get("gate"):
        yield "gate auroc", gate["auroc"]
        yield "gate answerable_kept", gate["answerable_kept"]
        yield "gate unanswerable_refused", round(1 - gate["unanswerable_passed"], 4)


def require_done(run: EvalRun) -> None:
    """Raises `Rejected` unless a run has measured all of its set."""
    if run.status != EvalRun.Status.DONE:
        raise Rejected(
            "run_not_done",
            _("Run %(run)d is not done (%(status)s): wait for it, or choose another one."),
            run=run.pk,
            status=run.get_status_display(),
        )
