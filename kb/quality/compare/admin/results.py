"""Two searches side by side, in words: where each result stands on either side, and what took how long.

Two runs of a set as text: each figure before and after, what chance would explain, and the queries won and lost.

The queries that two runs differ in: a page of those won, lost or left as they were.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.access.models import KnowledgeBase
from kb.quality.compare.admin.sides import SettingChange, of_side, setting_changes
from kb.quality.compare.services import (
    ComparedResult,
    MetricDifference,
    QueryDifference,
    RunComparison,
    SearchComparison,
    is_reranked,
    tied_queries,
)
from kb.quality.debug.admin.form import parameters_of
from kb.quality.debug.admin.judge import debug_url
from kb.quality.models import EvalRun
from kb.quality.runs.admin.report import (
    AXIS,
    LEADING,
    METRICS,
    SMALLEST_DIFFERENCE,
    lost_label,
    metric_label,
    percentage,
    ranking_label,
    signed,
    three_decimals,
)
from kb.search.admin.explain.analysis import cutters
from kb.search.admin.explain.rows import found_url
from kb.search.admin.labels import Notice, milliseconds, notices, stage_label
from kb.search.services.search import SearchOutcome
from kb.web.admin.scoped import Choice
from retrieval.eval.metrics import SIGNIFICANCE_LEVEL
from retrieval.highlight import Segment, excerpt, highlight
from retrieval.protocols import Tokenizer

ROWS_A_PAGE = 20


@dataclass(frozen=True, slots=True)
class QueryRow:
    """A query of both runs.

    Attributes:
        lost: what lost its relevant passages, in each run that lost them.
    """

    external_id: str
    text: str
    before: str
    after: str
    difference: str
    direction: str
    lost: str
    debug_url: str
    compare_url: str


@dataclass(frozen=True, slots=True)
class QueryList:
    """A page of the queries won, lost or left as they were."""

    choices: tuple[Choice, ...]
    page: Page[Any]
    rows: tuple[QueryRow, ...]
    previous_url: str
    next_url: str


def query_list(comparison: RunComparison, before: EvalRun, after: EvalRun, asked: QueryDict) -> QueryList:
    lists = {
        "lost": (_("Lost"), len(comparison.lost)),
        "won": (_("Won"), len(comparison.won)),
        "tied": (_("Unchanged"), comparison.tied),
    }
    first = next((name for name, (_label, count) in lists.items() if count), "lost")
    chosen = asked.get("list", "")
    chosen = chosen if chosen in lists else first
    differing = {"lost": comparison.lost, "won": comparison.won}
    queries = differing[chosen] if chosen in differing else tied_queries(before, after)
    page = Paginator(queries, ROWS_A_PAGE).get_page(asked.get("page"))
    return QueryList(
        choices=tuple(
            Choice(name, label, here(asked, list=name, page=""), name == chosen, count)
            for name, (label, count) in lists.items()
        ),
        page=page,
        rows=tuple(query_rows(before, after, list(page.object_list))),
        previous_url=here(asked, page=str(page.previous_page_number())) if page.has_previous() else "",
        next_url=here(asked, page=str(page.next_page_number())) if page.has_next() else "",
    )


def query_rows(before: EvalRun, after: EvalRun, queries: Sequence[QueryDifference]) -> list[QueryRow]:
    """Rows with links to Search debug, under the second run's settings, and to both sides by side."""
    kb_id = after.eval_set.knowledge_base_id
    of_a, of_b = _parameters(before), _parameters(after)
    sides = {**of_side(parameters_of(of_a), "a"), **of_side(parameters_of(of_b), "b")}
    return [
        QueryRow(
            external_id=query.external_id,
            text=query.text,
            before=three_decimals(query.before),
            after=three_decimals(query.after),
            difference=signed(query.difference),
            direction="up" if query.difference > 0 else "down" if query.difference < 0 else "same",
            lost=_lost_text(query),
            debug_url=debug_url([kb_id], query.text, of_b),
            compare_url=f"{reverse('admin:compare')}?{urlencode({'kb': kb_id, 'q': query.text, **sides})}",
        )
        for query in queries
    ]


