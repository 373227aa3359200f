"""Files of an upload taken in together: a piece of them costs the same few statements, however many they are."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.files import File
from django.db import IntegrityError, transaction

from kb.access.models.accounts import User
from kb.base.db.commits import after_commit
from kb.base.files import sha256_of
from kb.content.models.batches import FileDetails, IngestBatch
from kb.content.models.documents import Document
from kb.content.signals import documents_waiting
from kb.index.bm25 import BM25Store
from kb.index.copying import copy_rows
from kb.ingest.services.documents import document_add, source_of_name

PIECE = 200
"""How many files are taken in together."""
MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to take in.

    Attributes:
        name: with the folders that it lay in, "/" between them.
        path: where its bytes are.
        title: blank: what the upload's table says, else taken from the file.
    """

    name: str
    path: Path
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a piece: ids of the documents that are new, and those that held a file's bytes already, by its name."""

    added: tuple[int, ...]
    known: Mapping[str, int]


def details_of(batch: IngestBatch, names: Iterable[str]) -> dict[str, FileDetails]:
    """What the upload's table says of files, by their names: of the whole path, else of the last part."""
    names = list(names)
    asked = {*names, *map(source_of_name, names)}
    rows = {row.name: row for row in FileDetails.objects.filter(batch=batch, name__in=asked)}
    found = {name: rows.get(name) or rows.get(source_of_name(name)) for name in names}
    return {name: row for name, row in found.items() if row is not None}


def path_metadata(name: str) -> dict[str, str]:
    """Where in its folder or archive a file lay, since the source of a document is the bare file name."""
    return {"path": name} if "/" in name else {}


def batch_add(
    batch: IngestBatch,
    file: "File[bytes]",
    name: str,
    *,
    user: User | None,
    source_type: str = Document.SourceType.BOOK,
) -> Document:
    """Takes one file of an upload in, as a browser sends them.

    Args:
        batch: the upload.
        file: the content, read in pieces.
        name: with the folders that it lay in.
        user: who adds it.
        source_type: what kind of source it is.

    Raises:
        AlreadyThere: the knowledge base holds the same bytes.
        Rejected: the file is too large, or of a type that cannot be read.
    """
    details = details_of(batch, [name]).get(name)
    return document_add(
        knowledge_base=batch.knowledge_base,
        file=file,
        name=name,
        user=user,
        title=details.title if details else "",
        metadata={**(details.metadata if details else {}), **path_metadata(name)},
        tags=list(details.tags) if details else [],
        source_type=source_type,
        batch=batch,
    )


def take_in(
    batch: IngestBatch,
    files: Sequence[NewFile],
    *,
    user: User | None,
    source_type: str = Document.SourceType.BOOK,
    hold: Callable[[], None] = lambda: None,
) -> Taken:
    """Takes a piece of an upload in; workers make the documents searchable once the transaction commits.

    Their types and sizes are the caller's matter.

    Args:
        batch: the upload.
        files: the piece.
        user: who adds them.
        source_type: what kind of source they are.
        hold: called first in the transaction; what it raises keeps the files out.
    """
    described = details_of(batch, [file.name for file in files])
    digests = [_digest(file.path) for file in files]
    for attempt in range(MOST_TRIES):
        known = _known(batch, digests)
        first = {digest: file for digest, file in reversed([*zip(digests, files, strict=True)]) if digest not in known}
        drafts = [
            _draft(batch, file, digest, described.get(file.name), user, source_type) for digest, file in first.items()
        ]
        try:
            _store(drafts, list(first.values()), hold)
        except IntegrityError:  # another upload has brought some of them in meanwhile
            if attempt == MOST_TRIES - 1:
                raise
            continue
        break
    held = known | {document.sha256: document.pk for document in drafts}
    again = {file.name: held[digest] for digest, file in zip(digests, files, strict=True) if first.get(digest) != file}
    return Taken(tuple(document.pk for document in drafts), again)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return sha256_of(File(file))


def _known(batch: IngestBatch, digests: Sequence[str]) -> dict[str, int]:
    rows = Document.objects.filter(knowledge_base=batch.knowledge_base_id, sha256__in=digests)
    return dict(rows.values_list("sha256", "pk"))


def _draft(
    batch: IngestBatch, file: NewFile, digest: str, details: FileDetails | None, user: User | None, source_type: str
) -> Document:
    return Document(
        knowledge_base=batch.knowledge_base,
        batch=batch,
        title=file.title or (details.title if details else ""),
        source=source_of_name(file.name),
        source_type=source_type,
        metadata={**(details.metadata if details else {}), **file.metadata},
        tags=list(dict.fromkeys([*file.tags, *(details.tags if details else ())])),
        size=file.path.stat().st_size,
        sha256=digest,
        created_by=user,
    )


def _store(drafts: Sequence[Document], files: Sequence[NewFile], hold: Callable[[], None]) -> None:
    """Stores the bytes, then the rows; without the rows the bytes go again."""
    stored: list[Document] = []
    try:
        for document, file in zip(drafts, files, strict=True):
            with file.path.open("rb") as opened:
                stored.append(document)
                document.file.save(document.source, File(opened), save=False)
        with transaction.atomic():
            hold()
            copy_rows(Document, drafts)
            after_commit(_tell, drafts)
    except BaseException:
        for document in stored:
            document.file.delete(save=False)
        raise


def _tell(created: Sequence[Document]) -> None:
    """What a signal does for a document that is saved alone."""
    if created:
        documents_waiting.send(Document, ids=[document.pk for document in created])
        BM25Store().expire(created[0].knowledge_base_id)
