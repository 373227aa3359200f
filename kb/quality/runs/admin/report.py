"""What a finished run measured: for its page, and of each query as CSV."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _, ngettext

from kb.profiles.admin.choices import setting_label, value_text
from kb.profiles.services import scorer_text
from kb.quality.models import EvalRun, EvalRunQuery
from kb.search.admin.labels import notices
from kb.search.services.baseline import beyond_usual
from retrieval.errors import Degradation

CHANNELS = ("bm25", "vector")
LATER_STAGES = ("fused", "reranked")
STAGES = (*CHANNELS, *LATER_STAGES)
METRICS = ("recall@5", "recall@20", "hit_rate@1", "mrr@10", "ndcg@10")
LEADING = "ndcg@10"
SMALLEST_DIFFERENCE = 0.0005  # what rounds to 0 in the three decimals that are shown is no difference
COLOURS = {
    "bm25": "var(--color-orange-400)",
    "vector": "var(--color-primary-500)",
    "fused": "var(--color-green-500)",
    "reranked": "var(--color-red-400)",
}
HIGH = 0.5
AXIS = "#9ca3af"  # the theme's own, legible on light and dark


@dataclass(frozen=True, slots=True)
class Change:
    """A figure against that of the stage before: `direction` is "up", "down" or "same"."""

    direction: str
    description: str


def metric_label(metric: str) -> str:
    return {
        "recall@5": _("Recall@5"),
        "recall@20": _("Recall@20"),
        "hit_rate@1": _("Hit rate@1"),
        "mrr@10": _("MRR@10"),
        "ndcg@10": _("NDCG@10"),
    }.get(metric, metric)


def ranking_label(stage: str) -> str:
    return {"bm25": _("BM25"), "vector": _("Vector"), "fused": _("Fused"), "reranked": _("Reranked")}.get(stage, stage)


def role_label(role: str) -> str:
    """What a model of a run was for."""
    return {
        "embedding": _("Embedding"),
        "tokenizer": _("Tokenizer"),
        "reranker": _("Reranker"),
        "rerank_server": _("Rerank server"),
        "llm": _("Chat model"),
    }.get(role, role)


def model_text(models: str) -> str:
    """What `models_of` has for a role."""
    return ", ".join(map(scorer_text, models.split(", ")))


def lost_label(stage: str) -> str:
    """What became of the relevant passages of a miss, by the stage that lost the last of them."""
    return {
        "unanchored": _("Its judged passages are no longer in the knowledge base"),
        "channels": _("No channel found it"),
        "fusion": _("The fusion ranked it too low for the reranker"),
        "rerank": _("The reranker ranked it too low"),
        "gate": _("Below the relevance threshold"),
        "per_source": _("Over the cap of its kind of source"),
        "top_k": _("Below the last result"),
    }.get(stage, stage)


def three_decimals(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def signed(difference: float) -> str:
    return f"{difference:+.3f}".replace("-", "\N{MINUS SIGN}")


def percentage(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


def change_between(before: float | None, after: float | None) -> Change | None:
    """A gain or a loss as text and with its sign; None where one of the figures is missing."""
    if before is None or after is None:
        return None
    difference = after - before
    if abs(difference) < SMALLEST_DIFFERENCE:
        return Change("same", _("unchanged"))
    if difference > 0:
        return Change("up", _("%(difference)s gained") % {"difference": signed(difference)})
    return Change("down", _("%(difference)s lost") % {"difference": signed(difference)})


def stage_before(stages: Mapping[str, Mapping[str, float]], stage: str) -> str:
    """The stage that a stage must be better than; blank for a channel, which starts from nothing.

    The reranker follows the fusion, and the fusion is worth its while only if it is better than the better channel.
    """
    if stage == "reranked":
        return "fused"
    if stage != "fused":
        return ""
    return max(CHANNELS, key=lambda channel: stages.get(channel, {}).get(LEADING, 0.0))


def stage_rows(stages: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The table of stages by metrics, from the figures of a run's report, 0 to 1.

    `against` names the stage that one is measured against; blank for a channel.
    """
    rows = []
    for stage in filter(stages.get, STAGES):
        after, against = stages[stage], stage_before(stages, stage)
        before = stages.get(against, {})
        cells = [
            {
                "metric": metric,
                "label": metric_label(metric),
                "value": three_decimals(after.get(metric)),
                "change": change_between(before.get(metric), after.get(metric)),
            }
            for metric in METRICS
        ]
        rows.append({"stage": stage, "label": ranking_label(stage), "against": ranking_label(against), "cells": cells})
    return rows


