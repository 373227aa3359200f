import os
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.files import File
from django.core.management.base import CommandError

from kb.ingest.parse import SUPPORTED_EXTENSIONS
from kb.management.base import KnowledgeBaseCommand
from kb.models import Document, KnowledgeBase
from kb.services.documents import document_add
from kb.services.errors import AlreadyThere, Rejected
from kb.services.health import workers
from kb.services.indexing import index_document
from kb.services.knowledge_bases import knowledge_base_by_name, knowledge_base_create

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 10.0
UNFINISHED = (Document.Status.PENDING, Document.Status.PROCESSING)


@dataclass(frozen=True, slots=True)
class Found:
    """A file to read.

    Attributes:
        within: the folder that was named on the command line; None for a file that was named itself.
    """

    path: Path
    within: Path | None = None

    @property
    def supported(self) -> bool:
        return self.path.suffix.lower() in SUPPORTED_EXTENSIONS

    @property
    def metadata(self) -> dict[str, str]:
        """Where in its folder the file lay, since the source of a document is the bare file name."""
        return {} if self.within is None else {"path": readable(self.path.relative_to(self.within).as_posix())}


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of the files: documents new or known, and those that were refused with the reason."""

    added: list[int] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Command(KnowledgeBaseCommand):
    help = "Adds files, or folders of them, to a knowledge base; a worker makes them searchable."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file, or a folder to go through")
        self.add_kb_argument(parser)
        parser.add_argument("--create", action="store_true", help="create the knowledge base if it is not there")
        parser.add_argument("--title", default="", help="title of the document, for a single file")
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--wait", action="store_true", help="wait until a worker has made them searchable")
        group.add_argument("--inline", action="store_true", help="make them searchable here, without a worker")

    def handle(self, *_args: Any, **options: Any) -> None:
        files, skipped = _files(options["paths"])
        if options["title"] and len(files) != 1:
            raise CommandError(f"--title is for a single file, and there are {len(files)}")
        for path in skipped:
            self.stderr.write(f"skipped {path}: not one of {', '.join(SUPPORTED_EXTENSIONS)}")
        taken = self._add(files, self._target(options), options)
        self.stdout.write(f"{len(taken.added)} added, {len(taken.known)} already there, {len(skipped)} skipped")
        problems = taken.refused
        if options["wait"] or options["inline"]:
            problems = problems + self._outcome(taken.added + taken.known)
        elif taken.added:
            self.stdout.write("A worker makes them searchable; the admin shows how far it is.")
        if problems:
            raise CommandError("\n".join(problems))

    def _target(self, options: dict[str, Any]) -> KnowledgeBase:
        named = KnowledgeBase.objects.filter(name=options["kb"])
        if options["owner"]:
            named = named.filter(owner__username=options["owner"])
        if options["create"] and not named.exists():
            kb = knowledge_base_create(name=options["kb"], owner=self.user(options["owner"]))
            self.stdout.write(f"created the knowledge base {kb.name!r} with the embedding model {kb.embedding_model}")
            return knowledge_base_by_name(kb.name, owner=kb.owner.username)
        return self.knowledge_base(options)

    def _add(self, files: list[Found], kb: KnowledgeBase, options: dict[str, Any]) -> Taken:
        taken = Taken()
        for found in self.progress(files, total=len(files), unit="files"):
            try:
                document_id = _take(found, kb, options["title"])
                taken.added.append(document_id)
            except AlreadyThere as error:
                document_id = error.document_id
                taken.known.append(document_id)
            except (Rejected, OSError) as error:
                taken.refused.append(f"{found.path}: {error}")
                continue
            if options["inline"]:
                index_document(document_id)
        return taken

    def _wait(self, documents: list[int]) -> None:
        with self.progress_bar(total=len(documents), unit="documents") as bar:
            last, changed = None, time.monotonic()
            while waiting := _unfinished(documents):
                bar.update(len(documents) - len(waiting) - bar.n)
                if waiting != last:
                    last, changed = waiting, time.monotonic()
                elif time.monotonic() - changed >= PATIENCE_SECONDS:
                    if not workers():
                        raise CommandError(
                            f"{len(waiting)} documents wait, and no worker is running: start one with `manage.py serve`, "
                            "which takes them up by itself, or run this again with --inline."
                        )
                    changed = time.monotonic()
                self.pause()
            bar.update(len(documents) - bar.n)

    def pause(self) -> None:
        time.sleep(LOOK_SECONDS)

    def _outcome(self, documents: list[int]) -> list[str]:
        """Waits until all are searchable or have failed, and tells which have failed and why."""
        self._wait(documents)
        rows = Document.objects.filter(pk__in=documents)
        ready = rows.filter(status=Document.Status.READY).count()
        self.stdout.write(f"{ready} of {len(set(documents))} are searchable")
        failed = rows.filter(status=Document.Status.FAILED).order_by("pk").values_list("source", "error")
        return [f"{source}: {error}" for source, error in failed]


def _take(found: Found, kb: KnowledgeBase, title: str) -> int:
    with found.path.open("rb") as file:
        document = document_add(
            knowledge_base=kb,
            file=File(file, name=readable(found.path.name)),
            name=readable(found.path.name),
            user=kb.owner,
            title=title,
            metadata=found.metadata,
        )
    return document.pk


def _unfinished(documents: list[int]) -> list[tuple[int, str, int]]:
    rows = Document.objects.filter(pk__in=documents, status__in=UNFINISHED).order_by("pk")
    return list(rows.values_list("pk", "stage", "progress"))


def _files(paths: list[Path]) -> tuple[list[Found], list[Path]]:
    """The files to read, and those inside folders that cannot be.

    Raises:
        CommandError: a path does not exist, or there is nothing to read at all.
    """
    if missing := [str(path) for path in paths if not path.exists()]:
        raise CommandError(f"There is no {', '.join(missing)}.")
    found = [each for path in paths for each in (_walk(path) if path.is_dir() else [Found(path)])]
    # A file that was named is tried, so that its refusal is an error; one met in a folder is passed over.
    files = [each for each in found if each.within is None or each.supported]
    if not files:
        raise CommandError(f"There is no file to read; supported are {', '.join(SUPPORTED_EXTENSIONS)}.")
    return files, [each.path for each in found if each.within is not None and not each.supported]


def _walk(folder: Path) -> Iterator[Found]:
    """Files below a folder in a stable order: no hidden ones, and no link that leads out of it."""
    root = folder.resolve()
    for directory, subdirectories, names in os.walk(folder):
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
        for name in sorted(names):
            path = Path(directory, name)
            if not name.startswith(".") and path.is_file() and path.resolve().is_relative_to(root):
                yield Found(path, folder)


def readable(name: str) -> str:
    """A file name as text: one that is not UTF-8 is most often GB18030, from an archive made on Windows."""
    raw = os.fsencode(name)
    for encoding in ("utf-8", "gb18030"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8", "replace")
