"""Comparisons in words, as the command prints them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kb.base.messages import shown
from kb.profiles.services import SettingDifference
from kb.quality.compare.services import (
    ComparedResult,
    Comparison,
    MetricDifference,
    QueryDifference,
    SearchComparison,
)
from kb.quality.models import EvalRun
from kb.search.services.search import SearchOutcome
from retrieval.eval.significance import SIGNIFICANCE_LEVEL

QUERIES_SHOWN = 10
EXCERPT = 100


def searches_in_words(comparison: SearchComparison) -> Iterator[str]:
    """The lines that tell of two searches."""
    yield _side("A", comparison.a)
    yield _side("B", comparison.b)
    yield from _settings(comparison.settings)
    yield ""
    if not comparison.results:
        yield "Neither side found anything."
    elif comparison.is_identical:
        yield f"Both sides give the same {len(comparison.results)} results in the same order."
    yield f"{'A':>4} {'B':>4}  {'':<10}"
    yield from (_result(result) for result in comparison.results)


def _side(letter: str, outcome: SearchOutcome) -> str:
    result, profile = outcome.result, outcome.wiring.profile
    degraded = "".join(f"; degraded ({each.stage}): {shown(each.detail)}" for each in result.degraded)
    return (
        f"{letter}: profile {profile.name} v{profile.version}, {len(result.hits)} results in "
        f"{result.timings_ms['total']:.1f} ms, gate {result.score_scale} >= {result.threshold:g}{degraded}"
    )


def _settings(differences: Iterable[SettingDifference]) -> Iterator[str]:
    yield from (f"setting {each.name}: {each.before} -> {each.after}" for each in differences)


def _result(result: ComparedResult) -> str:
    passage = result.hit.passage
    text = " ".join(passage.text.split())
    excerpt = text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"
    named = passage.title or passage.source
    return f"{result.rank_a or '-':>4} {result.rank_b or '-':>4}  {_movement(result):<10} {named}: {excerpt}"


def _movement(result: ComparedResult) -> str:
    if result.moved is None:
        return f"only A ({result.cut_in_b})" if result.rank_b is None else f"only B ({result.cut_in_a})"
    if result.moved == 0:
        return "="
    return f"up {result.moved}" if result.moved > 0 else f"down {-result.moved}"


def runs_in_words(comparison: Comparison) -> Iterator[str]:
    """The lines that tell of two runs."""
    yield _run("A", comparison.before)
    yield _run("B", comparison.after)
    yield from _settings(comparison.settings)
    yield from (f"model {each.name}: {each.before} -> {each.after}" for each in comparison.models)
    if not comparison.same_content:
        yield "The knowledge base has changed between the two runs."
    for count, letter in ((comparison.only_before, "A"), (comparison.only_after, "B")):
        if count:
            yield f"left out, because only {letter} has them: {count} queries"
    yield ""
    yield f"{comparison.queries} queries with an answer; * chance would not explain (p < {SIGNIFICANCE_LEVEL:g})"
    for stage, metrics in comparison.stages.items():
        yield from _figures(stage, metrics)
    yield from _figures("gate", comparison.gate)
    yield from _figures("ms", comparison.latency)
    yield from _queries("lost", comparison.lost)
    yield from _queries("won", comparison.won)
    yield f"unchanged: {len(comparison.tied)}"


def _run(letter: str, run: EvalRun) -> str:
    unsaved = "".join(f", {name}={value}" for name, value in run.overrides.items())
    return f"{letter}: run {run.pk} of {run.eval_set.name}, profile {run.profile.name} v{run.profile.version}{unsaved}"


def _figures(stage: str, metrics: Mapping[str, MetricDifference]) -> Iterator[str]:
    for name, figure in metrics.items():
        p_value = "" if figure.p_value is None else f"  p = {figure.p_value:.4f}"
        mark = " *" if figure.p_value is not None and figure.p_value < SIGNIFICANCE_LEVEL else ""
        yield f"{stage:>10} {name:<20} {figure.before:>9.4f} -> {figure.after:>9.4f}  {figure.difference:+9.4f}{p_value}{mark}"


def _queries(kind: str, queries: Sequence[QueryDifference]) -> Iterator[str]:
    yield f"{kind}: {len(queries)}"
    for query in queries[:QUERIES_SHOWN]:
        lost = f" (lost by {query.lost_at_after})" if query.lost_at_after else ""
        yield f"  {query.before:.3f} -> {query.after:.3f}  {query.external_id}: {query.text}{lost}"
    if len(queries) > QUERIES_SHOWN:
        yield f"  and {len(queries) - QUERIES_SHOWN} more: see --json"
