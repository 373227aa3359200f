"""Uploads: documents that came in together, reported and controlled as one."""

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, cast

from django.conf import settings
from django.core.files import File
from django.db import IntegrityError, transaction
from django.db.models import Count, F, Min, Q
from django.utils import timezone
from django.utils.translation import gettext as _
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, User
from kb.base.db.transactions import after_commit
from kb.base.errors import AlreadyThere, Rejected
from kb.base.files import local_file, sha256_of
from kb.base.models import Installation
from kb.base.text import storable
from kb.content.folders.services import folder_in, folders_of
from kb.content.models import Document, FileDetails, IngestBatch, batch_waiting, documents_waiting
from kb.index.bm25 import BM25Store
from kb.index.services.writing import copy_rows
from kb.ingest.parser.archives import ArchiveLimits, unpack
from kb.ingest.parser.parsed import MESSAGES, ParseError
from kb.ingest.services.documents import DOCUMENTS, HEAD_BYTES, document_add, source_of_name, usual_source_type, waiting
from kb.jobs.leases import Job

Status = Document.Status
FINISHED: Final = (Status.READY, Status.FAILED)
RATE_OVER: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far an upload is."""

    counts: Annotated[dict[str, int], Doc("Documents by status.")]
    stages: Annotated[dict[str, int], Doc("Those in processing by stage.")]
    total: int
    done: Annotated[int, Doc("Ready, failed or cancelled.")]
    percent: int
    rate: Annotated[float, Doc("Documents a second, of late.")]
    seconds_left: Annotated[int | None, Doc("Null where that is unknown.")]

    @property
    def unfinished(self) -> int:
        return self.total - self.done


def batch_create(
    *, knowledge_base: KnowledgeBase, name: str, user: User | None, folder_id: int | None = None
) -> IngestBatch:
    """Begins an upload into a folder; the caller has checked that the user may write to the knowledge base.

    Raises NotVisible where the knowledge base has no such folder.
    """
    folder = folder_in(knowledge_base, folder_id)
    return IngestBatch.objects.create(
        knowledge_base=knowledge_base, folder=folder, name=storable(name)[:200] or "–", created_by=user
    )


def batch_progress(batch: IngestBatch) -> BatchProgress:
    return cast(BatchProgress, with_progress([batch])[0].progress)


def with_progress(batches: Iterable[Any]) -> list[Any]:
    """Gives uploads their `progress`, read in one statement, whatever the number of documents."""
    batches = list(batches)
    lately = Q(status__in=FINISHED, updated_at__gte=timezone.now() - RATE_OVER)
    rows = list(
        Document.objects.filter(batch__in=batches)
        .order_by()
        .values("batch", "status", "stage")
        .annotate(documents=Count("pk"), lately=Count("pk", filter=lately), first=Min("updated_at", filter=lately))
    )
    for batch in batches:
        batch.progress = _progress(batch, [row for row in rows if row["batch"] == batch.pk])
    return batches


def _progress(batch: IngestBatch, rows: Sequence[dict[str, Any]]) -> BatchProgress:
    counts, stages = Counter[str](), Counter[str]()
    for row in rows:
        counts[row["status"]] += row["documents"]
        if row["status"] == Status.PROCESSING:
            stages[row["stage"]] += row["documents"]
    begun = min((row["first"] for row in rows if row["first"]), default=timezone.now())
    rate = sum(row["lately"] for row in rows) / max(1.0, (timezone.now() - begun).total_seconds())
    total, left = counts.total(), sum(counts[status] for status in Document.UNFINISHED)
    seconds_left = round(left / rate) if rate > 0 and left > 0 and not batch.paused else None
    percent = 100 * (total - left) // total if total else 0
    return BatchProgress(counts, stages, total, total - left, percent, rate, seconds_left)


def is_moving(batch: IngestBatch, progress: BatchProgress) -> bool:
    """Whether it will look otherwise before long, without anybody's doing."""
    return progress.unfinished > 0 and not (batch.paused and not progress.stages)


def batch_pause(batch: IngestBatch) -> None:
    """Workers finish the documents at hand and start no further one."""
    IngestBatch.objects.filter(pk=batch.pk).update(paused=True)
    batch.paused = True