def verdicts(stages: Mapping[str, Mapping[str, float]], moved: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    """Whether the fusion and the reranker gain or lose, by the leading metric.

    `moved` has, by stage, how many queries it raised and lowered.
    """
    sentences = {
        ("fused", "up"): _("The fusion gains: %(metric)s %(difference)s over the better channel, %(before)s."),
        ("fused", "down"): _(
            "The fusion loses: %(metric)s %(difference)s against the better channel, %(before)s. Try other weights."
        ),
        ("fused", "same"): _("The fusion changes nothing: %(metric)s is that of the better channel, %(before)s."),
        ("reranked", "up"): _("The reranker gains: %(metric)s %(difference)s over the fusion."),
        ("reranked", "down"): _(
            "The reranker loses: %(metric)s %(difference)s against the fusion. Try another one, or more candidates."
        ),
        ("reranked", "same"): _("The reranker changes nothing: %(metric)s is that of the fusion."),
    }
    found = []
    for stage in LATER_STAGES:
        against = stage_before(stages, stage)
        change = change_between(stages.get(against, {}).get(LEADING), stages.get(stage, {}).get(LEADING))
        if change is not None:
            figures = {
                "metric": metric_label(LEADING),
                "difference": signed(stages[stage][LEADING] - stages[against][LEADING]),
                "before": ranking_label(against),
            }
            message = sentences[stage, change.direction] % figures
            found.append({"stage": stage, "change": change, "description": message, "moved": moved[stage]})
    return found


def chart_of(stages: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The figures as bars, JSON for Chart.js; the axis begins higher, at `begins_at`, where all are high and differ."""
    values = {value for figures in stages.values() for value in figures.values()}
    least = min(values, default=0.0)
    begins_at = max(math.floor(10 * least) - 1, 0) / 10 if least >= HIGH and len(values) > 1 else 0.0
    datasets = [
        {
            "label": ranking_label(stage),
            "data": [stages[stage].get(metric) for metric in METRICS],
            "backgroundColor": COLOURS[stage],
            "borderRadius": 3,
            "maxBarThickness": 28,
        }
        for stage in STAGES
        if stages.get(stage)
    ]
    y_axis = {"min": begins_at, "max": 1, "stepSize": 0.1 if begins_at else 0.2}
    return {
        "data": json.dumps({"labels": [metric_label(metric) for metric in METRICS], "datasets": datasets}),
        "options": chart_options({"grid": {"display": False}}, y_axis, boxWidth=10, boxHeight=10),
        "begins_at": begins_at,
    }


def chart_options(x_axis: Mapping[str, Any], y_axis: Mapping[str, Any], **legend: Any) -> str:
    """Options that charts of these pages share, as JSON for Chart.js; `y_axis` takes `stepSize` besides its own."""
    ticks = {"color": AXIS}
    bounds = dict(y_axis)
    y_ticks = {**ticks, "stepSize": bounds.pop("stepSize")} if "stepSize" in bounds else ticks
    labels = {"color": AXIS, **(legend or {"usePointStyle": True, "boxHeight": 8})}
    options = {
        "maintainAspectRatio": False,
        "animation": False,
        "plugins": {"legend": {"display": True, "position": "bottom", "labels": labels}},
        "scales": {"x": {"ticks": ticks, **x_axis}, "y": {**bounds, "ticks": y_ticks, "grid": {"display": True}}},
    }
    return json.dumps(options)


def gate_figures(gate: Mapping[str, Any] | None) -> list[tuple[str, str, str, str]]:
    """Name, label, value and meaning of each figure of the gate; none for a set without both kinds of query."""
    if not gate:
        return []
    return [
        (
            "auroc",
            _("AUROC"),
            three_decimals(gate.get("auroc")),
            _("How well scores tell the two kinds of query apart: 1 is perfect, 0.5 is chance."),
        ),
        (
            "answerable_kept",
            _("Kept"),
            percentage(gate.get("answerable_kept")),
            _("Of the queries that have an answer, those above the threshold."),
        ),
        (
            "false_answer_rate",
            _("False answers"),
            percentage(gate.get("false_answer_rate", gate.get("unanswerable_passed"))),
            _("Of the queries that have no answer, those above the threshold all the same."),
        ),
        (
            "cut",
            _("Threshold"),
            three_decimals(gate.get("cut")),
            _("The minimum score that passes, on the scale “%(scale)s”.")
            % {"scale": scorer_text(gate.get("scale", ""))},
        ),
    ]


def latency_figures(latency: Mapping[str, float]) -> list[tuple[str, str, str, str]]:
    labels = [
        ("p50", _("Median (p50)"), _("Half of the queries took no longer.")),
        ("p95", _("p95"), _("19 of 20 queries took no longer.")),
    ]
    return [(name, label, f"{latency[name]:.1f} ms", meaning) for name, label, meaning in labels if name in latency]


def run_notices(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What searches of the run did without beyond the baseline; a code of another version shows as it is written."""
    return notices([Degradation.from_dict(each) for each in beyond_usual(report.get("degraded") or ())], (), {})


def remarks(report: Mapping[str, Any]) -> Iterator[str]:
    if report.get("final_stage") == "fused":
        yield _("No reranker has answered, so the results stood in the order of the fusion.")
    elif report.get("rerankers") == []:
        yield _("The reranker was off: its figures are those of the results, which stood in the order of the vectors.")
    if count := report.get("unanchored_count"):
        message = ngettext(
            "%(count)d relevant passage is no longer in the knowledge base, and counts as missed: import its document "
            "again, or judge the passage that has taken its place.",
            "%(count)d relevant passages are no longer in the knowledge base, and count as missed: import their documents "
            "again, or judge the passages that have taken their place.",
            count,
        )
        yield message % {"count": count}


def settings_of(run: EvalRun) -> list[dict[str, Any]]:
    """The resolved settings, those that the run or its profile set first."""
    origins = dict.fromkeys(run.profile.settings, _("profile")) | dict.fromkeys(run.overrides, _("unsaved"))
    rows = [
        {
            "name": name,
            "label": setting_label(name),
            "value": value_text(name, value),
            "origin": origins.get(name, _("environment")),
            "is_inherited": name not in origins,
        }
        for name, value in run.configuration.items()
    ]
    return sorted(rows, key=itemgetter("is_inherited"))


ROWS_AT_ONCE = 500
COLUMNS = (
    "id",
    "query",
    "answerable",
    "lost_at",
    *(f"{stage} first relevant" for stage in STAGES),
    *(f"{stage} {metric}" for stage in STAGES for metric in METRICS),
    "best_score",
    "score_scale",
    "milliseconds",
)


def csv_rows(queries: QuerySet[EvalRunQuery]) -> Iterator[Sequence[Any]]:
    """The heads of the columns, in the names of `manage.py evaluate --json`, and a row for each query."""
    yield COLUMNS
    for query in queries.iterator(chunk_size=ROWS_AT_ONCE):
        yield (
            query.external_id,
            query.text,
            "yes" if query.answerable else "no",
            query.lost_at,
            *(query.first_relevant.get(stage, "") for stage in STAGES),
            *(query.figures.get(stage, {}).get(metric, "") for stage in STAGES for metric in METRICS),
            "" if query.best_score is None else query.best_score,
            query.score_scale,
            round(query.latency_ms, 2),
        )
