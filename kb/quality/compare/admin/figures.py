"""Two runs of a set in words: each figure before and after, what chance would explain, and the queries won and lost."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.quality.compare.admin.queries import QueryList, here, query_list
from kb.quality.compare.admin.settings import SettingChange, setting_changes
from kb.quality.compare.services import Comparison, MetricDifference, is_reranked
from kb.quality.runs.admin.report import (
    AXIS,
    LEADING,
    METRICS,
    SMALLEST_DIFFERENCE,
    metric_label,
    percentage,
    ranking_label,
    signed,
    three_decimals,
)
from kb.web.admin.rows import Choice
from retrieval.eval.significance import SIGNIFICANCE_LEVEL

COLOURS = ("var(--color-base-400)", "var(--color-primary-500)")
# Where less is better.
COSTS = frozenset({"false_answer_rate", "p50", "p95"})
NEUTRAL = frozenset({"cut"})


@dataclass(frozen=True, slots=True)
class FigureCell:
    """A figure of both runs.

    Attributes:
        direction: "up" for better, "down" for worse, "same" for what rounds to no difference or is neither.
        chance: whether chance would explain the difference, in words; blank where there is none, or it was not tested.
        is_significant: chance would not.
    """

    metric: str
    label: str
    before: str
    after: str
    difference: str
    direction: str
    chance: str
    is_significant: bool


@dataclass(frozen=True, slots=True)
class StageFigures:
    stage: str
    label: str
    cells: tuple[FigureCell, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the second run is better by one metric, in a sentence."""

    direction: str
    words: str


@dataclass(frozen=True, slots=True)
class ShownRuns:
    """What the page says of two runs."""

    stages: tuple[StageFigures, ...]
    verdicts: tuple[Verdict, ...]
    metrics: tuple[Choice, ...]
    chart: Mapping[str, str]
    others: tuple[FigureCell, ...]
    warnings: tuple[str, ...]
    changes: tuple[SettingChange, ...]
    queries: QueryList


def shown_runs(comparison: Comparison, asked: QueryDict) -> ShownRuns:
    """What the page shows.

    Args:
        comparison: of two runs, each with its set and profile.
        asked: `metric` chooses the chart's, `list` the queries, `page` their page.
    """
    metric = asked.get("metric", "")
    metric = metric if metric in METRICS else LEADING
    return ShownRuns(
        stages=tuple(
            StageFigures(stage, ranking_label(stage), tuple(_cell(*each) for each in metrics.items()))
            for stage, metrics in comparison.stages.items()
        ),
        verdicts=verdicts(comparison.stages.get("reranked", {})),
        metrics=tuple(Choice(each, metric_label(each), here(asked, metric=each), each == metric) for each in METRICS),
        chart=chart_of(comparison, metric),
        others=tuple(_cell(*each) for each in (*comparison.gate.items(), *comparison.latency.items())),
        warnings=tuple(_warnings(comparison)),
        changes=setting_changes(comparison.settings),
        queries=query_list(comparison, asked),
    )


def figure_label(name: str) -> str:
    return {
        "auroc": _("AUROC of the gate"),
        "answerable_kept": _("Kept by the gate"),
        "false_answer_rate": _("False answers"),
        "cut": _("Cut"),
        "p50": _("Median time, ms"),
        "p95": _("p95 time, ms"),
    }.get(name) or metric_label(name)


def _cell(name: str, figure: MetricDifference) -> FigureCell:
    if name in {"p50", "p95"}:
        before, after, difference = f"{figure.before:.1f}", f"{figure.after:.1f}", f"{figure.difference:+.1f}"
        difference = difference.replace("-", "\N{MINUS SIGN}")
    elif name in {"answerable_kept", "false_answer_rate"}:
        before, after, difference = percentage(figure.before), percentage(figure.after), signed(figure.difference)
    else:
        before, after, difference = (
            three_decimals(figure.before),
            three_decimals(figure.after),
            signed(figure.difference),
        )
    is_same = abs(figure.difference) < SMALLEST_DIFFERENCE
    return FigureCell(
        metric=name,
        label=figure_label(name),
        before=before,
        after=after,
        difference=_("unchanged") if is_same else difference,
        direction=_direction(name, figure.difference),
        chance="" if is_same else _chance(figure.p_value),
        is_significant=figure.p_value is not None and figure.p_value < SIGNIFICANCE_LEVEL,
    )


def _direction(name: str, difference: float) -> str:
    if abs(difference) < SMALLEST_DIFFERENCE or name in NEUTRAL:
        return "same"
    return "up" if (difference > 0) != (name in COSTS) else "down"


