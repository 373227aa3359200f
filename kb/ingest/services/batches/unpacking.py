"""A stored ZIP archive gives way to the documents that it holds. A worker that dies half way is carried on by the next."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from django.conf import settings
from django.db import transaction
from django.db.models import F

from kb.base.files import local_file
from kb.base.models import Installation
from kb.content.models.batches import IngestBatch
from kb.content.models.documents import Document
from kb.ingest.parser.archives import ArchiveLimits, Member, Unpacked, unpack
from kb.ingest.services.batches.files import PIECE, NewFile, take_in

MOST_NOTES = 500
"""How many of the files that became no document an upload names; it counts all."""


class Hold(Protocol):
    """A worker's hold on a document, which each call renews or finds lost."""

    document: Document

    def report(self, stage: Document.Stage, progress: int) -> None: ...

    def lock(self) -> None: ...


def expand_archive(job: Hold) -> None:
    """Makes every file of an archive a document of the archive's upload; the archive's own document goes.

    Documents that are there from an earlier attempt are found by their bytes and stay.

    Raises:
        ParseError: the archive is damaged, protected, empty or too large, or a path in it leads outside.
        LeaseLost: the archive is no longer this worker's.
    """
    archive = job.document
    batch = _batch_of(archive)
    with _folder(archive) as folder:
        with local_file(archive.file) as path:
            unpacked = unpack(path, Path(folder), limits=_limits())
        notes = [
            {"name": each.name, "code": each.reason.code, "params": dict(each.reason.params)}
            for each in unpacked.skipped
        ]
        for done, members in _pieces(unpacked):
            taken = take_in(
                batch,
                [_file(archive, member) for member in members],
                user=archive.created_by,
                source_type=archive.source_type,
                hold=job.lock,  # cancelled meanwhile, it brings nothing in
            )
            notes += _known_notes(archive, taken.known)
            job.report(Document.Stage.PARSE, 100 * done // len(unpacked.members))
    with transaction.atomic():
        note(batch, notes)
        job.lock()
        archive.delete()


def _folder(archive: Document) -> "tempfile.TemporaryDirectory[str]":
    """An empty folder; what a worker that was killed has left of the same archive goes."""
    prefix = f"zhiku-unpack-{Installation.objects.values_list('pk', flat=True).get()}-{archive.pk}-"
    for left in Path(settings.FILE_UPLOAD_TEMP_DIR).glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=prefix, dir=settings.FILE_UPLOAD_TEMP_DIR)


def note(batch: IngestBatch, notes: Sequence[dict[str, Any]]) -> None:
    """Keeps with an upload which of its files became no document; belongs inside a transaction."""
    row = IngestBatch.objects.select_for_update(no_key=True).get(pk=batch.pk)
    row.notes = [*row.notes, *notes][:MOST_NOTES]
    row.note_count = F("note_count") + len(notes)
    row.save(update_fields=["notes", "note_count"])


def _limits() -> ArchiveLimits:
    return ArchiveLimits(file_bytes=settings.MAX_UPLOAD_BYTES, archive_bytes=settings.MAX_ZIP_BYTES)


def _batch_of(archive: Document) -> IngestBatch:
    """The archive's upload; one of its own where it came alone."""
    if archive.batch is not None:
        return archive.batch
    batch = IngestBatch.objects.create(
        knowledge_base=archive.knowledge_base, name=archive.source[:200], created_by=archive.created_by
    )
    Document.objects.filter(pk=archive.pk).update(batch=batch)
    archive.batch = batch
    return batch


def _pieces(unpacked: Unpacked) -> Iterator[tuple[int, list[Member]]]:
    """Pieces with how many members they and those before hold."""
    members, done = iter(unpacked.members), 0
    while piece := list(islice(members, PIECE)):
        done += len(piece)
        yield done, piece


def _file(archive: Document, member: Member) -> NewFile:
    return NewFile(member.name, member.path, metadata=_origin(archive, member.name), tags=archive.tags)


def _origin(archive: Document, name: str) -> dict[str, Any]:
    return {**archive.metadata, "archive": archive.source, "path": name}


def _known_notes(archive: Document, known: Any) -> list[dict[str, Any]]:
    """Notes of members whose bytes were there, unless it was an earlier attempt that brought them."""
    rows = Document.objects.in_bulk(set(known.values()))
    return [
        {"name": name, "code": "known", "params": {}, "document": document_id}
        for name, document_id in known.items()
        if document_id in rows and not _is_of(rows[document_id], archive, name)
    ]


def _is_of(document: Document, archive: Document, name: str) -> bool:
    same = {"archive": archive.source, "path": name}
    return document.batch_id == archive.batch_id and same.items() <= document.metadata.items()
