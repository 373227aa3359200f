"""Two runs of a set, or two searches for one query, side by side, as the pages of comparisons show them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _, ngettext

from kb.access.models import KnowledgeBase
from kb.profiles.admin.choices import in_order, setting_label, value_text
from kb.profiles.services import SettingDifference, scorer_text
from kb.quality.compare.services import (
    ComparedResult,
    MetricDifference,
    QueryDifference,
    RunComparison,
    SearchComparison,
    is_reranked,
    tied_queries,
)
from kb.quality.debug.admin.form import FILTERS, parameters_of
from kb.quality.debug.admin.judge import debug_url
from kb.quality.models import EvalRun
from kb.quality.runs.admin.queries import here
from kb.quality.runs.admin.report import (
    LEADING,
    METRICS,
    SMALLEST_DIFFERENCE,
    chart_options,
    lost_label,
    metric_label,
    model_text,
    percentage,
    ranking_label,
    role_label,
    signed,
    three_decimals,
)
from kb.search.admin.explain.rows import cutters, found_url, page_label
from kb.search.admin.labels import milliseconds, notices, stage_label
from kb.search.services.baseline import beyond_baseline
from kb.search.services.search import SearchOutcome, request_as_json
from kb.web.admin.scoped import Choice
from retrieval.eval.metrics import SIGNIFICANCE_LEVEL
from retrieval.highlight import Segment, excerpt, highlight
from retrieval.protocols import Tokenizer
from retrieval.types import Hit

ROWS_A_PAGE = 20
# Fields that both sides have in common; the others carry the side before their name: `a_fusion`.
SHARED = ("q", "kb", "budget", *FILTERS)


def setting_changes(differences: Iterable[SettingDifference]) -> list[dict[str, str]]:
    """Settings that differ between two sides as text, in the order of the form.

    Each value stands by itself: an arrow between them would be one more in a chain of rerankers.
    """
    found = {each.name: each for each in differences}
    return [
        {
            "label": setting_label(name),
            "before": value_text(name, found[name].before),
            "after": value_text(name, found[name].after),
        }
        for name in in_order(found)
    ]


def name_at(name: str, side: str) -> str:
    """The name that a field of one search has for a side, in the page and in its URL."""
    return name if name in SHARED else f"{side}_{name}"


def _query_list(comparison: RunComparison, before: EvalRun, after: EvalRun, asked: QueryDict) -> dict[str, Any]:
    """A page of queries won, lost or tied, with links to the retrieval test, by B's settings, and to both side by side."""
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
    kb_id = after.eval_set.knowledge_base_id
    of_a, of_b = (
        {"profile": run.profile.name, "profile_version": run.profile.version, "overrides": run.overrides}
        for run in (before, after)
    )
    sides = {
        name_at(name, side): value
        for side, settings in (("a", of_a), ("b", of_b))
        for name, value in parameters_of(settings).items()
    }
    return {
        "choices": [
            Choice(name, label, here(asked, list=name, page=""), name == chosen, count)
            for name, (label, count) in lists.items()
        ],
        "page": page,
        "rows": [
            {
                "external_id": query.external_id,
                "text": query.text,
                "before": three_decimals(query.before),
                "after": three_decimals(query.after),
                "difference": signed(query.difference),
                "direction": "up" if query.difference > 0 else "down" if query.difference < 0 else "same",
                "lost": _lost_text(query),
                "debug_url": debug_url([kb_id], query.text, of_b),
                "compare_url": f"{reverse('admin:compare')}?{urlencode({'kb': kb_id, 'q': query.text, **sides})}",
            }
            for query in page.object_list
        ],
    }


def _lost_text(query: QueryDifference) -> str:
    if query.lost_at_before and query.lost_at_before == query.lost_at_after:
        return _("A and B: %(what)s") % {"what": lost_label(query.lost_at_after)}
    losses = [(_("A: %(what)s"), query.lost_at_before), (_("B: %(what)s"), query.lost_at_after)]
    return _("; ").join(message % {"what": lost_label(stage)} for message, stage in losses if stage)


COLOURS = ("var(--color-base-400)", "var(--color-primary-500)")
# Where less is better.
TIMES = frozenset({"p50", "p95"})
COSTS = TIMES | {"false_answer_rate"}
NEUTRAL = frozenset({"cut"})
WRITTEN: Mapping[str, Callable[[float], str]] = {
    "p50": "{:.1f}".format,
    "p95": "{:.1f}".format,
    "answerable_kept": percentage,
    "false_answer_rate": percentage,
}


