"""Is it better? Two runs of an evaluation set, or two searches for one query, side by side."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.base.errors import Rejected
from kb.base.messages import degradation_as_json, shown
from kb.profiles.services import SettingDifference
from kb.quality.models import EvalRun, EvalRunQuery
from kb.search.services.search import SearchOutcome, SearchRequest, hit_as_json, search
from retrieval.errors import InvalidConfiguration
from retrieval.eval.metrics import SIGNIFICANCE_LEVEL, StageMetrics, paired_p_values
from retrieval.types import Hit, Result

FUSED, RERANKED = "fused", "reranked"
STAGES = ("bm25", "vector", FUSED, RERANKED)
METRICS = tuple(StageMetrics.__annotations__)
JUDGED_BY = (RERANKED, "ndcg@10")
NOT_FOUND = "channels"
OTHER_NAMES = frozenset({"unanswerable_passed"})
"""Of figures that reports have under two names."""
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """A figure of two runs; `p_value` is None where it is not a mean over queries."""

    before: float
    after: float
    difference: float
    p_value: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class QueryDifference:
    """A query's NDCG@10 after the reranker in two runs.

    Attributes:
        lost_at_before: the stage that lost what is relevant; blank where some of it is among the results. Likewise
            `lost_at_after`.
    """

    external_id: str
    text: str
    before: float
    after: float
    lost_at_before: str = ""
    lost_at_after: str = ""

    @property
    def difference(self) -> float:
        return self.after - self.before

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "difference": self.difference}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What has become of the figures between two runs of a set.

    Attributes:
        stages: by stage, by metric; means over the queries that both runs have. Where no reranker has answered, what the
            fusion made stands for what it would have made.
        gate: how well the gate tells queries without an answer, by the names of the reports; empty unless both have it.
        latency: milliseconds, by percentile.
        won: largest difference first, as `lost`.
        queries: how many with an answer both runs have.
        only_before: how many queries only the first run has; they are left out. Likewise `only_after`.
        settings: of the configurations, that differ.
        models: by role, that differ.
        same_content: whether the knowledge base was the same in both.
    """

    before: EvalRun
    after: EvalRun
    stages: Mapping[str, Mapping[str, MetricDifference]]
    gate: Mapping[str, MetricDifference]
    latency: Mapping[str, MetricDifference]
    won: tuple[QueryDifference, ...]
    lost: tuple[QueryDifference, ...]
    tied: tuple[QueryDifference, ...]
    queries: int
    only_before: int
    only_after: int
    settings: tuple[SettingDifference, ...]
    models: tuple[SettingDifference, ...]
    same_content: bool

    def as_dict(self) -> dict[str, Any]:
        """The response of GET /api/v1/eval-runs/compare/."""
        return {
            "before": run_as_json(self.before),
            "after": run_as_json(self.after),
            "queries": self.queries,
            "only_before": self.only_before,
            "only_after": self.only_after,
            "stages": {stage: _as_dicts(metrics) for stage, metrics in self.stages.items()},
            "gate": _as_dicts(self.gate),
            "latency_ms": _as_dicts(self.latency),
            "won": [query.as_dict() for query in self.won],
            "lost": [query.as_dict() for query in self.lost],
            "tied": len(self.tied),
            "settings": [dataclasses.asdict(each) for each in self.settings],
            "models": [dataclasses.asdict(each) for each in self.models],
            "same_content": self.same_content,
        }


def run_as_json(run: EvalRun) -> dict[str, Any]:
    """What a comparison says of a run."""
    return {
        "id": run.pk,
        "eval_set": run.eval_set.name,
        "profile": {"name": run.profile.name, "version": run.profile.version},
        "overrides": run.overrides,
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
    }


def _as_dicts(metrics: Mapping[str, MetricDifference]) -> dict[str, Any]:
    return {name: difference.as_dict() for name, difference in metrics.items()}


