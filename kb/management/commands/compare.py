from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase
from kb.base.messages import shown
from kb.management.base import USER, KnowledgeBaseCommand, argument, excerpt, kb_arguments, require_query_or, setting
from kb.profiles.services import SettingDifference, name_and_version
from kb.quality.compare.services import (
    ComparedResult,
    CompareResponse,
    MetricDifference,
    QueryDifference,
    RunComparison,
    compare_runs,
    compare_searches,
)
from kb.quality.models import EvalRun
from kb.search.services.search import SearchRequest
from retrieval.eval.metrics import SIGNIFICANCE_LEVEL

SIDES = ("a", "b")
QUERIES_SHOWN = 10
EXCERPT = 100


class Command(KnowledgeBaseCommand):
    help = "Compares two profiles on one query, or two runs of an evaluation set."

    arguments = (
        argument("query", nargs="?", help="what to search for; none with --runs"),
        *kb_arguments(required=False, repeatable=True),
        USER,
        *(
            each
            for side in SIDES
            for each in (
                argument(
                    f"--{side}",
                    default="",
                    metavar="PROFILE[@V]",
                    help="a retrieval profile, or one version of it, such as a draft (default: that of each knowledge base)",
                ),
                argument(
                    f"--set-{side}",
                    type=setting,
                    action="append",
                    default=[],
                    metavar="NAME=VALUE",
                    help="a setting over the profile, its value as in JSON (may be given several times)",
                ),
            )
        ),
        argument("--runs", type=int, nargs=2, metavar=("A", "B"), help="compare two evaluation runs by their numbers"),
        argument("--json", action="store_true", help="print the response of the API"),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        own = ("kb", "user", "a", "b", "set_a", "set_b")
        require_query_or(options, "runs", "--runs A B", "--runs compares what was measured", own)
        if options["runs"]:
            runs = compare_runs(*map(_run, options["runs"]))
            self.answer(options, runs, _runs(runs))
            return
        knowledge_bases = self.knowledge_bases(options)
        requests = (_request(options, side, knowledge_bases) for side in SIDES)
        searches = compare_searches(self.principal(options, knowledge_bases), *requests)
        self.answer(options, searches.response, _searches(searches.response))


def _request(options: Mapping[str, Any], side: str, knowledge_bases: Sequence[KnowledgeBase]) -> SearchRequest:
    profile, version = name_and_version(options[side])
    return SearchRequest(
        query=options["query"],
        knowledge_base_ids=[kb.pk for kb in knowledge_bases],
        profile=profile,
        profile_version=version,
        overrides=dict(options[f"set_{side}"]),
    )


def _run(number: int) -> EvalRun:
    found: EvalRun | None = (
        EvalRun.objects.select_related("eval_set__knowledge_base", "profile").filter(pk=number).first()
    )
    if found is None:
        raise CommandError(f"There is no evaluation run {number}: `manage.py evaluate --save` makes one.")
    return found


def _searches(comparison: CompareResponse) -> Iterator[str]:
    results = comparison.results
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        found = sum((result.rank.a if letter == "A" else result.rank.b) is not None for result in results)
        degraded = "".join(f"; degraded ({each.stage}): {shown(each.detail)}" for each in side.degraded)
        yield (
            f"{letter}: profile {side.profile.name} v{side.profile.version}, {found} results in "
            f"{side.timings_ms['total']:.1f} ms, gate {side.score_scale} >= {side.threshold:g}{degraded}"
        )
    yield from _settings(comparison.settings)
    yield ""
    if not results:
        yield "Neither side found anything."
    elif comparison.identical:
        yield f"Both sides give the same {len(results)} results in the same order."
    yield f"{'A':>4} {'B':>4}  {'':<10}"
    for result in results:
        ranks = f"{result.rank.a or '-':>4} {result.rank.b or '-':>4}"
        text = excerpt(result.text, EXCERPT)
        yield f"{ranks}  {_movement(result):<10} {result.title or result.source}: {text}"


def _movement(result: ComparedResult) -> str:
    if result.moved is None:
        return f"only A ({result.cut_by.b})" if result.rank.b is None else f"only B ({result.cut_by.a})"
    if result.moved == 0:
        return "="
    return f"up {result.moved}" if result.moved > 0 else f"down {-result.moved}"


def _settings(differences: Iterable[SettingDifference], kind: str = "setting") -> Iterator[str]:
    yield from (f"{kind} {each.name}: {each.before} -> {each.after}" for each in differences)


def _runs(comparison: RunComparison) -> Iterator[str]:
    for letter, run in (("A", comparison.before), ("B", comparison.after)):
        unsaved = "".join(f", {name}={value}" for name, value in run.overrides.items())
        yield f"{letter}: run {run.id} of {run.eval_set}, profile {run.profile.name} v{run.profile.version}{unsaved}"
    yield from _settings(comparison.settings)
    yield from _settings(comparison.models, "model")
    if not comparison.same_content:
        yield "The knowledge base has changed between the two runs."
    for count, letter in ((comparison.only_before, "A"), (comparison.only_after, "B")):
        if count:
            yield f"left out, because only {letter} has them: {count} queries"
    yield ""
    yield f"{comparison.queries} queries with an answer; * chance would not explain (p < {SIGNIFICANCE_LEVEL:g})"
    for stage, metrics in {**comparison.stages, "gate": comparison.gate, "ms": comparison.latency_ms}.items():
        yield from (_figure(stage, name, figure) for name, figure in metrics.items())
    for kind, queries in (("lost", comparison.lost), ("won", comparison.won)):
        yield f"{kind}: {len(queries)}"
        yield from map(_query, queries[:QUERIES_SHOWN])
        if len(queries) > QUERIES_SHOWN:
            yield f"  and {len(queries) - QUERIES_SHOWN} more: see --json"
    yield f"unchanged: {comparison.tied}"


def _figure(stage: str, name: str, figure: MetricDifference) -> str:
    p_value = "" if figure.p_value is None else f"  p = {figure.p_value:.4f}"
    mark = " *" if figure.p_value is not None and figure.p_value < SIGNIFICANCE_LEVEL else ""
    return f"{stage:>10} {name:<20} {figure.before:>9.4f} -> {figure.after:>9.4f}  {figure.difference:+9.4f}{p_value}{mark}"


def _query(query: QueryDifference) -> str:
    lost = f" (lost by {query.lost_at_after})" if query.lost_at_after else ""
    return f"  {query.before:.3f} -> {query.after:.3f}  {query.external_id}: {query.text}{lost}"
