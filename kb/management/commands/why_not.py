from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import Principal
from kb.management.base import KnowledgeBaseCommand
from kb.quality.why_not.services.places import Remedy, RemedyCode, State, Terms, WhyNot, the_chunk
from kb.quality.why_not.services.remedies import answer_of, remedies
from kb.quality.why_not.services.sentences import stage_text, verdict_sentence
from kb.quality.why_not.services.walk import why_not_found
from kb.search.services.search import SearchRequest

SIGNS = {State.PASSED: "ok", State.WEAKENED: "!", State.LOST: "LOST", State.NOT_ASKED: "-"}


class Command(KnowledgeBaseCommand):
    help = "Says why a search does not find a chunk: the first stage that lost it, and what would help."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("query", help="what is searched for")
        self.add_kb_argument(parser, repeatable=True)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--chunk", type=int, metavar="ID", help="the chunk")
        which.add_argument("--text", metavar="TEXT", help="any part of its text that stands in no other chunk")
        parser.add_argument("--user", metavar="NAME", help="whose permissions apply (default: those of the owner)")
        parser.add_argument("--profile", default="", metavar="NAME", help="default: that of each knowledge base")
        parser.add_argument("--profile-version", type=int, metavar="N", help="a version of --profile, such as a draft")
        parser.add_argument("--json", action="store_true", help="print the response of POST /api/v1/why-not/")

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["profile_version"] is not None and not options["profile"]:
            raise CommandError("Say with --profile NAME whose version that is.")
        knowledge_bases = self.knowledge_bases(options)
        owners = {kb.owner_id: kb.owner for kb in knowledge_bases}
        if options["user"] is None and len(owners) > 1:
            raise CommandError("The knowledge bases have several owners: say with --user whose permissions apply.")
        principal = Principal(self.user(options["user"]) if options["user"] else next(iter(owners.values())))
        request = SearchRequest(
            query=options["query"],
            knowledge_base_ids=[kb.pk for kb in knowledge_bases],
            profile=options["profile"],
            profile_version=options["profile_version"],
        )
        chunk_id = options["chunk"]
        if chunk_id is None:
            chunk_id = the_chunk(principal, request.knowledge_base_ids, options["text"])
        why = why_not_found(principal, request, chunk_id)
        if options["json"]:
            self.print_json(answer_of(why))
        else:
            self._show(why)

    def _show(self, why: WhyNot) -> None:
        self.stdout.write(verdict_sentence(why) + "\n\n")
        self._table([[SIGNS[step.state], stage_text(step.stage), step.sentence] for step in why.steps])
        if why.terms is not None and why.terms.query:
            self.stdout.write("")
            self._terms(why.terms, why.chunk_count)
        found = remedies(why)
        if found:
            self.stdout.write("\nWhat would help:")
        for remedy in found:
            self.stdout.write(f"  - {remedy_text(remedy)}")

    def _terms(self, terms: Terms, chunk_count: int) -> None:
        header = ["term", "idf", f"in chunks of {chunk_count}", "in this one", "contribution"]
        rows = [
            [row.term, f"{row.idf:.3f}", str(row.in_chunks), str(row.in_chunk), f"{row.contribution:.3f}"]
            for row in terms.query
        ]
        self._table([header, *rows])

    def _table(self, rows: Sequence[Sequence[str]]) -> None:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def remedy_text(remedy: Remedy) -> str:
    """What to do, and where."""
    settings = ", ".join(f"{name} = {value}" for name, value in remedy.settings.items())
    return {
        RemedyCode.ENABLE: "switch the chunk on",
        RemedyCode.INDEX_CHUNK: "index the chunk anew: save it on its page of the admin",
        RemedyCode.RETRY_DOCUMENT: "process its document again",
        RemedyCode.ADD_WORD: f"add to the dictionary: {', '.join(remedy.suggestions)}",
        RemedyCode.ADD_QUESTION: f"add to the chunk's questions: {', '.join(remedy.suggestions)}",
        RemedyCode.DRAFT: f"change in the profile: {settings}",
        RemedyCode.CHANGE_REQUEST: f"search otherwise: {remedy.about}",
        RemedyCode.SHOW_DOUBLE: f"look at chunk {remedy.chunk_id}",
        RemedyCode.RUN_COMMAND: remedy.command,
    }[remedy.code]