def _parameters(run: EvalRun) -> dict[str, Any]:
    return {"profile": run.profile.name, "profile_version": run.profile.version, "overrides": run.overrides}


def _lost_text(query: QueryDifference) -> str:
    if query.lost_at_before and query.lost_at_before == query.lost_at_after:
        return _("A and B: %(what)s") % {"what": lost_label(query.lost_at_after)}
    losses = [(_("A: %(what)s"), query.lost_at_before), (_("B: %(what)s"), query.lost_at_after)]
    return _("; ").join(message % {"what": lost_label(stage)} for message, stage in losses if stage)


def here(asked: QueryDict, **changes: str) -> str:
    """The same page with some parameters changed; a blank one goes."""
    query = asked.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return f"?{query.urlencode()}"


COLOURS = ("var(--color-base-400)", "var(--color-primary-500)")
# Where less is better.
COSTS = frozenset({"false_answer_rate", "p50", "p95"})
NEUTRAL = frozenset({"cut"})


@dataclass(frozen=True, slots=True)
class FigureCell:
    """A figure of both runs.

    Attributes:
        direction: "up" for better, "down" for worse, "same" for what rounds to no difference or is neither.
        chance: whether chance would explain the difference, as text; blank where there is none, or it was not tested.
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
    description: str


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


def shown_runs(comparison: RunComparison, before: EvalRun, after: EvalRun, asked: QueryDict) -> ShownRuns:
    """What the page shows.

    Args:
        comparison: of two runs.
        before: the first run, with its set and profile.
        after: the second run, likewise.
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
        chart=chart_of(comparison, metric, (before, after)),
        others=tuple(_cell(*each) for each in (*comparison.gate.items(), *comparison.latency_ms.items())),
        warnings=tuple(_warnings(comparison, before, after)),
        changes=setting_changes(comparison.settings),
        queries=query_list(comparison, before, after, asked),
    )


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
        label={
            "auroc": _("AUROC of the gate"),
            "answerable_kept": _("Kept by the gate"),
            "false_answer_rate": _("False answers"),
            "cut": _("Cut"),
            "p50": _("Median time, ms"),
            "p95": _("p95 time, ms"),
        }.get(name)
        or metric_label(name),
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


def p_value_text(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _chance(p_value: float | None) -> str:
    if p_value is None:
        return ""
    if p_value < SIGNIFICANCE_LEVEL:
        return _("beyond chance, %(p)s") % {"p": p_value_text(p_value)}
    return _("chance may be all, %(p)s") % {"p": p_value_text(p_value)}


def verdicts(metrics: Mapping[str, MetricDifference]) -> tuple[Verdict, ...]:
    """Whether the second run is better, by the metrics of its last stage that matter most."""
    return tuple(_verdict(name, metrics[name]) for name in (LEADING, "recall@5") if name in metrics)


def _verdict(name: str, figure: MetricDifference) -> Verdict:
    known = {
        "metric": metric_label(name),
        "before": three_decimals(figure.before),
        "after": three_decimals(figure.after),
        "difference": signed(figure.difference),
        "p": p_value_text(1.0 if figure.p_value is None else figure.p_value),
    }
    if abs(figure.difference) < SMALLEST_DIFFERENCE:
        return Verdict("same", _("No difference: %(metric)s is %(after)s in both.") % known)
    if figure.p_value is None or figure.p_value >= SIGNIFICANCE_LEVEL:
        message = _(
            "No difference that chance would not explain: %(metric)s %(difference)s (%(before)s → %(after)s, %(p)s)."
        )
        return Verdict("same", message % known)
    if figure.difference > 0:
        message = _(
            "B is better: %(metric)s %(difference)s (%(before)s → %(after)s), more than chance explains (%(p)s)."
        )
        return Verdict("up", message % known)
    message = _("B is worse: %(metric)s %(difference)s (%(before)s → %(after)s), more than chance explains (%(p)s).")
    return Verdict("down", message % known)


def chart_of(comparison: RunComparison, metric: str, compared: tuple[EvalRun, EvalRun]) -> dict[str, str]:
    """Bars of one metric by stage, A beside B, as JSON for Chart.js: `data` and `options`."""
    stages = list(comparison.stages)
    figures = [comparison.stages[stage][metric] for stage in stages]
    runs = tuple(f"{letter} · {run.profile}" for letter, run in zip("AB", compared, strict=True))
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


def _warnings(comparison: RunComparison, before: EvalRun, after: EvalRun) -> list[str]:
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
        for run, letter in ((before, "A"), (after, "B"))
        if not is_reranked(run)
    ]
    for count, letter in ((comparison.only_before, "A"), (comparison.only_after, "B")):
        if count:
            message = ngettext(
                "%(count)d query that only %(run)s has is left out.",
                "%(count)d queries that only %(run)s has are left out.",
                count,
            )
            found.append(message % {"count": count, "run": letter})
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


