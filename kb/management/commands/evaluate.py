from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from kb.management.base import KnowledgeBaseCommand
from kb.models import EvalSet, KnowledgeBase, Principal
from kb.services.evaluation import evaluate, ranked_queries, unanswerable_queries


class Command(KnowledgeBaseCommand):
    help = "Measures the stages bm25, vector, fused and reranked over an evaluation set."

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.add_kb_argument(parser)
        parser.add_argument("--eval-set", required=True, metavar="NAME")
        parser.add_argument("--profile", default="", metavar="NAME", help="instead of the knowledge base's own")
        parser.add_argument(
            "--limit", type=int, metavar="N", help="only the first N queries, with an answer and without"
        )
        parser.add_argument("--json", action="store_true", help="print JSON, with figures from 0 to 1")

    def handle(self, *_: Any, **options: Any) -> None:
        kb = self.knowledge_base(options)
        eval_set = _eval_set(kb, options["eval_set"])
        limit = options["limit"]
        total = ranked_queries(eval_set, limit).count() + unanswerable_queries(eval_set, limit).count()
        with self.progress_bar(total=total, unit="queries") as bar:
            report = evaluate(
                Principal(kb.owner),
                eval_set,
                profile=options["profile"],
                limit=limit,
                on_progress=bar.update,
            )
        if options["json"]:
            self.print_json(report)
        else:
            self._print_table(report)

    def _print_table(self, report: dict[str, Any]) -> None:
        profile, depth = report["profile"], report["candidates"]
        self.stdout.write(
            f"{report['kb']} / {report['eval_set']}: {report['queries']} queries, profile {profile['name']} "
            f"v{profile['version']}, candidates: {depth['vector']} vector, {depth['bm25']} bm25"
        )
        for degradation in report["degraded"]:
            self.stdout.write(self.style.WARNING(f"degraded ({degradation['stage']}): {degradation['detail']}"))
        names = list(next(iter(report["stages"].values()), {}))
        self.stdout.write("".join(f"{name:>12}" for name in ["", *names]))
        for stage, figures in report["stages"].items():
            self.stdout.write(f"{stage:>12}" + "".join(f"{figures[name]:>12.4f}" for name in names))
        if latency := report["latency_ms"]:
            self.stdout.write(f"milliseconds a query: p50 {latency['p50']}, p95 {latency['p95']}")
        if gate := report["gate"]:
            self.stdout.write(
                f"gate at {gate['scale']} {gate['cut']:g}: keeps {gate['answerable_kept']:.1%} of the answerable queries, lets "
                f"{gate['unanswerable_passed']:.1%} of {gate['unanswerable']} unanswerable ones pass; AUROC {gate['auroc']:.4f}"
            )


def _eval_set(kb: KnowledgeBase, name: str) -> EvalSet:
    try:
        found: EvalSet = EvalSet.objects.select_related("knowledge_base").get(knowledge_base=kb, name=name)
    except EvalSet.DoesNotExist as error:
        names = ", ".join(kb.eval_sets.values_list("name", flat=True)) or "none: see `manage.py import_beir --help`"
        raise CommandError(f"{kb.name!r} has no evaluation set {name!r}; there are: {names}") from error
    return found
