"""The regression gate: which figures of an evaluation are below what they must be, and the queries that it cost."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.utils.translation import gettext as _

from kb.base.errors import Rejected

TOLERANCE = 0.005
LEADING = "recall@5"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A figure below its floor; None: there is no such figure any more."""

    metric: str
    figure: float | None
    floor: float

    def __str__(self) -> str:
        figure = "missing" if self.figure is None else f"{self.figure:.4f}"
        return f"{self.metric}: {figure}, must be at least {self.floor:.4f}"


@dataclass(frozen=True, slots=True)
class LostQuery:
    """A query that finds less of what is relevant among the first five than it must; 0 to 1."""

    external_id: str
    recall: float
    before: float


def read_baseline(path: Path) -> dict[str, Any]:
    """What an earlier `manage.py evaluate --json` printed.

    Raises:
        Rejected: the file cannot be read, or is no such report.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = _("The baseline %(path)s cannot be read (%(reason)s): make one with `manage.py evaluate … --json`.")
        raise Rejected("baseline_unreadable", message % {"path": path, "reason": error}) from error
    if not isinstance(report, dict) or not isinstance(report.get("stages"), dict) or "queries" not in report:
        message = _("The baseline %(path)s is no report of an evaluation: make one with `manage.py evaluate … --json`.")
        raise Rejected("baseline_unreadable", message % {"path": path})
    return report


def below_recall(report: Mapping[str, Any], floor: float) -> list[Shortfall]:
    """Whether recall@5 after the reranker, or after the fusion where none has answered, is below a floor."""
    stage = report["final_stage"]
    figure = report["stages"][stage].get(LEADING)
    is_below = figure is None or not figure >= floor  # nor is anything at least NaN
    return [Shortfall(f"{stage} {LEADING}", figure, floor)] if is_below else []


def below_baseline(report: Mapping[str, Any], baseline: Mapping[str, Any], tolerance: float) -> list[Shortfall]:
    """The figures that are lower than an earlier report's by more than a tolerance.

    Compared are every metric of every stage and, where the earlier report has one, the gate: AUROC, the share of the
    answerable queries that it keeps and that of the unanswerable ones that it refuses.

    Raises:
        Rejected: the earlier report is of other queries.
    """
    if report["queries"] != baseline["queries"]:
        message = _("The baseline is of %(before)s queries, and these are %(after)s: make a new one with --json.")
        raise Rejected("baseline_of_others", message % {"before": baseline["queries"], "after": report["queries"]})
    now = dict(_figures(report))
    floors = {metric: round(figure - tolerance, 6) for metric, figure in _figures(baseline)}
    return [
        Shortfall(metric, now.get(metric), floor)
        for metric, floor in floors.items()
        if metric not in now or not now[metric] >= floor
    ]


def lost_queries(report: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> list[LostQuery]:
    """The queries whose recall@5 is lower than in an earlier report, or, without one, than 1; the most lost first."""
    before = (baseline or {}).get("incomplete", {})
    lost = [
        LostQuery(external_id, recall, before.get(external_id, 1.0))
        for external_id, recall in report["incomplete"].items()
        if recall < before.get(external_id, 1.0)
    ]
    return sorted(lost, key=lambda query: query.recall - query.before)


def _figures(report: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for stage, figures in report["stages"].items():
        for metric, figure in figures.items():
            yield f"{stage} {metric}", figure
    if gate := report.get("gate"):
        yield "gate auroc", gate["auroc"]
        yield "gate answerable_kept", gate["answerable_kept"]
        yield "gate unanswerable_refused", round(1 - gate["unanswerable_passed"], 4)