def shown_runs(comparison: RunComparison, before: EvalRun, after: EvalRun, asked: QueryDict) -> dict[str, Any]:
    """What the page says of two runs, which come with their sets and profiles.

    Of the URL `metric` chooses the chart's, `list` the queries, `page` their page.
    """
    metric = asked.get("metric", "")
    metric = metric if metric in METRICS else LEADING
    last_stage = comparison.stages.get("reranked", {})
    return {
        "stages": [
            {"stage": stage, "label": ranking_label(stage), "cells": [_cell(*each) for each in metrics.items()]}
            for stage, metrics in comparison.stages.items()
        ],
        # Whether the second run is better, by the metrics of its last stage that matter most.
        "verdicts": [_verdict(name, last_stage[name]) for name in (LEADING, "recall@5") if name in last_stage],
        "metrics": [Choice(each, metric_label(each), here(asked, metric=each), each == metric) for each in METRICS],
        "chart": _chart(comparison, metric, (before, after)),
        "others": [_cell(*each) for each in (*comparison.gate.items(), *comparison.latency_ms.items())],
        "warnings": list(_warnings(comparison, before, after)),
        "changes": setting_changes(comparison.settings),
        "queries": _query_list(comparison, before, after, asked),
    }


def _cell(name: str, figure: MetricDifference) -> dict[str, Any]:
    """A figure of both runs; its direction is "same" for what rounds to no difference or is neither better nor worse."""
    labels = {
        "auroc": _("AUROC of the threshold"),
        "answerable_kept": _("Kept by the threshold"),
        "false_answer_rate": _("False answers"),
        "cut": _("Threshold"),
        "p50": _("P50, ms"),
        "p95": _("P95, ms"),
    }
    as_text = WRITTEN.get(name, three_decimals)
    difference = signed(figure.difference)
    if name in TIMES:
        difference = f"{figure.difference:+.1f}".replace("-", "\N{MINUS SIGN}")
    is_same = abs(figure.difference) < SMALLEST_DIFFERENCE
    direction = "up" if (figure.difference > 0) != (name in COSTS) else "down"
    return {
        "metric": name,
        "label": labels.get(name) or metric_label(name),
        "before": as_text(figure.before),
        "after": as_text(figure.after),
        "difference": _("unchanged") if is_same else difference,
        "direction": "same" if is_same or name in NEUTRAL else direction,
        "chance": "" if is_same else _chance(figure.p_value),
        "is_significant": figure.p_value is not None and figure.p_value < SIGNIFICANCE_LEVEL,
    }


def _p_value_text(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _chance(p_value: float | None) -> str:
    if p_value is None:
        return ""
    message = _("beyond chance, %(p)s") if p_value < SIGNIFICANCE_LEVEL else _("chance may be all, %(p)s")
    return message % {"p": _p_value_text(p_value)}


def _verdict(name: str, figure: MetricDifference) -> dict[str, str]:
    p_value = 1.0 if figure.p_value is None else figure.p_value
    is_same = abs(figure.difference) < SMALLEST_DIFFERENCE
    direction = "same"
    if not is_same and p_value < SIGNIFICANCE_LEVEL:
        direction = "up" if figure.difference > 0 else "down"
    messages = {
        "same": _(
            "No difference that chance would not explain: %(metric)s %(difference)s (%(before)s → %(after)s, %(p)s)."
        ),
        "up": _("B is better: %(metric)s %(difference)s (%(before)s → %(after)s), more than chance explains (%(p)s)."),
        "down": _("B is worse: %(metric)s %(difference)s (%(before)s → %(after)s), more than chance explains (%(p)s)."),
    }
    message = _("No difference: %(metric)s is %(after)s in both.") if is_same else messages[direction]
    known = {
        "metric": metric_label(name),
        "before": three_decimals(figure.before),
        "after": three_decimals(figure.after),
        "difference": signed(figure.difference),
        "p": _p_value_text(p_value),
    }
    return {"direction": direction, "description": message % known}


def _chart(comparison: RunComparison, metric: str, runs: Sequence[EvalRun]) -> dict[str, str]:
    """Bars of one metric by stage, A beside B, as JSON for Chart.js: `data` and `options`."""
    figures = [metrics[metric] for metrics in comparison.stages.values()]
    values = ([each.before for each in figures], [each.after for each in figures])
    datasets = [
        {
            "label": f"{letter} · {run.profile}",
            "data": data,
            "backgroundColor": colour,
            "borderRadius": 3,
            "maxBarThickness": 36,
            "pointStyle": "rect",
        }
        for letter, run, data, colour in zip("AB", runs, values, COLOURS, strict=True)
    ]
    return {
        "data": json.dumps({"labels": [ranking_label(stage) for stage in comparison.stages], "datasets": datasets}),
        "options": chart_options({"grid": {"display": False}}, {"min": 0, "max": 1, "stepSize": 0.2}),
    }


def _warnings(comparison: RunComparison, before: EvalRun, after: EvalRun) -> Iterator[str]:
    """What a reader should know before believing the figures."""
    if not comparison.same_content:
        yield _(
            "The knowledge base has changed between the two runs, so the profiles are not the only difference: run the "
            "older one again."
        )
    if comparison.models:
        roles = ", ".join(
            f"{role_label(each.name)}: {model_text(each.before or '–')} → {model_text(each.after or '–')}"
            for each in comparison.models
        )
        yield _("Other models answered (%(models)s).") % {"models": roles}
    for run, letter in ((before, "A"), (after, "B")):
        if not is_reranked(run):
            message = _("No reranker has answered in %(run)s: its results stand as the fusion ordered them.")
            yield message % {"run": letter}
    for count, letter in ((comparison.only_before, "A"), (comparison.only_after, "B")):
        if count:
            message = ngettext(
                "%(count)d query that only %(run)s has is left out.",
                "%(count)d queries that only %(run)s has are left out.",
                count,
            )
            yield message % {"count": count, "run": letter}


EXCERPT_CHARACTERS = 160
STAGES = (
    "analysis",
    "vector",
    "bm25",
    "question",
    "question_bm25",
    "fts",
    "lexical",
    "dedupe",
    "characters",
    "fusion",
    "passages",
    "rerank",
    "gate",
    "selection",
    "facts",
    "total",
)


def shown(comparison: SearchComparison, bases: Mapping[int, KnowledgeBase]) -> dict[str, Any]:
    """What the page says of two searches in knowledge bases by id."""
    a, b = comparison.a.result.timings_ms, comparison.b.result.timings_ms
    return {
        "sides": [_side("A", comparison.a, comparison, bases), _side("B", comparison.b, comparison, bases)],
        "summary": _summary(comparison),
        "changes": setting_changes(comparison.response.settings),
        "times": [
            {
                "label": _("Total") if stage == "total" else stage_label(stage),
                "a": milliseconds(a[stage]) if stage in a else "–",
                "b": milliseconds(b[stage]) if stage in b else "–",
            }
            for stage in STAGES
            if stage in a or stage in b
        ],
        "has_several_bases": len(comparison.a.knowledge_bases) > 1,
    }


def _summary(comparison: SearchComparison) -> str:
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
    letter: str, outcome: SearchOutcome, comparison: SearchComparison, bases: Mapping[int, KnowledgeBase]
) -> dict[str, Any]:
    result, request = outcome.result, outcome.request
    tokenizers = cutters(outcome)
    return {
        "letter": letter,
        "profile": str(outcome.wiring.profile),
        "total_ms": milliseconds(result.timings_ms["total"]),
        "scale": scorer_text(result.score_scale),
        "threshold": f"{result.threshold:g}",
        "cards": [
            {
                **_card(hit, tokenizers.get(hit.passage.kb_id)),
                "rank": rank,
                "kb_name": bases[hit.passage.kb_id].name,
                "movement": _movement(letter, comparison.by_hit[hit.passage.chunk_id]),
            }
            for rank, hit in enumerate(result.hits, start=1)
        ],
        "notices": notices(
            beyond_baseline(result.degraded, outcome.knowledge_bases), outcome.wiring.pipeline.scopes, bases
        ),
        "debug_url": debug_url(request.knowledge_base_ids, request.query, request_as_json(request)),
    }