def batch_resume(batch: IngestBatch) -> None:
    Document.objects.filter(batch=batch, status=Status.PENDING).update(waiting_since=timezone.now())
    IngestBatch.objects.filter(pk=batch.pk).update(paused=False)
    batch.paused = False
    _enqueue_on_commit(batch)


def batch_cancel(batch: IngestBatch) -> int:
    """Takes the documents that are not done out of the queue, and returns how many; workers write no more of them.

    What is searchable by now stays, and so do the files.
    """
    rows = Document.objects.filter(batch=batch, status__in=Document.UNFINISHED)
    cancelled, found = 0, 1
    while found:  # once more for what an archive was bringing in while this waited for it
        with transaction.atomic():
            # In the order in which a worker locks those that it writes together
            ids = list(rows.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
            freed = DOCUMENTS.freed(Status.CANCELLED)
            found = Document.objects.filter(pk__in=ids).update(**freed, stage="", progress=0)
        cancelled += found
    return cancelled


def batch_retry(batch: IngestBatch, status: str = Status.FAILED) -> int:
    """Has the failed documents processed once more, or the cancelled ones after all; returns how many there are."""
    rows = Document.objects.filter(batch=batch, status=status)
    count = rows.filter(file="").update(keep_chunks=True, **waiting()) + rows.update(**waiting())
    if count:
        IngestBatch.objects.filter(pk=batch.pk).update(timeouts=0)
        _enqueue_on_commit(batch)
    return count


def waiting_ids(batch_id: int, *, after: int, limit: int) -> list[int]:
    rows = Document.objects.filter(batch=batch_id, status=Status.PENDING, pk__gt=after, batch__paused=False)
    return list(rows.order_by("pk").values_list("pk", flat=True)[:limit])


def _enqueue_on_commit(batch: IngestBatch) -> None:
    transaction.on_commit(partial(batch_waiting.send, IngestBatch, batch_id=batch.pk))


BETWEEN: Final = " › "  # the name of a mail and that of its attachment
PIECE = 200  # How many files are taken in together
MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to take in, named with its folders, "/" between them; a blank title is the table's, else the file's."""

    name: str
    path: Path
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()


def details_of(batch: IngestBatch, names: Iterable[str]) -> dict[str, FileDetails]:
    """What the upload's table says of files, by their names: of the whole path, else of the last part."""
    last_parts = {name: source_of_name(name) for name in names}
    asked = FileDetails.objects.filter(batch=batch, name__in={*last_parts, *last_parts.values()})
    rows = {row.name: row for row in asked}
    found = {name: rows.get(name) or rows.get(last_part) for name, last_part in last_parts.items()}
    return {name: row for name, row in found.items() if row is not None}


def batch_add(
    batch: IngestBatch,
    file: "File[bytes]",
    name: str,
    *,
    user: User | None,
    source_type: str = "",
) -> Document:
    """Takes a file of an upload in, named with the folders that it lay in, which are made; raises as `document_add`."""
    name = storable(name)
    details = details_of(batch, [name]).get(name) or FileDetails()
    return document_add(
        knowledge_base=batch.knowledge_base,
        file=file,
        name=name,
        user=user,
        title=details.title,
        metadata={**details.metadata, **({"path": name} if "/" in name else {})},
        tags=list(details.tags),
        source_type=source_type,
        batch=batch,
        folder_id=folders_of(batch.knowledge_base_id, batch.folder_id, [name])[name],
    )


def batch_add_many(
    batch: IngestBatch,
    files: Sequence[NewFile],
    *,
    user: User | None,
    source_type: str = "",
    folder_id: int | None = None,
    hold: Callable[[], None] = lambda: None,
) -> tuple[list[int], dict[str, int]]:
    """Takes a piece of an upload in; workers make the documents searchable once the transaction commits.

    The folders of their names are made below `folder_id`, or the upload's. Their types and sizes are the caller's matter, and a blank source type is `usual_source_type`. `hold` is called first in the transaction; what it raises keeps the
    files out. Returns the ids of the documents that are new, and of those that held a file's bytes already, by its
    name.
    """
    described = defaultdict(FileDetails, details_of(batch, [file.name for file in files]))
    digests, kinds = [], {}
    for file in files:
        with file.path.open("rb") as opened:
            kinds[file.name] = source_type or usual_source_type(source_of_name(file.name), opened.read(HEAD_BYTES))
            opened.seek(0)
            digests.append(sha256_of(File(opened)))
    same = Document.objects.filter(knowledge_base=batch.knowledge_base_id, sha256__in=digests)
    folders = folders_of(batch.knowledge_base_id, folder_id or batch.folder_id, [file.name for file in files])
    for attempt in range(MOST_TRIES):
        known = dict(same.values_list("sha256", "pk"))
        first = {digest: file for digest, file in reversed([*zip(digests, files, strict=True)]) if digest not in known}
        drafts = [
            Document(
                knowledge_base=batch.knowledge_base,
                batch=batch,
                folder_id=folders[file.name],
                title=file.title or described[file.name].title,
                source=source_of_name(file.name),
                source_type=kinds[file.name],
                metadata={**described[file.name].metadata, **file.metadata},
                tags=list(dict.fromkeys([*file.tags, *described[file.name].tags])),
                size=file.path.stat().st_size,
                sha256=digest,
                created_by=user,
            )
            for digest, file in first.items()
        ]
        try:
            _store(drafts, list(first.values()), hold)
            break
        except IntegrityError:  # another upload has brought some of them in meanwhile
            if attempt == MOST_TRIES - 1:
                raise
    held = known | {document.sha256: document.pk for document in drafts}
    again = {file.name: held[digest] for digest, file in zip(digests, files, strict=True) if first.get(digest) != file}
    return [document.pk for document in drafts], again


def _store(drafts: Sequence[Document], files: Sequence[NewFile], hold: Callable[[], None]) -> None:
    """Stores the bytes, then the rows; without the rows the bytes go again."""
    with ExitStack() as on_failure:
        for document, file in zip(drafts, files, strict=True):
            on_failure.callback(document.file.delete, save=False)
            with file.path.open("rb") as opened:
                document.file.save(document.source, File(opened), save=False)
        with transaction.atomic():
            hold()
            copy_rows(Document, drafts)
            after_commit(_announce, drafts)
        on_failure.pop_all()


def _announce(created: Sequence[Document]) -> None:
    """What a signal does for a document that is saved alone."""
    if created:
        documents_waiting.send(Document, ids=[document.pk for document in created])
        BM25Store().expire(created[0].knowledge_base_id)


def batch_add_files(
    batch: IngestBatch,
    files: Sequence[tuple[str, "File[bytes]"]],
    *,
    user: User | None,
    source_type: str = "",
) -> list[dict[str, Any]]:
    """Takes files into an upload, each with the name, and the folders, that it is known by.

    Returns those that became no document, with code, message and `document_id` of the one that holds the same bytes.
    One that this upload has already is not among them, so that a request whose answer was lost can be sent again.
    """
    refused: list[dict[str, Any]] = []
    for name, file in files:
        try:
            batch_add(batch, file, name, user=user, source_type=source_type)
        except AlreadyThere as error:
            if not Document.objects.filter(pk=error.document_id, batch=batch).exists():
                note = {"code": "known", "message": str(error), "document_id": error.document_id}
                refused.append({"name": name, **note})
        except Rejected as error:
            refused.append({"name": name, "code": error.code, "message": str(error), "document_id": None})
    return refused


def shown_note(note: Mapping[str, Any]) -> dict[str, Any]:
    """Why a file of an archive became no document, in the reader's language; blank where this version cannot tell."""
    template = _(MESSAGES.get(note["code"], ""))
    message = _("The same content is here already.") if note["code"] == "known" else template.format(**note["params"])
    return {"name": note["name"], "code": note["code"], "message": message, "document_id": note.get("document")}


MOST_NOTES = 500  # How many of the files that became no document an upload names; it counts all


def expand_archive(job: Job[Document], report: Callable[[int], None]) -> None:
    """Makes every file of an archive a document of the archive's upload; the archive's own document goes.

    Documents that are there from an earlier attempt are found by their bytes and stay. Raises ParseError as `unpack`,
    and where it came in a mail out of another that came in a mail, since each unpacks to a hundred times its size;
    LeaseLost where the archive is no longer this worker's.
    """
    archive = job.row
    if BETWEEN in archive.source and BETWEEN in str(archive.metadata.get("archive", "")):
        raise ParseError("nested_archive", name=archive.source)
    with unpacking_folder(archive) as folder:
        with local_file(archive.file) as path:
            limits = ArchiveLimits(file_bytes=settings.MAX_UPLOAD_BYTES, archive_bytes=settings.MAX_ZIP_BYTES)
            members, skipped = unpack(path, Path(folder), limits=limits)
        files = [
            NewFile(
                name, file, metadata={**archive.metadata, "archive": archive.source, "path": name}, tags=archive.tags
            )
            for name, file in members
        ]
        notes = [*notes_of(skipped), *take_in(job, files, ("archive", "path"), report)]
    with transaction.atomic():
        add_notes(archive, notes)
        job.update()
        archive.delete()


def take_in(
    job: Job[Document], files: Sequence[NewFile], marks: Sequence[str], report: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Makes documents of the files that a document holds, in its upload; it gets one if it came alone.

    Returns notes of those whose bytes were there, unless it was an earlier attempt that brought them, which is known by
    the metadata that `marks` name. Raises LeaseLost where the document is no longer this worker's.
    """
    holder = job.row
    if holder.batch is None:
        holder.batch = batch_create(
            knowledge_base=holder.knowledge_base,
            name=holder.source,
            user=holder.created_by,
            folder_id=holder.folder_id,
        )
        Document.objects.filter(pk=holder.pk).update(batch=holder.batch)
    notes: list[dict[str, Any]] = []
    for start in range(0, len(files), PIECE):
        piece = files[start : start + PIECE]
        _added, known = batch_add_many(
            holder.batch,
            piece,
            user=holder.created_by,
            # A book is also what was never said to be anything
            source_type="" if holder.source_type == Document.SourceType.BOOK else holder.source_type,
            folder_id=holder.folder_id,
            hold=job.update,  # cancelled meanwhile, it brings nothing in
        )
        named = {file.name: file for file in piece}
        rows = Document.objects.in_bulk(set(known.values()))
        notes += [
            {"name": name, "code": "known", "params": {}, "document": document_id}
            for name, document_id in known.items()
            if document_id in rows and not _is_of(rows[document_id], holder, named[name], marks)
        ]
        report(100 * (start + len(piece)) // len(files))
    return notes


def add_notes(holder: Document, notes: Sequence[Mapping[str, Any]], *, once: bool = False) -> None:
    """Adds to the notes of a document's upload, inside a transaction; with `once` those that it lacks."""
    row = IngestBatch.objects.select_for_update(no_key=True).get(pk=holder.batch_id)
    notes = [note for note in notes if not once or note not in row.notes]
    row.notes = [*row.notes, *notes][:MOST_NOTES]
    row.note_count = F("note_count") + len(notes)
    row.save(update_fields=["notes", "note_count"])


def notes_of(skipped: Iterable[tuple[str, ParseError]]) -> list[dict[str, Any]]:
    """Notes of files that are of no use, each with its reason."""
    return [{"name": name, "code": reason.code, "params": dict(reason.params)} for name, reason in skipped]


def unpacking_folder(holder: Document) -> "tempfile.TemporaryDirectory[str]":
    """An empty folder; what a worker that was killed has left of the same document goes."""
    prefix = f"zhiku-unpack-{Installation.objects.values_list('pk', flat=True).get()}-{holder.pk}-"
    for left in Path(settings.FILE_UPLOAD_TEMP_DIR).glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=prefix, dir=settings.FILE_UPLOAD_TEMP_DIR)


def _is_of(document: Document, holder: Document, file: NewFile, marks: Sequence[str]) -> bool:
    same = {name: file.metadata[name] for name in marks}
    return document.batch_id == holder.batch_id and same.items() <= document.metadata.items()
