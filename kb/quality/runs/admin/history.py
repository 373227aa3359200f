"""The headline figures of runs, in lists of many, and how a run stands beside others of its set."""

from dataclasses import dataclass
from typing import Any

from django.db.models import FloatField, QuerySet, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Coalesce
from django.urls import reverse

from kb.quality.models import EvalRun
from kb.quality.runs.admin.report import Change, change_between, three_decimals

HEADLINES = {
    "recall_figure": ("stages", "reranked", "recall@5"),
    "ndcg_figure": ("stages", "reranked", "ndcg@10"),
    "auroc_figure": ("gate", "auroc"),
}
"""Where a report has the figures by which runs are told apart."""
NO_FIGURE = -1.0
"""Sorts runs without a figure below all others."""
LISTED = 8


def with_headlines(runs: QuerySet[EvalRun]) -> QuerySet[EvalRun]:
    """Runs with their headline figures; reports are long, and lists of runs defer them."""
    figures = {
        name: Coalesce(Cast(KT("__".join(("report", *keys))), FloatField()), Value(NO_FIGURE))
        for name, keys in HEADLINES.items()
    }
    annotated: QuerySet[EvalRun] = runs.annotate(**figures)
    return annotated


def headline(run: Any, name: str) -> float | None:
    """A headline figure of a run of `with_headlines`."""
    figure: float = getattr(run, name)
    return None if figure == NO_FIGURE else figure


@dataclass(frozen=True, slots=True)
class Standing:
    """A figure of another run, and how much better or worse the run of the page is."""

    label: str
    value: str
    change: Change | None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another finished run of the same set.

    Attributes:
        same_queries: whether it measured as many queries; the means of others cannot be held against each other.
    """

    run: EvalRun
    standings: tuple[Standing, ...]
    same_queries: bool
    compare_url: str


def neighbours_of(run: EvalRun, labels: dict[str, str]) -> tuple[Neighbour, ...]:
    """The latest other finished runs of a run's set; one query.

    Args:
        run: of `with_headlines`.
        labels: of the headline figures.
    """
    runs = EvalRun.objects.filter(eval_set=run.eval_set_id, status=EvalRun.Status.DONE).exclude(pk=run.pk)
    latest = with_headlines(runs).select_related("profile").defer("report", "configuration")
    return tuple(_neighbour(run, other, labels) for other in latest.order_by("-created_at", "-pk")[:LISTED])


def _neighbour(run: EvalRun, other: EvalRun, labels: dict[str, str]) -> Neighbour:
    same_queries = other.done == run.done
    standings = []
    for name, label in labels.items():
        before, after = headline(other, name), headline(run, name)
        change = change_between(before, after) if same_queries else None
        standings.append(Standing(label, three_decimals(before), change))
    return Neighbour(other, tuple(standings), same_queries, compare_url(*sorted((run.pk, other.pk))))


def compare_url(before: int, after: int) -> str:
    return f"{reverse('admin:compare_runs')}?a={before}&b={after}"
