"""What the commands share: their arguments, which knowledge base, what went wrong, how far it is, and JSON for programs."""

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import methodcaller
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import translation
from tqdm import tqdm

from kb.access.models import KnowledgeBase, Principal, User
from kb.access.services.attribution import How, acting
from kb.base.errors import ServiceError
from kb.base.files import FilesUnavailable
from kb.base.shapes import as_values
from kb.content.services import knowledge_base_by_name
from kb.index.services.reindex import Step, build_indexes
from retrieval.errors import RetrievalError
from retrieval.highlight import without_rules

Argument = Callable[[Any], object]
"""Adds itself to a parser, or to a group of one."""


def argument(*flags: str, **options: Any) -> Argument:
    """An argument as `ArgumentParser.add_argument` takes it."""
    return methodcaller("add_argument", *flags, **options)


def one_of(*arguments: Argument, required: bool = False) -> Argument:
    """Arguments that exclude one another."""

    def add(parser: ArgumentParser) -> None:
        add_all(parser.add_mutually_exclusive_group(required=required), arguments)

    return add


def actions(
    table: Mapping[str, tuple[str, Sequence[Argument]]], *, metavar: str = "ACTION", described: bool = True
) -> Argument:
    """Subcommands: by name, help and arguments of each; `described`: the help is also the description of each."""

    def add(parser: ArgumentParser) -> None:
        subparsers = parser.add_subparsers(dest="action", required=True, metavar=metavar)
        for name, (text, arguments) in table.items():
            add_all(subparsers.add_parser(name, help=text, description=text if described else None), arguments)

    return add


def add_all(parser: Any, arguments: Iterable[Argument]) -> None:
    for add in arguments:
        add(parser)


def kb_arguments(*, required: bool = True, repeatable: bool = False) -> tuple[Argument, Argument]:
    """--kb and --owner; `repeatable` makes the value of the former a list."""
    return (
        argument(
            "--kb",
            required=required,
            metavar="NAME",
            action="append" if repeatable else "store",
            default=[] if repeatable else None,
            help="name of the knowledge base" + (" (may be given several times)" if repeatable else ""),
        ),
        argument("--owner", metavar="USER", help="user name of its owner, where several have one of that name"),
    )


JSON = argument("--json", action="store_true", help="print JSON")
USER = argument("--user", metavar="NAME", help="whose permissions apply (default: those of the owner)")


class KnowledgeBaseCommand(BaseCommand):
    """A command on knowledge bases; errors of services, retrieval and the store of files end it with exit code 1."""

    arguments: Sequence[Argument] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_all(parser, self.arguments)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Runs the command in English throughout: half of its sentences are not in the catalogue of the admin."""
        try:
            with translation.override(None), acting(How.COMMAND, via=type(self).__module__.rpartition(".")[2]):
                return super().execute(*args, **options)
        except (ServiceError, RetrievalError, FilesUnavailable) as error:
            raise CommandError(str(error)) from error

    def knowledge_base(self, options: dict[str, Any]) -> KnowledgeBase:
        """The knowledge base of --kb and --owner; NotVisible where there is none of that name, or more than one."""
        return knowledge_base_by_name(options["kb"], owner=options["owner"])

    def knowledge_bases(self, options: dict[str, Any]) -> list[KnowledgeBase]:
        """Those of a repeatable --kb, in the order given; NotVisible as for one."""
        return [knowledge_base_by_name(name, owner=options["owner"]) for name in options["kb"]]

    def found_knowledge_base(self, options: dict[str, Any]) -> KnowledgeBase | None:
        """As `knowledge_base`; None where there is none of that name."""
        named = KnowledgeBase.objects.filter(name=options["kb"])
        if options["owner"]:
            named = named.filter(owner__username=options["owner"])
        return self.knowledge_base(options) if named.exists() else None

    def principal(self, options: Mapping[str, Any], knowledge_bases: Iterable[KnowledgeBase]) -> Principal:
        """The user of --user, or else the owner of the knowledge bases; CommandError where they have several."""
        if options["user"] is not None:
            return Principal(self.user(options["user"]))
        owners = {kb.owner_id: kb.owner for kb in knowledge_bases}
        if len(owners) > 1:
            raise CommandError("The knowledge bases have several owners: say with --user whose permissions apply.")
        return Principal(next(iter(owners.values())))

    def user(self, name: str | None) -> User:
        """The user of a name; without one the first superuser, who owns what is made at the command line."""
        try:
            return User.objects.get(username=name) if name else User.objects.filter(is_superuser=True).earliest("pk")
        except User.DoesNotExist as error:
            who = f"user named {name!r}" if name else "superuser"
            raise CommandError(f"There is no {who}: `manage.py createsuperuser` makes one.") from error

    def progress_bar(
        self, iterable: Iterable[Any] | None = None, *, total: int | None = None, unit: str, scale: bool = False
    ) -> tqdm:
        """Shows on stderr how much of something is done, how fast, and how long the rest will take.

        It passes the items of `iterable` on; without one, the caller counts. `scale` writes 12.3M for large counts.
        """
        # A log gets a line every ten seconds, not ten a second.
        seconds = 0.1 if sys.stderr.isatty() else 10
        return tqdm(
            iterable,
            total=total,
            unit=unit if scale else f" {unit}",
            unit_scale=scale,
            file=sys.stderr,
            mininterval=seconds,
            maxinterval=seconds,
            dynamic_ncols=True,
        )

    def build_indexes(self, knowledge_bases: Sequence[KnowledgeBase]) -> None:
        """Builds what the next search of knowledge bases would wait for, with a bar for each step."""
        units = {Step.STATISTICS: "tables", Step.VECTORS: "vectors"}
        bars: dict[Step, tqdm] = {}
        with ExitStack() as stack:

            def advance(step: Step, done: int, total: int) -> None:
                if step not in bars:
                    bars[step] = stack.enter_context(self.progress_bar(total=total, unit=units.get(step, "indexes")))
                    bars[step].set_description(step.value)
                bars[step].total = total
                bars[step].update(done - bars[step].n)

            build_indexes(knowledge_bases, advance)

    def answer(self, options: Mapping[str, Any], value: Any, lines: Iterable[str]) -> None:
        """Writes an answer to stdout, which holds nothing else: with --json as one JSON document, else line by line."""
        if options["json"]:
            lines = [json.dumps(as_values(value), ensure_ascii=False, indent=2)]
        for line in lines:
            self.stdout.write(line)


def require_query_or(
    options: Mapping[str, Any], other: str, usage: str, reason: str, search_options: Sequence[str]
) -> None:
    """CommandError unless there is either a query with --kb, or another option without any that says how to search."""
    if (options["query"] is None) == (options[other] is None):
        raise CommandError(f"Give either a query, or {usage}.")
    if options[other] is None and not options["kb"]:
        raise CommandError("Say with --kb NAME where to search.")
    given = [f"--{name.replace('_', '-')}" for name in search_options if options[name] not in (None, "", [], False)]
    if options[other] and given:
        raise CommandError(f"{reason}: leave out {', '.join(given)}.")


def excerpt(text: str, characters: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(without_rules(text).split())
    return line if len(line) <= characters else f"{line[:characters]}…"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with the cells of rows, each column as wide as the longest of its cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, whose value is JSON, or else a text; ArgumentTypeError where there is no name, or no =."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ArgumentTypeError(f"{text!r} is no setting: give NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
