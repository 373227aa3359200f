"""Is it better? Two runs of an evaluation set, or two searches for one query, side by side."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, cast

import numpy as np
from django.utils.translation import gettext as _
from typing_extensions import Doc

from kb.access.models import Principal
from kb.base.errors import Rejected
from kb.profiles.services import SettingDifference
from kb.quality.models import EvalRun, EvalRunQuery
from kb.quality.runs.services.report import models_of, require_done
from kb.search.services.search import SearchOutcome, SearchRequest, UsedProfile, search
from retrieval.errors import Degradation, InvalidConfiguration
from retrieval.eval.metrics import StageMetrics, paired_p_values
from retrieval.selection import ScoreScale
from retrieval.types import Hit, Result

FUSED, RERANKED = "fused", "reranked"
STAGES = ("bm25", "vector", FUSED, RERANKED)
METRICS = tuple(StageMetrics.__annotations__)
JUDGED_BY = (RERANKED, "ndcg@10")
NOT_FOUND = "channels"
# Of figures that reports have under two names.
OTHER_NAMES = frozenset({"unanswerable_passed"})
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Run:
    """What a comparison says of a run."""

    id: int
    eval_set: str
    profile: UsedProfile
    overrides: Mapping[str, Any]
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """A figure of two runs."""

    before: float
    after: float
    difference: float
    p_value: Annotated[
        float | None,
        Doc(
            "How often chance alone would make them differ by as much: a paired randomisation test. null: not a mean over queries."
        ),
    ]


@dataclass(frozen=True, slots=True)
class QueryDifference:
    """A query's NDCG@10 after the reranker in two runs."""

    external_id: str
    text: str
    before: Annotated[float, Doc("NDCG@10 after the reranker.")]
    after: float
    difference: float
    lost_at_before: Annotated[str, Doc("The stage that lost all that is relevant.")]
    lost_at_after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """What has become of the figures between two runs of a set: the response of GET /api/v1/eval-runs/compare/.

    Where no reranker has answered, what the fusion made stands for what it would have made.
    """

    before: Run
    after: Run
    queries: Annotated[int, Doc("With an answer, that both runs have.")]
    only_before: Annotated[int, Doc("Queries that only this run has; they are left out.")]
    only_after: int
    stages: Mapping[str, Mapping[str, MetricDifference]]
    gate: Annotated[Mapping[str, MetricDifference], Doc("Empty unless both runs measured it.")]
    latency_ms: Mapping[str, MetricDifference]
    won: Annotated[tuple[QueryDifference, ...], Doc("Largest difference first.")]
    lost: tuple[QueryDifference, ...]
    tied: int
    settings: tuple[SettingDifference, ...]
    models: tuple[SettingDifference, ...]
    same_content: Annotated[bool, Doc("Whether the knowledge base was the same in both.")]


def compare_runs(before: EvalRun, after: EvalRun) -> RunComparison:
    """Compares two runs that the caller may see, each with its set and profile.

    Raises `Rejected` where they are of different sets, one is not done, or they have no query in common.
    """
    if before.eval_set_id != after.eval_set_id:
        raise Rejected(
            "different_sets",
            _("These runs are of different sets, “%(first)s” and “%(second)s”: choose two runs of one set."),
            first=before.eval_set.name,
            second=after.eval_set.name,
        )
    require_done(before)
    require_done(after)
    first, second = _rows(before), _rows(after)
    common = [key for key in first if key in second]
    if not common:
        raise Rejected(
            "no_common_queries", _("These runs have no query in common: run the set again under both profiles.")
        )
    measured = [key for key in common if first[key].figures and second[key].figures]
    queries = sorted(_query_differences(first, second), key=lambda each: -abs(each.difference))
    won, lost = (tuple(each for each in queries if sign * each.difference > TOLERANCE) for sign in (1, -1))
    old, new = (
        Run(run.pk, run.eval_set.name, UsedProfile.of(run.profile), run.overrides, run.finished_at)
        for run in (before, after)
    )
    return RunComparison(
        before=old,
        after=new,
        stages=_stage_differences([first[key].figures for key in measured], [second[key].figures for key in measured]),
        gate=_reported(before.report.get("gate"), after.report.get("gate")),
        latency_ms=_reported(before.report.get("latency_ms"), after.report.get("latency_ms")),
        won=won,
        lost=lost,
        tied=len(queries) - len(won) - len(lost),
        queries=len(measured),
        only_before=len(first) - len(common),
        only_after=len(second) - len(common),
        settings=_differences(before.configuration, after.configuration),
        models=_differences(models_of(before), models_of(after)),
        same_content=(before.kb_version, before.content_version) == (after.kb_version, after.content_version),
    )


def _rows(run: EvalRun) -> dict[str, EvalRunQuery]:
    """The queries of a run by their ids; the figures of the fusion stand for those of a reranker that has not answered."""
    rows = EvalRunQuery.objects.filter(run=run).only("external_id", "text", "figures", "lost_at")
    found = {row.external_id: row for row in rows}
    for row in found.values():
        if row.figures and not is_reranked(run):
            row.figures[RERANKED] = row.figures[FUSED]
    return found


def is_reranked(run: EvalRun) -> bool:
    """Whether a reranker has answered in a run; otherwise its results stand as the fusion ordered them."""
    return bool(run.report.get("final_stage", RERANKED) == RERANKED)


