import os
import time
from collections.abc import Iterator
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
from kb.jobs.leases import DOCUMENTS_QUEUE, workers
from kb.management.base import KnowledgeBaseCommand, argument, kb_arguments, one_of

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 10.0


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
        files, skipped = _files(options["paths"], options["title"])
        if options["title"] and len(files) != 1:
            raise CommandError(f"--title is for a single file, and there are {len(files)}")
        for path in skipped:
            self.stderr.write(f"skipped {path}: {unsupported_name(path.name)}")
        kb = self._target(options)
        batch = self._batch(kb, options)
        added, known, problems = self._add(batch, files)
        wanted = Q(pk__in=[*added, *known]) | (Q(batch=batch.pk) if added else Q())
        if not added:
            batch.delete()
        if options["inline"]:
            _index(batch, [*added, *known])
        self.stdout.write(f"{len(added)} added, {len(known)} already there, {len(skipped)} skipped")
        if options["wait"] or options["inline"]:
            problems += self._outcome(Document.objects.filter(wanted))
            self.build_indexes([kb])
        elif added:
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

    def _batch(self, kb: KnowledgeBase, options: dict[str, Any]) -> IngestBatch:
        paths, table = options["paths"], options["table"]
        name = readable(paths[0].resolve().name) if len(paths) == 1 else f"{len(paths)} paths"
        batch = batch_create(knowledge_base=kb, name=name, user=kb.owner)
        if table:
            try:
                batch_describe(batch, read_table(table.read_bytes()))
            except (Rejected, OSError) as error:
                raise CommandError(f"{table}: {error}") from error
        return batch

    def _add(self, batch: IngestBatch, files: list[NewFile]) -> tuple[list[int], list[int], list[str]]:
        """The documents that are new, those that were there already, and why the other files were refused."""
        added: list[int] = []
        known: list[int] = []
        refused: list[str] = []
        with self.progress_bar(total=len(files), unit="files") as bar:
            for start in range(0, len(files), PIECE):
                piece, taken = files[start : start + PIECE], []
                for each in piece:
                    try:
                        with each.path.open("rb") as file:
                            check_file(source_of_name(each.name), File(file))
                        taken.append(each)
                    except (Rejected, OSError) as error:
                        refused.append(f"{each.path}: {error}")
                new, there = batch_add_many(batch, taken, user=batch.knowledge_base.owner)
                added.extend(new)
                known.extend(there.values())
                bar.update(len(piece))
        return added, known, refused

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
                    if not workers(DOCUMENTS_QUEUE):
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

    def _outcome(self, documents: QuerySet[Document]) -> list[str]:
        """Waits until all are searchable or have failed, and tells which have failed and why."""
        self._wait(documents)
        ready = documents.filter(status=Document.Status.READY).count()
        self.stdout.write(f"{ready} of {documents.count()} are searchable")
        failed = documents.filter(status=Document.Status.FAILED).order_by("pk").values_list("source", "error")
        return [f"{source}: {error}" for source, error in failed]


def _index(batch: IngestBatch, waiting: list[int]) -> None:
    """Makes documents searchable here; what an archive brings in is among them."""
    while waiting:
        for start in range(0, len(waiting), PIECE):
            for document_id in index_documents(waiting[start : start + PIECE]):
                index_document(document_id)
        waiting = waiting_ids(batch.pk, after=0, limit=PIECE) if batch.pk else []


def _files(paths: list[Path], title: str) -> tuple[list[NewFile], list[Path]]:
    """The files to read, and those inside folders that cannot be."""
    if missing := [str(path) for path in paths if not path.exists()]:
        raise CommandError(f"There is no {', '.join(missing)}.")
    files, skipped = [], []
    for path in paths:
        if not path.is_dir():  # one that was named is tried, so that its refusal is an error
            files.append(NewFile(readable(path.name), path, title))
            continue
        for found in _walk(path):
            if found.suffix.lower() in (*SUPPORTED_EXTENSIONS, *ARCHIVE_EXTENSIONS):
                name = readable(found.relative_to(path).as_posix())
                # The source of a document is the bare file name.
                files.append(NewFile(name, found, title, {"path": name}))
            else:
                skipped.append(found)
    if not files:
        raise CommandError(f"There is no file to read; supported are {', '.join(SUPPORTED_EXTENSIONS)}.")
    return files, skipped


def _walk(folder: Path) -> Iterator[Path]:
    """Files below a folder in a stable order: no hidden ones, and no link that leads out of it."""
    root = folder.resolve()
    for directory, subdirectories, names in os.walk(folder):
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
        for path in (Path(directory, name) for name in sorted(names)):
            if not path.name.startswith(".") and path.is_file() and path.resolve().is_relative_to(root):
                yield path


def readable(name: str) -> str:
    """A file name as text: one that is not UTF-8 is most often GB18030, from an archive made on Windows."""
    raw = os.fsencode(name)
    for encoding in ("utf-8", "gb18030"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8", "replace")