def _card(hit: Hit, tokenizer: Tokenizer | None) -> dict[str, Any]:
    passage = hit.passage
    place = (
        passage.source if passage.title else "",
        page_label(passage),
        "" if passage.origin else _("chunk %(number)d") % {"number": passage.position + 1},
    )
    text = [Segment(passage.searched, is_match=False)]
    if tokenizer:
        text = list(highlight(passage.searched, hit.matched_terms, tokenizer))
    return {
        "chunk_id": passage.chunk_id,
        "title": passage.title or passage.source or _("untitled"),
        "place": list(filter(None, place)),
        "text": list(excerpt(text, EXCERPT_CHARACTERS)),
        "score": f"{hit.score:.4f}",
        "relevance": hit.relevance,
        "url": found_url(passage),
    }


def _movement(letter: str, result: ComparedResult) -> dict[str, str]:
    """Where a result of one side stands on the other; `reason` says what lost it there.

    The direction is from A to B: "up", "down", "same", or "gone" where the other side has it not.
    """
    other = "B" if letter == "A" else "A"
    rank, cut_by = (result.rank.b, result.cut_by.b) if letter == "A" else (result.rank.a, result.cut_by.a)
    if rank is None or result.moved is None:
        reasons = {
            "dedupe": _("Another chunk of the same content stands for it"),
            "vector_only": _("Without a reranker only what vectors find counts"),
            "passages": _("It was gone when its text was read"),
            "parent": _("Another chunk of the same longer passage stands for it"),
        }
        return {
            "direction": "gone",
            "sign": _("only %(side)s") % {"side": letter},
            "description": _("not among the results of %(side)s") % {"side": other},
            "reason": reasons.get(cut_by) or lost_label(cut_by),
        }
    if result.moved == 0:
        return {"direction": "same", "sign": "=", "description": _("at the same place in %(side)s") % {"side": other}}
    direction = "up" if result.moved > 0 else "down"
    places = abs(result.moved)
    at = {"rank": rank, "side": other, "n": places}
    if letter == "A":
        there = _("at rank %(rank)d in %(side)s") % at
        return {"direction": direction, "sign": _("B: %(rank)d") % at, "description": there}
    messages = {
        "up": ngettext("up %(n)d place from rank %(rank)d in A", "up %(n)d places from rank %(rank)d in A", places),
        "down": ngettext(
            "down %(n)d place from rank %(rank)d in A", "down %(n)d places from rank %(rank)d in A", places
        ),
    }
    sign = "▲" if direction == "up" else "▼"
    return {"direction": direction, "sign": f"{sign}{places}", "description": messages[direction] % at}
