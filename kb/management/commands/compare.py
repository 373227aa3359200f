from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase, Principal
from kb.management.base import KnowledgeBaseCommand, setting
from kb.profiles.services import name_and_version
from kb.quality.compare.services import compare_runs, compare_searches, runs_text, searches_text
from kb.quality.models import EvalRun
from kb.search.services.search import SearchRequest

SIDES = ("a", "b")


class Command(KnowledgeBaseCommand):
    help = "Compares two profiles on one query, or two runs of an evaluation set."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("query", nargs="?", help="what to search for; none with --runs")
        self.add_kb_argument(parser, required=False, repeatable=True)
        parser.add_argument("--user", metavar="NAME", help="whose permissions apply (default: those of the owner)")
        for side in SIDES:
            parser.add_argument(
                f"--{side}",
                default="",
                metavar="PROFILE[@V]",
                help="a retrieval profile, or one version of it, such as a draft (default: that of each knowledge base)",
            )
            parser.add_argument(
                f"--set-{side}",
                type=setting,
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="a setting over the profile, its value as in JSON (may be given several times)",
            )
        parser.add_argument(
            "--runs", type=int, nargs=2, metavar=("A", "B"), help="compare two evaluation runs by their numbers"
        )
        parser.add_argument("--json", action="store_true", help="print the response of the API")

    def handle(self, *_args: Any, **options: Any) -> None:
        _check(options)
        if options["runs"]:
            runs = compare_runs(*map(_run, options["runs"]))
            self._print(options, runs, runs_text(runs))
            return
        knowledge_bases = self.knowledge_bases(options)
        requests = (_request(options, side, knowledge_bases) for side in SIDES)
        searches = compare_searches(self._principal(knowledge_bases, options["user"]), *requests)
        self._print(options, searches.response, searches_text(searches.response))

    def _print(self, options: Mapping[str, Any], report: Any, lines: Any) -> None:
        if options["json"]:
            self.print_json(report)
            return
        for line in lines:
            self.stdout.write(line)

    def _principal(self, knowledge_bases: Sequence[KnowledgeBase], user: str | None) -> Principal:
        if user is not None:
            return Principal(self.user(user))
        owners = {kb.owner_id: kb.owner for kb in knowledge_bases}
        if len(owners) > 1:
            raise CommandError("The knowledge bases have several owners: say with --user whose permissions apply.")
        return Principal(next(iter(owners.values())))


def _check(options: Mapping[str, Any]) -> None:
    if (options["query"] is None) == (options["runs"] is None):
        raise CommandError("Give either a query, or --runs A B.")
    if options["runs"] is None and not options["kb"]:
        raise CommandError("Say with --kb NAME where to search.")
    own = ("kb", "user", "a", "b", "set_a", "set_b")
    given = [f"--{name.replace('_', '-')}" for name in own if options[name]]
    if options["runs"] and given:
        raise CommandError(f"--runs compares what was measured: leave out {', '.join(given)}.")


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
