from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase, Principal
from kb.base.messages import shown
from kb.base.text import InvalidFilter
from kb.index.filters import SIGNS, Filters, read_condition
from kb.management.base import KnowledgeBaseCommand, argument, excerpt, kb_arguments, require_query_or, table
from kb.profiles.services import name_and_version
from kb.search.models import SearchLog
from kb.search.services.replay import as_text, replay
from kb.search.services.search import MAX_LATENCY_BUDGET_MS, SearchOutcome, SearchRequest, response_of, search
from retrieval.types import STAGES, Candidate, Hit, Result, clock

EXCERPT = 160


def _latency_budget(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= MAX_LATENCY_BUDGET_MS):
        raise ArgumentTypeError(f"{text} is not a whole number from 1 to {MAX_LATENCY_BUDGET_MS:,}")
    return int(text)


def _trace_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no trace id: copy it from a response or from the search log") from error


def _condition(text: str) -> dict[str, Any]:
    try:
        return read_condition(text)
    except InvalidFilter as error:
        message = f"{text!r} is no condition: give KEY=VALUE, or another sign of {' '.join(SIGNS)}"
        raise ArgumentTypeError(message) from error


class Command(KnowledgeBaseCommand):
    help = "Searches knowledge bases, by the same pipeline as the API and the search-debug page."

    arguments = (
        argument("query", nargs="?", help="what to search for; none with --replay"),
        *kb_arguments(required=False, repeatable=True),
        argument(
            "--user",
            metavar="NAME",
            help="whose permissions apply (default: those of the owner; with --replay of who searched)",
        ),
        argument("--top-k", type=int, metavar="N", help="number of results (default: the profile's)"),
        argument(
            "--profile",
            default="",
            metavar="NAME[@V]",
            help="a retrieval profile, or one version of it, such as a draft (default: that of each knowledge base)",
        ),
        argument("--score-threshold", type=float, metavar="X", help="least score; 0: no gate (default: the profile's)"),
        argument(
            "--document",
            type=int,
            action="append",
            metavar="ID",
            help="only chunks of this document (may be given several times)",
        ),
        argument(
            "--tag", action="append", metavar="TAG", help="only documents with this tag (several: with any of them)"
        ),
        argument(
            "--filter",
            type=_condition,
            action="append",
            metavar="KEY=VALUE",
            help=f"only documents whose metadata meet this, by one of {' '.join(SIGNS)} (~ contains): 'year>=2023'. The value "
            "is a number, true, false, null, or a text; quote a text that looks like a number: 'year=\"2024\"'. Several: all",
        ),
        argument(
            "--latency-budget-ms",
            type=_latency_budget,
            metavar="N",
            help="after so many ms the search answers with what it has (default: LATENCY_BUDGET_MS, which does not count "
            "the loading of a local model)",
        ),
        argument(
            "--replay",
            type=_trace_id,
            metavar="TRACE_ID",
            help="run a search of the log again, under the same profile version, and show what has changed",
        ),
        argument("--explain", action="store_true", help="show every candidate, what cut it, and the stages"),
        argument(
            "--json", action="store_true", help="print the response of POST /api/v1/search/, or of traces/ID/replay/"
        ),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        require_query_or(
            options,
            "replay",
            "--replay TRACE_ID",
            "--replay searches as was searched before",
            ("kb", "top_k", "profile", "score_threshold", "document", "tag", "filter", "latency_budget_ms", "explain"),
        )
        if options["replay"]:
            self._replay(options)
            return
        knowledge_bases = self.knowledge_bases(options)
        given = {"document_ids": options["document"], "tags": options["tag"], "metadata": options["filter"]}
        profile, version = name_and_version(options["profile"])
        request = SearchRequest(
            query=options["query"],
            knowledge_base_ids=[kb.pk for kb in knowledge_bases],
            profile=profile,
            profile_version=version,
            overrides={name: options[name] for name in ("top_k", "score_threshold") if options[name] is not None},
            explain=options["explain"],
            latency_budget_ms=options["latency_budget_ms"],
            filters=Filters.parse(given) if any(given.values()) else None,
        )
        outcome = search(self.principal(options, knowledge_bases), request)
        self.answer(options, response_of(outcome), self._lines(outcome))

    def _replay(self, options: Mapping[str, Any]) -> None:
        trace_id = options["replay"]
        entry = SearchLog.objects.select_related("user").filter(pk=trace_id).first()
        knowledge_bases = KnowledgeBase.objects.select_related("owner").in_bulk(
            entry.knowledge_base_ids if entry else []
        )
        if entry is None or not knowledge_bases:
            raise CommandError(f"There is no search with the trace id {trace_id}, or its knowledge bases are gone.")
        is_searchers = options["user"] is None and entry.user is not None
        principal = Principal(entry.user) if is_searchers else self.principal(options, knowledge_bases.values())
        replayed = replay(principal, trace_id)
        self.answer(options, replayed, as_text(replayed, {kb.pk: kb.name for kb in knowledge_bases.values()}))

    def _lines(self, outcome: SearchOutcome) -> Iterator[str]:
        result, profile = outcome.result, outcome.wiring.profile
        yield from _passages(result.hits)
        if result.near_misses:
            yield f"near misses, below the built-in cut of the scale {result.score_scale}, {result.threshold:g}:\n\n"
            yield from _passages(result.near_misses)
        for degradation in result.degraded:
            yield self.style.WARNING(f"degraded ({degradation.stage}): {shown(degradation.detail)}")
        if outcome.request.explain:
            yield from _explained(result)
        yield (
            f"{len(result.hits)} of {len(result.candidates)} candidates in {result.timings_ms['total']:.1f} ms; "
            f"profile {profile.name} v{profile.version}, gate {result.score_scale} >= {result.threshold:g}, "
            f"trace {outcome.trace_id}"
        )


def _passages(hits: Iterable[Hit]) -> Iterator[str]:
    for number, hit in enumerate(hits, start=1):
        yield _heading(number, hit)
        yield f"    {_places(hit)}"
        yield f"    {excerpt(hit.passage.text, EXCERPT)}\n\n"


def _explained(result: Result) -> Iterator[str]:
    yield f"terms: {', '.join(result.analysis.all_terms) or 'none'}\n\n"
    stages = [stage for stage in STAGES if any(stage in candidate.scores for candidate in result.candidates)]
    header = ["chunk", *stages, "cut by", "source", "matched terms"]
    yield from table([header, *(_row(candidate, stages) for candidate in result.candidates)])
    yield ""
    spans = [
        [span.stage, f"{span.milliseconds:.2f}", ", ".join(f"{k}={v}" for k, v in span.detail.items())]
        for span in result.spans
    ]
    yield from table([["stage", "ms", ""], *spans])
    yield ""


def _heading(number: int, hit: Hit) -> str:
    passage = hit.passage
    page = f", page {passage.page}" if passage.page else ""
    place = page if passage.seconds is None else f", {clock(passage.seconds)}"
    path = " > ".join(dict.fromkeys((passage.title, *passage.heading_path)))
    relevance = f" {hit.relevance}" if hit.relevance else ""
    return f"{number:>2}. {hit.score:.4f} {hit.score_scale}{relevance}  {path} ({passage.source}{place})"


def _places(hit: Hit) -> str:
    origin = hit.passage.origin
    place = f"chunk {hit.passage.chunk_id}" if origin is None else f"from {origin.source}, {origin.url}"
    return " · ".join((place, *(f"{stage} {cell}" for stage in STAGES if (cell := _cell(hit, stage)))))


def _row(candidate: Candidate, stages: Iterable[str]) -> list[str]:
    cells = [_cell(candidate, stage) or "-" for stage in stages]
    source = candidate.passage.source if candidate.passage else ""
    cut_by = "gate (near miss)" if candidate.is_near_miss else candidate.cut_by or ""
    return [str(candidate.chunk_id), *cells, cut_by, source, " ".join(candidate.matched_terms)]


def _cell(found: Hit | Candidate, stage: str) -> str:
    """Rank and score of one stage; blank where the stage did not see it."""
    rank, score = found.ranks.get(stage), found.scores.get(stage)
    return " ".join(part for part in (f"#{rank}" if rank else "", "" if score is None else f"{score:.4f}") if part)