EXCERPT_CHARACTERS = 160
STAGES = (
    "analysis",
    "vector",
    "bm25",
    "question",
    "fts",
    "lexical",
    "dedupe",
    "fusion",
    "passages",
    "rerank",
    "gate",
    "selection",
    "facts",
    "total",
)


@dataclass(frozen=True, slots=True)
class Movement:
    """Where a result stands on the other side.

    Attributes:
        direction: from A to B: "up", "down", "same", or "gone" where the other side has it not.
        sign: the same in a few characters.
        description: the same in a sentence.
        reason: what lost it on the other side; blank unless it is gone.
    """

    direction: str
    sign: str
    description: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A result on one side."""

    chunk_id: int
    rank: int
    title: str
    place: tuple[str, ...]
    text: tuple[Segment, ...]
    score: str
    kb_name: str
    url: str
    movement: Movement


@dataclass(frozen=True, slots=True)
class Side:
    """What one side found."""

    letter: str
    profile: str
    total_ms: str
    scale: str
    threshold: str
    cards: tuple[Card, ...]
    notices: tuple[Notice, ...]
    debug_url: str


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Milliseconds of a stage on either side; a dash where it did not run."""

    label: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class ShownComparison:
    """What the page says of two searches."""

    sides: tuple[Side, Side]
    summary: str
    is_identical: bool
    changes: tuple[SettingChange, ...]
    times: tuple[StageTimes, ...]
    has_several_bases: bool


def shown(comparison: SearchComparison, bases: Mapping[int, KnowledgeBase]) -> ShownComparison:
    """What the page shows.

    Args:
        comparison: of two searches.
        bases: the searched knowledge bases by id.
    """
    a, b = comparison.a, comparison.b
    return ShownComparison(
        sides=(_side("A", a, comparison.by_hit, bases), _side("B", b, comparison.by_hit, bases)),
        summary=_summary(comparison),
        is_identical=comparison.response.identical,
        changes=setting_changes(comparison.response.settings),
        times=_times(a.result.timings_ms, b.result.timings_ms),
        has_several_bases=len(a.knowledge_bases) > 1,
    )


def _summary(comparison: SearchComparison) -> str:
    """How much the sides differ, in one sentence."""
    results = comparison.response.results
    if not results:
        return _("Neither side found anything.")
    if comparison.response.identical:
        return _("Both sides give the same results in the same order.")
    counts = {
        "moved": sum(bool(result.moved) for result in results),
        "only_a": sum(result.rank.b is None for result in results),
        "only_b": sum(result.rank.a is None for result in results),
    }
    return _("%(moved)d in another place, %(only_a)d only in A, %(only_b)d only in B.") % counts