def p_value_in_words(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _chance(p_value: float | None) -> str:
    if p_value is None:
        return ""
    if p_value < SIGNIFICANCE_LEVEL:
        return _("beyond chance, %(p)s") % {"p": p_value_in_words(p_value)}
    return _("chance may be all, %(p)s") % {"p": p_value_in_words(p_value)}


def verdicts(metrics: Mapping[str, MetricDifference]) -> tuple[Verdict, ...]:
    """Whether the second run is better, by the metrics of its last stage that matter most."""
    return tuple(_verdict(name, metrics[name]) for name in (LEADING, "recall@5") if name in metrics)


def _verdict(name: str, figure: MetricDifference) -> Verdict:
    known = {
        "metric": metric_label(name),
        "before": three_decimals(figure.before),
        "after": three_decimals(figure.after),
        "difference": signed(figure.difference),
        "p": p_value_in_words(1.0 if figure.p_value is None else figure.p_value),
    }
    if abs(figure.difference) < SMALLEST_DIFFERENCE:
        return Verdict("same", _("No difference: %(metric)s is %(after)s in both.") % known)
    if figure.p_value is None or figure.p_value >= SIGNIFICANCE_LEVEL:
        words = _(
            "No difference that chance would not explain: %(metric)s %(difference)s (%(before)s → %(after)s, %(p)s)."
        )
        return Verdict("same", words % known)
    if figure.difference > 0:
        words = _("B is better: %(metric)s %(difference)s (%(before)s → %(after)s), more than chance explains (%(p)s).")
        return Verdict("up", words % known)
    words = _("B is worse: %(metric)s %(difference)s (%(before)s → %(after)s), more than chance explains (%(p)s).")
    return Verdict("down", words % known)


def chart_of(comparison: Comparison, metric: str) -> dict[str, str]:
    """Bars of one metric by stage, A beside B, as JSON for Chart.js: `data` and `options`."""
    stages = list(comparison.stages)
    figures = [comparison.stages[stage][metric] for stage in stages]
    runs = (f"A · {comparison.before.profile}", f"B · {comparison.after.profile}")
    values = ([each.before for each in figures], [each.after for each in figures])
    datasets = [
        {
            "label": label,
            "data": data,
            "backgroundColor": colour,
            "borderRadius": 3,
            "maxBarThickness": 36,
            "pointStyle": "rect",
        }
        for label, data, colour in zip(runs, values, COLOURS, strict=True)
    ]
    return {
        "data": json.dumps({"labels": [ranking_label(stage) for stage in stages], "datasets": datasets}),
        "options": json.dumps(chart_options({"grid": {"display": False}}, {"min": 0, "max": 1, "stepSize": 0.2})),
    }


def chart_options(x_axis: Mapping[str, Any], y_axis: Mapping[str, Any]) -> dict[str, Any]:
    """Options of Chart.js that charts of these pages share.

    Args:
        x_axis: options of the horizontal one.
        y_axis: of the vertical one: `min`, `max` and `stepSize`.
    """
    ticks = {"color": AXIS}
    y_ticks = {**ticks, "stepSize": y_axis["stepSize"]} if "stepSize" in y_axis else ticks
    bounds = {name: value for name, value in y_axis.items() if name != "stepSize"}
    return {
        "maintainAspectRatio": False,
        "animation": False,
        "plugins": {
            "legend": {
                "display": True,
                "position": "bottom",
                "labels": {"color": AXIS, "usePointStyle": True, "boxHeight": 8},
            }
        },
        "scales": {
            "x": {"ticks": ticks, **x_axis},
            "y": {**bounds, "ticks": y_ticks, "grid": {"display": True}},
        },
    }


def _warnings(comparison: Comparison) -> list[str]:
    """What a reader should know before believing the figures."""
    found = []
    if not comparison.same_content:
        found.append(
            _(
                "The knowledge base has changed between the two runs, so the profiles are not the only difference: run the "
                "older one again."
            )
        )
    if comparison.models:
        roles = ", ".join(
            f"{_role_label(each.name)}: {each.before or '–'} → {each.after or '–'}" for each in comparison.models
        )
        found.append(_("Other models answered (%(models)s).") % {"models": roles})
    found += [
        _("No reranker has answered in %(run)s: its results stand as the fusion ordered them.") % {"run": letter}
        for run, letter in ((comparison.before, "A"), (comparison.after, "B"))
        if not is_reranked(run)
    ]
    for count, letter in ((comparison.only_before, "A"), (comparison.only_after, "B")):
        if count:
            words = ngettext(
                "%(count)d query that only %(run)s has is left out.",
                "%(count)d queries that only %(run)s has are left out.",
                count,
            )
            found.append(words % {"count": count, "run": letter})
    return found


def _role_label(role: str) -> str:
    """What a model does."""
    return {
        "embedding": _("Embedding"),
        "tokenizer": _("Tokenizer"),
        "reranker": _("Reranker"),
        "rerank_server": _("Rerank server"),
        "llm": _("Language model"),
    }.get(role, role)
