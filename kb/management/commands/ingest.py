import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.files import File
from django.core.management.base import CommandError
from django.db.models import Q, QuerySet

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.content.models import Document, IngestBatch
from kb.content.services import knowledge_base_by_name, knowledge_base_create
from kb.ingest.parser.archives import ARCHIVE_EXTENSIONS
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS, unsupported_name
from kb.ingest.services.batches import PIECE, NewFile, batch_add_many, batch_create, waiting_ids
from kb.ingest.services.documents import check_file, source_of_name
from kb.ingest.services.indexing import index_document, index_documents
from kb.ingest.services.tables import batch_describe, read_table
from kb.jobs.leases import workers
from kb.management.base import KnowledgeBaseCommand, argument, kb_arguments, one_of

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 10.0


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
        return self.path.suffix.lower() in (*SUPPORTED_EXTENSIONS, *ARCHIVE_EXTENSIONS)

    @property
    def name(self) -> str:
        """With the folders that it lies in below the one that was named."""
        return readable(self.path.name if self.within is None else self.path.relative_to(self.within).as_posix())

    @property
    def metadata(self) -> dict[str, str]:
        """Where in its folder the file lay, since the source of a document is the bare file name."""
        return {} if self.within is None else {"path": self.name}


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of the files: documents new or known, and those that were refused with the reason.

    Attributes:
        batch_id: the upload, to which the documents of an archive come later; None where nothing is new.
    """

    batch_id: int | None = None
    added: list[int] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Command(KnowledgeBaseCommand):
    help = "Adds files, or folders of them, to a knowledge base; a worker makes them searchable."

    arguments = (
        argument("paths", nargs="+", type=Path, metavar="PATH", help="a file, or a folder to go through"),
        *kb_arguments(),
        argument("--create", action="store_true", help="create the knowledge base if it is not there"),
        argument(
            "--table", type=Path, metavar="CSV", help="titles, tags and metadata of the files, by the column `filename`"
        ),
        argument("--title", default="", help="title of the document, for a single file"),
        one_of(
            argument(
                "--wait",
                action="store_true",
                help="wait until a worker has made them searchable, then build the indexes",
            ),
            argument("--inline", action="store_true", help="do so here, without a worker"),
        ),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        files, skipped = _files(options["paths"])
        if options["title"] and len(files) != 1:
            raise CommandError(f"--title is for a single file, and there are {len(files)}")
        for path in skipped:
            self.stderr.write(f"skipped {path}: {unsupported_name(path.name).message}")
        kb = self._target(options)
        taken = self._add(files, kb, options)
        self.stdout.write(f"{len(taken.added)} added, {len(taken.known)} already there, {len(skipped)} skipped")
        problems = taken.refused
        if options["wait"] or options["inline"]:
            problems = problems + self._outcome(taken)
            self.build_indexes([kb])
        elif taken.added:
            self.stdout.write("A worker makes them searchable; the admin shows how far it is.")
        if problems:
            raise CommandError("\n".join(problems))

    def _target(self, options: dict[str, Any]) -> KnowledgeBase:
        if not options["create"]:
            return self.knowledge_base(options)
        if found := self.found_knowledge_base(options):
            return found
        kb = knowledge_base_create(name=options["kb"], owner=self.user(options["owner"]))
        self.stdout.write(f"created the knowledge base {kb.name!r} with the embedding model {kb.embedding_model}")
        return knowledge_base_by_name(kb.name, owner=kb.owner.username)

    def _add(self, files: list[Found], kb: KnowledgeBase, options: dict[str, Any]) -> Taken:
        paths = options["paths"]
        name = readable(paths[0].resolve().name) if len(paths) == 1 else f"{len(paths)} paths"
        batch = batch_create(knowledge_base=kb, name=name, user=kb.owner)
        taken = Taken(batch.pk)
        if table := options["table"]:
            try:
                batch_describe(batch, read_table(table.read_bytes()))
            except (Rejected, OSError) as error:
                raise CommandError(f"{table}: {error}") from error
        with self.progress_bar(total=len(files), unit="files") as bar:
            for start in range(0, len(files), PIECE):
                piece = files[start : start + PIECE]
                readable_ones = [each for each in piece if _is_taken(each, taken)]
                new = [NewFile(each.name, each.path, options["title"], each.metadata) for each in readable_ones]
                added, known = batch_add_many(batch, new, user=kb.owner)
                taken.added.extend(added)
                taken.known.extend(known.values())
                bar.update(len(piece))
        if not taken.added:
            batch.delete()
        if options["inline"]:
            _index(batch, taken)
        return taken

    def _wait(self, documents: QuerySet[Document]) -> None:
        with self.progress_bar(total=documents.count(), unit="documents") as bar:
            last, changed = None, time.monotonic()
            unfinished = (
                documents.filter(status__in=Document.UNFINISHED).order_by("pk").values_list("pk", "stage", "progress")
            )
            while waiting := list(unfinished.all()):
                bar.total = documents.count()  # an archive becomes many
                bar.update(bar.total - len(waiting) - bar.n)
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
            bar.total = documents.count()
            bar.update(bar.total - bar.n)

    def pause(self) -> None:
        time.sleep(LOOK_SECONDS)

    def _outcome(self, taken: Taken) -> list[str]:
        """Waits until all are searchable or have failed, and tells which have failed and why."""
        named = Q(pk__in=taken.added + taken.known)
        rows = Document.objects.filter(named | Q(batch=taken.batch_id) if taken.added else named)
        self._wait(rows)
        ready = rows.filter(status=Document.Status.READY).count()
        self.stdout.write(f"{ready} of {rows.count()} are searchable")
        failed = rows.filter(status=Document.Status.FAILED).order_by("pk").values_list("source", "error")
        return [f"{source}: {error}" for source, error in failed]


def _is_taken(found: Found, taken: Taken) -> bool:
    """Whether a file can be taken in; why not is noted."""
    try:
        with found.path.open("rb") as file:
            check_file(source_of_name(found.name), File(file))
    except (Rejected, OSError) as error:
        taken.refused.append(f"{found.path}: {error}")
        return False
    return True


def _index(batch: IngestBatch, taken: Taken) -> None:
    """Makes documents searchable here; what an archive brings in is among them."""
    waiting = [*taken.added, *taken.known]
    while waiting:
        for start in range(0, len(waiting), PIECE):
            for document_id in index_documents(waiting[start : start + PIECE]):
                index_document(document_id)
        waiting = waiting_ids(batch.pk, after=0, limit=PIECE) if batch.pk else []


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