def _side(
    letter: str, outcome: SearchOutcome, results: Mapping[int, ComparedResult], bases: Mapping[int, KnowledgeBase]
) -> Side:
    result = outcome.result
    tokenizers = cutters(outcome)
    request = outcome.request
    asked = {
        "profile": request.profile,
        "profile_version": request.profile_version,
        "overrides": request.overrides,
        "filters": request.filters.as_dict() if request.filters else None,
        "latency_budget_ms": request.latency_budget_ms,
    }
    return Side(
        letter=letter,
        profile=str(outcome.wiring.profile),
        total_ms=milliseconds(result.timings_ms["total"]),
        scale=result.score_scale,
        threshold=f"{result.threshold:g}",
        cards=tuple(
            _card(letter, rank, results[hit.passage.chunk_id], outcome, bases, tokenizers)
            for rank, hit in enumerate(result.hits, start=1)
        ),
        notices=notices(result.degraded, outcome.wiring.pipeline.scopes, bases),
        debug_url=debug_url(request.knowledge_base_ids, request.query, asked),
    )


def _card(
    letter: str,
    rank: int,
    result: ComparedResult,
    outcome: SearchOutcome,
    bases: Mapping[int, KnowledgeBase],
    tokenizers: Mapping[int, Tokenizer],
) -> Card:
    hit = outcome.result.hits[rank - 1]
    passage = hit.passage
    place = [passage.source] if passage.source and passage.title else []
    if passage.page:
        place.append(_("page %(page)d") % {"page": passage.page})
    tokenizer = tokenizers.get(passage.kb_id)
    text = (
        highlight(passage.searched, hit.matched_terms, tokenizer)
        if tokenizer
        else [Segment(passage.searched, is_match=False)]
    )
    return Card(
        chunk_id=passage.chunk_id,
        rank=rank,
        title=passage.title or passage.source or _("untitled"),
        place=tuple(place) if passage.origin else (*place, _("chunk %(number)d") % {"number": passage.position + 1}),
        text=tuple(excerpt(text, EXCERPT_CHARACTERS)),
        score=f"{hit.score:.4f}",
        kb_name=bases[passage.kb_id].name,
        url=found_url(passage),
        movement=_movement(letter, result),
    )


def _movement(letter: str, result: ComparedResult) -> Movement:
    """Where a result of one side stands on the other."""
    other = "B" if letter == "A" else "A"
    rank, cut_by = (result.rank.b, result.cut_by.b) if letter == "A" else (result.rank.a, result.cut_by.a)
    if rank is None or result.moved is None:
        message = _("not among the results of %(side)s") % {"side": other}
        return Movement("gone", _("only %(side)s") % {"side": letter}, message, _why_lost(cut_by))
    if result.moved == 0:
        return Movement("same", "=", _("at the same place in %(side)s") % {"side": other})
    places = abs(result.moved)
    at = {"rank": rank, "side": other, "n": places}
    if letter == "A":
        direction = "up" if result.moved > 0 else "down"
        return Movement(direction, _("B: %(rank)d") % at, _("at rank %(rank)d in %(side)s") % at)
    if result.moved > 0:
        message = ngettext("up %(n)d place from rank %(rank)d in A", "up %(n)d places from rank %(rank)d in A", places)
        return Movement("up", f"▲{places}", message % at)
    message = ngettext("down %(n)d place from rank %(rank)d in A", "down %(n)d places from rank %(rank)d in A", places)
    return Movement("down", f"▼{places}", message % at)


def _why_lost(stage: str) -> str:
    """What lost a result of the other side."""
    others = {
        "dedupe": _("Another chunk of the same content stands for it"),
        "vector_only": _("Without a reranker only what vectors find counts"),
        "passages": _("It was gone when its text was read"),
        "parent": _("Another chunk of the same longer passage stands for it"),
    }
    return others.get(stage) or lost_label(stage)


def _times(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[StageTimes, ...]:
    known = [stage for stage in STAGES if stage in a or stage in b]
    labels = {"total": _("Total")}
    return tuple(
        StageTimes(
            labels.get(stage) or stage_label(stage),
            *(milliseconds(side[stage]) if stage in side else "–" for side in (a, b)),
        )
        for stage in known
    )
