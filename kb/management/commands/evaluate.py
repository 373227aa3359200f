from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase, Principal
from kb.management.base import KnowledgeBaseCommand, add_all, argument, kb_arguments, setting
from kb.profiles.services import find_version, name_and_version
from kb.quality.eval_sets.services.sets import eval_set_by_name
from kb.quality.models import EvalQuery, EvalRun, EvalSet
from kb.quality.runs.services import report as floors
from kb.quality.runs.services.report import evaluate, report_as_json
from kb.quality.runs.services.run import query_count
from kb.quality.runs.services.runs import evaluate_as_run

LOST_LISTED = 20


class Command(KnowledgeBaseCommand):
    help = (
        "Measures the stages bm25, vector, fused and reranked over an evaluation set; may check that they do not fall."
    )

    arguments = (
        *kb_arguments(),
        argument("--eval-set", required=True, metavar="NAME"),
        argument(
            "--profile",
            default="",
            metavar="NAME[@VERSION]",
            help="a retrieval profile, or one version of it, such as a draft (default: the knowledge base's own)",
        ),
        argument(
            "--override",
            type=setting,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a setting over the profile, its value as in JSON (may be given several times)",
        ),
        argument("--limit", type=int, metavar="N", help="only the first N queries, with an answer and without"),
        argument("--json", action="store_true", help="print JSON, with figures from 0 to 1"),
        argument("--save", action="store_true", help="keep it as an evaluation run, which the admin shows"),
    )
    floors = (
        argument(
            "--min-recall5",
            type=float,
            metavar="X",
            help="floor of recall@5 after the reranker, or after the fusion where there is none, 0 to 1",
        ),
        argument(
            "--baseline",
            type=Path,
            metavar="FILE",
            help="an earlier output of --json: no figure may be lower than there",
        ),
        argument(
            "--tolerance",
            type=float,
            default=floors.TOLERANCE,
            metavar="X",
            help="how much lower a figure may be than in the baseline (default: %(default)s)",
        ),
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        gate = parser.add_argument_group("regression gate", "Exit code 1 where a figure is below its floor.")
        add_all(gate, self.floors)

    def handle(self, *_: Any, **options: Any) -> None:
        kb = self.knowledge_base(options)
        eval_set = eval_set_by_name(kb, options["eval_set"])
        baseline = floors.read_baseline(options["baseline"]) if options["baseline"] else None
        report = self._report(kb, eval_set, options)
        self.answer(options, report, self._lines(report))
        below = [] if options["min_recall5"] is None else floors.below_recall(report, options["min_recall5"])
        worse = [] if baseline is None else floors.below_baseline(report, baseline, options["tolerance"])
        if below or worse:
            # Below a floor, but no worse than the baseline: what it has lost too.
            lost = floors.lost_queries(report, baseline) or (floors.lost_queries(report, None) if below else [])
            raise CommandError(_verdict(eval_set, below + worse, lost))

    def _report(self, kb: KnowledgeBase, eval_set: EvalSet, options: dict[str, Any]) -> dict[str, Any]:
        principal = Principal(kb.owner)
        name, version = name_and_version(options["profile"])
        how = {
            "profile": find_version(principal, name, version, scope=[kb.pk]) if name else None,
            "overrides": dict(options["override"]),
            "limit": options["limit"],
        }
        with self.progress_bar(total=query_count(eval_set, options["limit"]), unit="queries") as bar:
            if not options["save"]:
                return report_as_json(evaluate(principal, eval_set, **how, on_progress=bar.update))
            run = evaluate_as_run(principal, eval_set, **how, on_progress=bar.update)
        if run.status != EvalRun.Status.DONE:
            raise CommandError(f"Run {run.pk} was cancelled; what it measured until then is in the admin.")
        return report_as_json(run.report)

    def _lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        profile, depth = report["profile"], report["candidates"]
        yield (
            f"{report['kb']} / {report['eval_set']}: {report['queries']} queries, profile {profile['name']} "
            f"v{profile['version']}, candidates: {depth['vector']} vector, {depth['bm25']} bm25"
        )
        for degradation in report["degraded"]:
            yield self.style.WARNING(f"degraded ({degradation['stage']}): {degradation['detail']}")
        if count := report["unanchored_count"]:
            yield self.style.WARNING(f"{count} relevant judgments are of nothing that is still there")
        names = list(next(iter(report["stages"].values()), {}))
        yield "".join(f"{name:>12}" for name in ["", *names])
        for stage, figures in report["stages"].items():
            yield f"{stage:>12}" + "".join(f"{figures[name]:>12.4f}" for name in names)
        if lost := report["miss_counts"]:
            counts = ", ".join(f"{stage} {count}" for stage, count in lost.items())
            yield f"queries without a relevant result, by the stage that lost it: {counts}"
        if latency := report["latency_ms"]:
            yield f"milliseconds a query, {report['searches_at_once']} at once: p50 {latency['p50']}, p95 {latency['p95']}"
        if gate := report["gate"]:
            yield (
                f"gate at {gate['scale']} {gate['cut']:g}: keeps {gate['answerable_kept']:.1%} of the answerable queries, lets "
                f"{gate['unanswerable_passed']:.1%} of {gate['unanswerable']} unanswerable ones pass; AUROC {gate['auroc']:.4f}"
            )
        if run_id := report.get("run_id"):
            yield f"kept as run {run_id}"


def _verdict(eval_set: EvalSet, shortfalls: Sequence[str], lost: Sequence[tuple[str, float, float]]) -> str:
    listed = lost[:LOST_LISTED]
    queries = EvalQuery.objects.filter(eval_set=eval_set, external_id__in=[key for key, *_ in listed])
    texts = dict(queries.values_list("external_id", "text"))
    lines = [
        "Below the floor:",
        *(f"  {shortfall}" for shortfall in shortfalls),
        f"Queries lost (recall@5): {len(lost)}",
        *(f"  {key}: {before:g} -> {recall:g}  {texts.get(key, '')}" for key, before, recall in listed),
    ]
    if len(lost) > len(listed):
        lines.append(f"  and {len(lost) - len(listed)} more")
    return "\n".join(lines)
