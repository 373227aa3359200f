from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Sequence
from typing import Any

from django.core.management.base import CommandError

from kb.management.base import KnowledgeBaseCommand
from kb.models import KnowledgeBase, Principal
from kb.services.search import MAX_LATENCY_BUDGET_MS, SearchOutcome, SearchRequest, outcome_as_json, search
from retrieval.types import Candidate, Hit

EXCERPT = 160
STAGES = ("vector", "bm25", "fused", "rerank")


class Command(KnowledgeBaseCommand):
    help = "Searches knowledge bases, by the same pipeline as the API and the search-debug page."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("query")
        self.add_kb_argument(parser, repeatable=True)
        parser.add_argument("--user", metavar="NAME", help="whose permissions apply (default: those of the owner)")
        parser.add_argument("--top-k", type=int, metavar="N", help="number of results (default: the profile's)")
        parser.add_argument("--profile", default="", metavar="NAME", help="default: that of each knowledge base")
        parser.add_argument(
            "--score-threshold", type=float, metavar="X", help="least score; 0: no gate (default: the profile's)"
        )
        parser.add_argument(
            "--latency-budget-ms",
            type=_latency_budget,
            metavar="N",
            help="how long to wait for a keyword index that is being built (default: LATENCY_BUDGET_MS)",
        )
        parser.add_argument("--explain", action="store_true", help="show every candidate, what cut it, and the stages")
        parser.add_argument("--json", action="store_true", help="print the response of POST /api/v1/search/")

    def handle(self, *_args: Any, **options: Any) -> None:
        knowledge_bases = self.knowledge_bases(options)
        overrides = {name: options[name] for name in ("top_k", "score_threshold") if options[name] is not None}
        request = SearchRequest(
            query=options["query"],
            knowledge_base_ids=[kb.pk for kb in knowledge_bases],
            profile=options["profile"],
            overrides=overrides,
            explain=options["explain"],
            latency_budget_ms=options["latency_budget_ms"],
        )
        outcome = search(self._principal(knowledge_bases, options["user"]), request)
        if options["json"]:
            self.print_json(outcome_as_json(outcome))
        else:
            self._show(outcome)

    def _principal(self, knowledge_bases: Sequence[KnowledgeBase], user: str | None) -> Principal:
        if user is not None:
            return Principal(self.user(user))
        owners = {kb.owner_id: kb.owner for kb in knowledge_bases}
        if len(owners) > 1:
            raise CommandError("The knowledge bases have several owners: say with --user whose permissions apply.")
        return Principal(next(iter(owners.values())))

    def _show(self, outcome: SearchOutcome) -> None:
        result, profile = outcome.result, outcome.wiring.profile
        for number, hit in enumerate(result.hits, start=1):
            self.stdout.write(_heading(number, hit))
            self.stdout.write(f"    {_places(hit)}")
            self.stdout.write(f"    {_excerpt(hit.passage.text)}\n\n")
        for degradation in result.degraded:
            self.stdout.write(self.style.WARNING(f"degraded ({degradation.stage}): {degradation.detail}"))
        if outcome.request.explain:
            self._explain(outcome)
        self.stdout.write(
            f"{len(result.hits)} of {len(result.candidates)} candidates in {result.timings_ms['total']:.1f} ms; "
            f"profile {profile.name} v{profile.version}, gate {result.score_scale} >= {result.threshold:g}, "
            f"trace {outcome.trace_id}"
        )

    def _explain(self, outcome: SearchOutcome) -> None:
        result = outcome.result
        self.stdout.write(f"terms: {', '.join(result.analysis.all_terms) or 'none'}\n\n")
        header = ["chunk", *STAGES, "cut by", "source", "matched terms"]
        self._table([header, *(_row(candidate) for candidate in result.candidates)])
        self.stdout.write("")
        self._table(
            [["stage", "ms", ""]]
            + [
                [span.stage, f"{span.milliseconds:.2f}", ", ".join(f"{k}={v}" for k, v in span.detail.items())]
                for span in result.spans
            ]
        )
        self.stdout.write("")

    def _table(self, rows: Sequence[Sequence[str]]) -> None:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _latency_budget(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= MAX_LATENCY_BUDGET_MS):
        raise ArgumentTypeError(f"{text} is not a whole number from 1 to {MAX_LATENCY_BUDGET_MS:,}")
    return int(text)


def _heading(number: int, hit: Hit) -> str:
    passage = hit.passage
    page = f", page {passage.page}" if passage.page else ""
    path = " > ".join(dict.fromkeys((passage.title, *passage.heading_path)))
    return f"{number:>2}. {hit.score:.4f} {hit.score_scale}  {path} ({passage.source}{page})"


def _places(hit: Hit) -> str:
    return "chunk {} · {}".format(hit.passage.chunk_id, " · ".join(_stages(hit)))


def _stages(found: Hit | Candidate) -> Iterable[str]:
    return (f"{stage} {cell}" for stage in STAGES if (cell := _cell(found, stage)))


def _row(candidate: Candidate) -> list[str]:
    cells = [_cell(candidate, stage) or "-" for stage in STAGES]
    source = candidate.passage.source if candidate.passage else ""
    return [str(candidate.chunk_id), *cells, candidate.cut_by or "", source, " ".join(candidate.matched_terms)]


def _cell(found: Hit | Candidate, stage: str) -> str:
    """Rank and score of one stage; blank where the stage did not see it."""
    rank, score = found.ranks.get(stage), found.scores.get(stage)
    return " ".join(part for part in (f"#{rank}" if rank else "", "" if score is None else f"{score:.4f}") if part)


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else f"{line[:EXCERPT]}…"
