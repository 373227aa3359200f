"""Evaluation sets run through the pipeline that every search runs: what each stage finds, loses and takes."""

from kb.quality.runs.services.report import evaluate
from kb.quality.runs.services.run import query_count, ranked_queries, unanswerable_queries
from kb.quality.runs.services.runs import cancel_run, evaluate_as_run, execute_run, start_run, sweep_runs

__all__ = [
    "cancel_run",
    "evaluate",
    "evaluate_as_run",
    "execute_run",
    "query_count",
    "ranked_queries",
    "start_run",
    "sweep_runs",
    "unanswerable_queries",
]