def compare_runs(before: EvalRun, after: EvalRun) -> Comparison:
    """Compares two runs that the caller may see, each with its set and profile.

    Raises:
        Rejected: they are of different sets, one is not done, or they have no query in common.
    """
    if before.eval_set_id != after.eval_set_id:
        words = _("These runs are of different sets, “%(first)s” and “%(second)s”: choose two runs of one set.")
        raise Rejected("different_sets", words % {"first": before.eval_set.name, "second": after.eval_set.name})
    for run in (before, after):
        if run.status != EvalRun.Status.DONE:
            words = _("Run %(run)d is not done (%(status)s): wait for it, or choose another one.")
            raise Rejected("run_not_done", words % {"run": run.pk, "status": run.get_status_display()})
    first, second = _rows(before), _rows(after)
    common = [key for key in first if key in second]
    if not common:
        raise Rejected(
            "no_common_queries", _("These runs have no query in common: run the set again under both profiles.")
        )
    measured = [key for key in common if first[key].figures and second[key].figures]
    queries = [_query_difference(first[key], second[key]) for key in measured]
    return Comparison(
        before=before,
        after=after,
        stages=_stage_differences([first[key].figures for key in measured], [second[key].figures for key in measured]),
        gate=_reported(before.report.get("gate"), after.report.get("gate")),
        latency=_reported(before.report.get("latency_ms"), after.report.get("latency_ms")),
        won=_ordered(query for query in queries if query.difference > TOLERANCE),
        lost=_ordered(query for query in queries if query.difference < -TOLERANCE),
        tied=tuple(query for query in queries if abs(query.difference) <= TOLERANCE),
        queries=len(measured),
        only_before=len(first) - len(common),
        only_after=len(second) - len(common),
        settings=_differences(before.configuration, after.configuration),
        models=_differences(before.model_ids, after.model_ids),
        same_content=(before.kb_version, before.content_version) == (after.kb_version, after.content_version),
    )


def _rows(run: EvalRun) -> dict[str, EvalRunQuery]:
    rows = EvalRunQuery.objects.filter(run=run).only("external_id", "text", "figures", "lost_at")
    found = {row.external_id: row for row in rows}
    if is_reranked(run):
        return found
    for row in found.values():
        if row.figures:
            row.figures = {**row.figures, RERANKED: row.figures[FUSED]}
    return found


def is_reranked(run: EvalRun) -> bool:
    """Whether a reranker has answered in a run; otherwise its results stand as the fusion ordered them."""
    return bool(run.report.get("final_stage", RERANKED) == RERANKED)


def _query_difference(before: EvalRunQuery, after: EvalRunQuery) -> QueryDifference:
    stage, metric = JUDGED_BY
    figures = before.figures[stage][metric], after.figures[stage][metric]
    return QueryDifference(after.external_id, after.text, *figures, before.lost_at, after.lost_at)


def _ordered(queries: Iterable[QueryDifference]) -> tuple[QueryDifference, ...]:
    return tuple(sorted(queries, key=lambda query: -abs(query.difference)))


def _stage_differences(
    before: Sequence[Mapping[str, Mapping[str, float]]], after: Sequence[Mapping[str, Mapping[str, float]]]
) -> dict[str, dict[str, MetricDifference]]:
    """The means over queries, which stand in the same order in both."""
    if not before:
        return {}
    names = [(stage, metric) for stage in STAGES for metric in METRICS]  # JSON in the database keeps no order
    first, second = (
        np.array([[figures[stage][metric] for stage, metric in names] for figures in run]) for run in (before, after)
    )
    columns = zip(names, first.mean(0), second.mean(0), paired_p_values(first, second), strict=True)
    stages: dict[str, dict[str, MetricDifference]] = {}
    for (stage, metric), old, new, p_value in columns:
        stages.setdefault(stage, {})[metric] = MetricDifference(
            float(old), float(new), float(new - old), float(p_value)
        )
    return stages


def _reported(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, MetricDifference]:
    """The numbers that both reports hold."""
    if not before or not after or before.get("scale") != after.get("scale"):
        return {}
    return {
        name: MetricDifference(value, after[name], after[name] - value)
        for name, value in before.items()
        if name not in OTHER_NAMES and isinstance(value, float) and isinstance(after.get(name), float)
    }


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[SettingDifference, ...]:
    names = dict.fromkeys((*before, *after))
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return tuple(SettingDifference(*each) for each in pairs if each[1] != each[2])


# -- Two searches ------------------------------------------------------------------------------------------------------
class InvalidSide(InvalidConfiguration):
    """A setting of one of two searches cannot be used.

    Attributes:
        side: "a" or "b".
    """

    def __init__(self, side: str, error: InvalidConfiguration) -> None:
        super().__init__(error.field, str(error))
        self.side = side


@dataclass(frozen=True, slots=True)
class ComparedResult:
    """A result of either search.

    Attributes:
        hit: as B found it, or A where only A did.
        rank_a: from 1; None where it is none of A's results. Likewise `rank_b`.
        cut_in_a: the stage of A that lost it: "channels" where no channel found it among its first; blank for a result.
            Likewise `cut_in_b`.
    """

    hit: Hit
    rank_a: int | None
    rank_b: int | None
    score_a: float | None
    score_b: float | None
    cut_in_a: str = ""
    cut_in_b: str = ""

    @property
    def moved(self) -> int | None:
        """By how many places it stands higher in B; None where only one has it."""
        return None if self.rank_a is None or self.rank_b is None else self.rank_a - self.rank_b

    def as_dict(self) -> dict[str, Any]:
        passage = hit_as_json(self.hit)
        named = ("chunk_id", "document_id", "knowledge_base_id", "title", "source", "page", "text")
        return {
            **{name: passage[name] for name in named},
            "rank": {"a": self.rank_a, "b": self.rank_b},
            "score": {"a": self.score_a, "b": self.score_b},
            "moved": self.moved,
            "cut_by": {"a": self.cut_in_a, "b": self.cut_in_b},
        }


