from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import CommandError

from kb.management.base import USER, KnowledgeBaseCommand, argument, kb_arguments, one_of, table
from kb.quality.why_not.services.places import (
    Remedy,
    RemedyCode,
    State,
    effect_text,
    stage_text,
    the_chunk,
    verdict_sentence,
)
from kb.quality.why_not.services.remedies import answer_of
from kb.quality.why_not.services.walk import WhyNot, why_not_found
from kb.search.services.search import SearchRequest

SIGNS = {State.PASSED: "ok", State.WEAKENED: "!", State.LOST: "LOST", State.NOT_ASKED: "-"}


class Command(KnowledgeBaseCommand):
    help = "Says why a search does not find a chunk: the first stage that lost it, and what would help."

    arguments = (
        argument("query", help="what is searched for"),
        *kb_arguments(repeatable=True),
        one_of(
            argument("--chunk", type=int, metavar="ID", help="the chunk"),
            argument("--text", metavar="TEXT", help="any part of its text that stands in no other chunk"),
            required=True,
        ),
        USER,
        argument("--profile", default="", metavar="NAME", help="default: that of each knowledge base"),
        argument("--profile-version", type=int, metavar="N", help="a version of --profile, such as a draft"),
        argument("--json", action="store_true", help="print the response of POST /api/v1/why-not/"),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["profile_version"] is not None and not options["profile"]:
            raise CommandError("Say with --profile NAME whose version that is.")
        knowledge_bases = self.knowledge_bases(options)
        principal = self.principal(options, knowledge_bases)
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
        answer = answer_of(why)
        self.answer(options, answer, _text(why, answer.remedies))


def _text(why: WhyNot, remedies: Sequence[Remedy]) -> Iterator[str]:
    yield verdict_sentence(why.verdict) + "\n\n"
    yield from table([[SIGNS[step.state], stage_text(step.stage), step.sentence] for step in why.steps])
    if why.terms is not None and why.terms.query:
        yield ""
        header = ["term", "idf", f"in chunks of {why.chunk_count}", "in this one", "contribution"]
        rows = [
            [row.term, f"{row.idf:.3f}", str(row.in_chunks), str(row.in_chunk), f"{row.contribution:.3f}"]
            for row in why.terms.query
        ]
        yield from table([header, *rows])
    if remedies:
        yield "\nWhat would help:"
        yield from (f"  - {remedy_text(remedy)}. {effect_text(remedy)}".rstrip() for remedy in remedies)


def remedy_text(remedy: Remedy) -> str:
    """What to do, and where."""
    settings = ", ".join(f"{name} = {value}" for name, value in remedy.settings.items())
    return {
        RemedyCode.ENABLE: "switch the chunk on",
        RemedyCode.INDEX_CHUNK: "index the chunk again: save it on its page of the admin",
        RemedyCode.RETRY_DOCUMENT: "process its document again",
        RemedyCode.ADD_WORD: f"add to the dictionary: {', '.join(remedy.suggestions)}",
        RemedyCode.ADD_QUESTION: f"add to the chunk's questions: {', '.join(remedy.suggestions)}",
        RemedyCode.DRAFT: f"change in the profile: {settings}",
        RemedyCode.CHANGE_REQUEST: f"search otherwise: {remedy.about}",
        RemedyCode.SHOW_DOUBLE: f"look at chunk {remedy.chunk_id}",
        RemedyCode.RUN_COMMAND: remedy.command,
    }[remedy.code]