def _query_differences(before: Mapping[str, EvalRunQuery], after: Mapping[str, EvalRunQuery]) -> list[QueryDifference]:
    """Of the queries with an answer that both runs have, by their ids."""
    stage, metric = JUDGED_BY
    common = [(before[key], row) for key, row in after.items() if row.figures and key in before and before[key].figures]
    return [
        QueryDifference(new.external_id, new.text, first, second, second - first, old.lost_at, new.lost_at)
        for old, new in common
        for first, second in [(old.figures[stage][metric], new.figures[stage][metric])]
    ]


def tied_queries(before: EvalRun, after: EvalRun) -> list[QueryDifference]:
    """The queries that are as good in either run."""
    return [each for each in _query_differences(_rows(before), _rows(after)) if abs(each.difference) <= TOLERANCE]


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
        name: MetricDifference(value, after[name], after[name] - value, None)
        for name, value in before.items()
        if name not in OTHER_NAMES and isinstance(value, float) and isinstance(after.get(name), float)
    }


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[SettingDifference, ...]:
    pairs = ((name, before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after)))
    return tuple(SettingDifference(*each) for each in pairs if each[1] != each[2])


# -- Two searches ------------------------------------------------------------------------------------------------------
class InvalidSide(InvalidConfiguration):
    """A setting of one of two searches, `side` "a" or "b", cannot be used."""

    def __init__(self, side: str, error: InvalidConfiguration) -> None:
        super().__init__(error.field, str(error))
        self.side = side


@dataclass(frozen=True, slots=True)
class SideRanks:
    a: int | None
    b: int | None


@dataclass(frozen=True, slots=True)
class SideScores:
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True)
class SideStages:
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedResult:
    """A result of either search, as B found it, or A where only A did."""

    chunk_id: Annotated[int | None, Doc("null: of a live or external source.")]
    document_id: int | None
    knowledge_base_id: int
    title: str
    source: str
    page: int | None
    text: str
    rank: Annotated[SideRanks, Doc("From 1; null where it is none of the side’s results.")]
    score: Annotated[SideScores, Doc("Each on its side’s `score_scale`.")]
    moved: Annotated[int | None, Doc("By how many places it stands higher in B; null where only one side has it.")]
    cut_by: Annotated[
        SideStages,
        Doc("The stage that lost it: `channels` where no channel found it among its first; blank for a result."),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One of two searches."""

    profile: UsedProfile
    overrides: Mapping[str, Any]
    score_scale: ScoreScale
    threshold: float
    degraded: tuple[Degradation, ...]
    timings_ms: Annotated[Mapping[str, float], Doc("Milliseconds by stage, and in total.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResponse:
    """The response of POST /api/v1/compare/."""

    query: str
    identical: Annotated[bool, Doc("The same results in the same order.")]
    results: Annotated[tuple[ComparedResult, ...], Doc("Those of A in its order, then those that only B has.")]
    settings: Annotated[tuple[SettingDifference, ...], Doc("Of the resolved configurations: A before, B after.")]
    a: ComparedSide
    b: ComparedSide


@dataclass(frozen=True, slots=True)
class SearchComparison:
    """Two searches for a query; `by_hit` has the results by the ids of their passages, which all sources give."""

    a: SearchOutcome
    b: SearchOutcome
    by_hit: Mapping[int, ComparedResult]
    response: CompareResponse


def compare_searches(principal: Principal, a: SearchRequest, b: SearchRequest) -> SearchComparison:
    """Runs two searches, explained, one after the other; neither is logged, since nobody was looking for an answer.

    Raises as `search`, but `InvalidSide` where an override of one of them is unknown or out of range.
    """
    outcomes = []
    for side, request in (("a", a), ("b", b)):
        try:
            outcomes.append(search(principal, dataclasses.replace(request, explain=True, log=False)))
        except InvalidConfiguration as error:
            raise InvalidSide(side, error) from error
    first, second = outcomes
    in_a, in_b = _placed(first), _placed(second)
    cut_a, cut_b = _cuts(first.result), _cuts(second.result)
    by_hit = {}
    for chunk_id in dict.fromkeys((*in_a, *in_b)):
        (rank_a, hit_a), (rank_b, hit_b) = (side.get(chunk_id, (None, None)) for side in (in_a, in_b))
        passage = cast(Hit, hit_b or hit_a).passage
        by_hit[chunk_id] = ComparedResult(
            chunk_id=passage.stored_chunk_id,
            document_id=passage.stored_document_id,
            knowledge_base_id=passage.kb_id,
            title=passage.title,
            source=passage.source,
            page=passage.page,
            text=passage.text,
            rank=SideRanks(rank_a, rank_b),
            score=SideScores(hit_a.score if hit_a else None, hit_b.score if hit_b else None),
            moved=None if rank_a is None or rank_b is None else rank_a - rank_b,
            cut_by=SideStages(
                "" if hit_a else cut_a.get(chunk_id, NOT_FOUND), "" if hit_b else cut_b.get(chunk_id, NOT_FOUND)
            ),
        )
    side_a, side_b = (
        ComparedSide(
            profile=UsedProfile.of(outcome.wiring.profile),
            overrides=outcome.request.overrides,
            score_scale=ScoreScale(outcome.result.score_scale),
            threshold=outcome.result.threshold,
            degraded=outcome.result.degraded,
            timings_ms=outcome.result.timings_ms,
        )
        for outcome in outcomes
    )
    response = CompareResponse(
        query=first.result.query,
        identical=all(result.moved == 0 for result in by_hit.values()),
        results=tuple(by_hit.values()),
        settings=_setting_differences(first, second),
        a=side_a,
        b=side_b,
    )
    return SearchComparison(first, second, by_hit, response)


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