@dataclass(frozen=True, slots=True)
class SearchComparison:
    """Two searches for the same query.

    Attributes:
        results: of both, those of A in its order first, then those that only B has.
        settings: that differ, of the stages that serve all knowledge bases together and of each by itself.
    """

    a: SearchOutcome
    b: SearchOutcome
    results: tuple[ComparedResult, ...]
    settings: tuple[SettingDifference, ...]

    @property
    def is_identical(self) -> bool:
        """Whether both found the same results in the same order."""
        return all(result.moved == 0 for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """The response of POST /api/v1/compare/."""
        return {
            "query": self.a.result.query,
            "identical": self.is_identical,
            "results": [result.as_dict() for result in self.results],
            "settings": [dataclasses.asdict(each) for each in self.settings],
            "a": _side_as_json(self.a),
            "b": _side_as_json(self.b),
        }


def _side_as_json(outcome: SearchOutcome) -> dict[str, Any]:
    result, profile = outcome.result, outcome.wiring.profile
    return {
        "profile": {"name": profile.name, "version": profile.version},
        "overrides": dict(outcome.request.overrides),
        "score_scale": result.score_scale,
        "threshold": result.threshold,
        "degraded": [degradation_as_json(degradation) for degradation in result.degraded],
        "timings_ms": dict(result.timings_ms),
    }


def compare_searches(principal: Principal, a: SearchRequest, b: SearchRequest) -> SearchComparison:
    """Runs two searches, explained, one after the other; neither is logged, since nobody was looking for an answer.

    Raises:
        NotVisible: a knowledge base or a profile does not exist for this principal.
        InvalidSide: an override of one of them is unknown or out of range.
        NoChannelAvailable: no channel could answer one of them.
    """
    first, second = _search(principal, a, "a"), _search(principal, b, "b")
    in_a, in_b = _placed(first), _placed(second)
    cut_a, cut_b = _cuts(first.result), _cuts(second.result)
    return SearchComparison(
        first,
        second,
        tuple(
            ComparedResult(
                hit=(in_b.get(chunk_id) or in_a[chunk_id])[1],
                rank_a=in_a[chunk_id][0] if chunk_id in in_a else None,
                rank_b=in_b[chunk_id][0] if chunk_id in in_b else None,
                score_a=in_a[chunk_id][1].score if chunk_id in in_a else None,
                score_b=in_b[chunk_id][1].score if chunk_id in in_b else None,
                cut_in_a="" if chunk_id in in_a else cut_a.get(chunk_id, NOT_FOUND),
                cut_in_b="" if chunk_id in in_b else cut_b.get(chunk_id, NOT_FOUND),
            )
            for chunk_id in dict.fromkeys((*in_a, *in_b))
        ),
        _setting_differences(first, second),
    )


def _search(principal: Principal, request: SearchRequest, side: str) -> SearchOutcome:
    try:
        return search(principal, dataclasses.replace(request, explain=True, log=False))
    except InvalidConfiguration as error:
        raise InvalidSide(side, error) from error


def _placed(outcome: SearchOutcome) -> dict[int, tuple[int, Hit]]:
    return {hit.passage.chunk_id: (rank, hit) for rank, hit in enumerate(outcome.result.hits, start=1)}


def _cuts(result: Result) -> dict[int, str]:
    """The stage that lost each chunk that a channel found."""
    lost = {chunk.chunk_id: chunk.stage for chunk in result.dropped}
    return {**lost, **{candidate.chunk_id: candidate.cut_by for candidate in result.candidates if candidate.cut_by}}


def _setting_differences(a: SearchOutcome, b: SearchOutcome) -> tuple[SettingDifference, ...]:
    found = list(_differences(a.wiring.config.as_dict(), b.wiring.config.as_dict()))
    scopes_of_b = {scope.kb_id: scope for scope in b.wiring.pipeline.scopes}
    for scope in a.wiring.pipeline.scopes:
        if other := scopes_of_b.get(scope.kb_id):
            of_scope = _differences(scope.config.as_dict(), other.config.as_dict())
            found += [each for each in of_scope if each not in found]
    return tuple(found)


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
