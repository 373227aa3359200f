"""Writes a knowledge base into one archive: a snapshot, read in pieces."""

import hashlib
import json
import logging
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import IO, Any

import numpy as np
from django.conf import settings
from django.core.files.storage import default_storage
from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.http import FileResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import Rejected
from kb.base.files import private_folder
from kb.base.text import file_name
from kb.content.models import Document, Picture
from kb.index.models import ChunkEmbedding
from kb.index.services.tokenizing import renewed_settings
from kb.operations.services.archives.format import (
    FILE_LIST,
    FORMAT,
    KNOWLEDGE_BASE_FIELDS,
    MANIFEST,
    TABLES,
    TOKENIZER_FIELDS,
    VECTOR_KINDS,
    VERSION,
    Limits,
    Table,
    file_part,
    limits,
    picture_part,
    vector_parts,
)
from kb.operations.services.archives.vectors import FLOAT16, write_header
from kb.profiles.services import configuration_of
from kb.quality.eval_sets.services.sets import require_editable_base
from kb.sources.models import SearchProvider

logger = logging.getLogger(__name__)

ROWS = 1_000
VECTORS_AT_ONCE = 500
SUFFIX_CHARACTERS = 12
_PIECE = 1024**2
_SPOOLED = 8 * 1024**2
_SECRET = ("key", "secret", "token", "password", "credential")

OnProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote: rows by table, originals, vectors, and how many originals were no longer on the disk."""

    rows: dict[str, int]
    files: int
    vectors: int
    missing_files: int


def export_open(principal: Principal, kb: KnowledgeBase, *, vectors: bool = False) -> IO[bytes]:
    """A knowledge base as an open archive, at its start; the caller closes it, which deletes it.

    Raises:
        NotVisible: the knowledge base does not exist for the principal.
        NotAllowed: the principal may see but not change it; judgments and edits are for editors.
        Rejected: it holds more than an archive may.
    """
    require_editable_base(principal, kb)
    archive = TemporaryFile(dir=archive_folder())  # noqa: SIM115 - the caller reads it
    try:
        export_kb(kb, archive, vectors=vectors)
    except BaseException:
        archive.close()
        raise
    archive.seek(0)
    return archive


def archive_folder() -> Path:
    """Beside the originals, where there is room for as much again; the system's folder may be in memory."""
    return private_folder(Path(settings.MEDIA_ROOT) / "archives")


def export_download(principal: Principal, kb: KnowledgeBase, *, vectors: bool) -> FileResponse:
    """As `export_open`, for a browser or a client of the API."""
    return FileResponse(
        export_open(principal, kb, vectors=vectors),
        as_attachment=True,
        filename=f"{file_name(kb.name)}.zhiku.zip",
        content_type="application/zip",
    )


def archive_rows(kb: KnowledgeBase, *, vectors: bool = False) -> int:
    """How many units of progress an export makes."""
    units = sum(_rows_of(table, kb).count() for table in TABLES) + _with_files(kb).count()
    return units + (_vectors_of(kb).count() if vectors else 0)


def export_kb(
    kb: KnowledgeBase, target: IO[bytes] | Path, *, vectors: bool = False, on_progress: OnProgress = lambda _: None
) -> Exported:
    """Writes a knowledge base as it is at this moment, with its originals, to a path or a seekable file.

    `on_progress` is called with how many further rows, originals and vectors are written; `archive_rows` says of how
    many.

    Raises:
        Rejected: it holds more than an archive may.
    """
    with _snapshot(), zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        # Read again: what the caller has may be older than the snapshot.
        kb = KnowledgeBase.objects.select_related("profile").get(pk=kb.pk)
        first = _vectors_of(kb).values_list("vector", flat=True).first()
        kb.dimension = kb.dimension or (None if first is None else len(first))
        writer = _Writer(archive, limits(), on_progress)
        for table in TABLES:
            writer.table(table, kb)
        writer.originals(kb)
        writer.pictures(kb)
        for kind in VECTOR_KINDS if vectors else ():
            writer.vectors(kb, kind)
        writer.manifest(kb)
        return Exported(
            {table.name: writer.parts[table.part]["rows"] for table in TABLES},
            writer.parts[FILE_LIST]["rows"],
            sum(part["rows"] for name, part in writer.parts.items() if name.endswith(".rows.npy")),
            writer.missing_files,
        )


@contextmanager
def _snapshot() -> Iterator[None]:
    """A transaction that sees one state of the database throughout, and whose statements may take any time."""
    is_outermost = not connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if is_outermost:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SET LOCAL statement_timeout = 0")
        yield


class _Writer:
    """One archive while it is written; `parts` is what the manifest says of each, by name."""

    def __init__(self, archive: zipfile.ZipFile, allowed: Limits, on_progress: OnProgress) -> None:
        self.parts: dict[str, dict[str, Any]] = {}
        self.missing_files = 0
        self._archive, self._allowed, self._on_progress = archive, allowed, on_progress
        self._ids: dict[str, NDArray[np.int64]] = {}

    def table(self, table: Table, kb: KnowledgeBase) -> None:
        rows = _rows_of(table, kb)
        self._ids[table.name] = np.fromiter(rows.values_list("pk", flat=True).iterator(ROWS), dtype=np.int64)
        columns = [*table.fields, *(table.model._meta.get_field(name).attname for name in table.refers)]  # type: ignore[union-attr]
        with self._part(table.part) as part:
            for values in rows.values_list(*columns).iterator(ROWS):
                row = dict(zip((*table.fields, *table.refers), values, strict=True))
                row |= {name: self._line(row[name], into) for name, into in table.refers.items()}
                if table.model is SearchProvider:
                    row["settings"] = _without_secrets(row["settings"])
                line = _json_line(row)
                if len(line) > self._allowed.line_bytes:
                    raise _too_large()
                part.write(line)
                part.rows += 1
                self._on_progress(1)

    def originals(self, kb: KnowledgeBase) -> None:
        """Writes the stored files as they are, and the list of them."""
        with SpooledTemporaryFile(_SPOOLED, dir=str(archive_folder())) as listed:
            count = 0
            for document in _with_files(kb).iterator(ROWS):
                line = self._line(document.pk, "documents")
                suffix = PurePosixPath(str(document.file.name)).suffix.lstrip(".").lower()
                suffix = suffix[:SUFFIX_CHARACTERS] if suffix.isascii() and suffix.isalnum() else ""
                if part := self._stored(str(document.file.name), file_part(int(line or 0), suffix)):
                    entry = {"document": line, "suffix": suffix, "size": part.size, "sha256": part.digest.hexdigest()}
                    listed.write(_json_line(entry))
                    count += 1
                self._on_progress(1)
            listed.seek(0)
            with self._part(FILE_LIST) as part:
                shutil.copyfileobj(listed, part, _PIECE)
                part.rows = count

    def pictures(self, kb: KnowledgeBase) -> None:
        """Writes the files of pictures, by the lines of these."""
        rows = Picture.objects.filter(knowledge_base=kb).select_related("document")
        for picture in rows.order_by("pk").iterator(ROWS):
            self._stored(picture.file_name, picture_part(int(self._line(picture.pk, "pictures") or 0)))

    def vectors(self, kb: KnowledgeBase, kind: str) -> None:
        rows = _vectors_of(kb).filter(kind=kind)
        count = rows.count()
        if not count:
            return
        vectors_part, rows_part = vector_parts(kind)
        lines = np.empty((count, 2), dtype="<i8")
        found = rows.order_by("chunk_id", "ordinal").values_list("chunk_id", "ordinal", "vector")
        with self._part(vectors_part, zipfile.ZIP_STORED) as part:
            write_header(part, (count, int(kb.dimension or 0)), FLOAT16)
            for number, (chunk_id, ordinal, vector) in enumerate(found.iterator(VECTORS_AT_ONCE)):
                lines[number] = self._line(chunk_id, "chunks"), ordinal
                part.write(np.asarray(vector, dtype=FLOAT16).tobytes())
                self._on_progress(1)
            part.rows = count
        with self._part(rows_part) as part:
            write_header(part, lines.shape, lines.dtype.str)
            part.write(lines.tobytes())
            part.rows = count

    def manifest(self, kb: KnowledgeBase) -> None:
        """Writes the manifest, which holds the hash of every part; a reader starts with it all the same."""
        chosen, profile = renewed_settings(kb, kb.tokenizer_id, kb.tokenizer_id), kb.profile
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "zhiku": version("zhiku"),
            "created_at": timezone.now(),
            "knowledge_base": {name: getattr(kb, name) for name in KNOWLEDGE_BASE_FIELDS},
            "tokenizer": {"id": kb.tokenizer_id} | {name: getattr(chosen, name) for name in TOKENIZER_FIELDS},
            "embedding": {"model": kb.embedding_model, "dimension": kb.dimension},
            "profile": {name: getattr(profile, name) for name in ("name", "version", "description", "settings")}
            | {"is_own": profile.knowledge_base_id is not None},
            "configuration": configuration_of(profile.settings).as_dict(),
            "parts": self.parts,
        }
        data = json.dumps(manifest, ensure_ascii=False, indent=1, default=datetime.isoformat).encode()
        if len(data) > self._allowed.manifest_bytes:
            raise _too_large()
        with self._entry(MANIFEST, zipfile.ZIP_DEFLATED) as part:
            part.write(data)

    def _stored(self, file: str, name: str) -> "_Part | None":
        """Writes a stored file as it is; None where it was deleted."""
        try:
            source = default_storage.open(file, "rb")
        except FileNotFoundError:
            logger.warning("the file %s is not there and was left out of the archive", file)
            self.missing_files += 1
            return None
        # Not packed: most are packed already, and a file of zeros would look like a bomb.
        with source, self._entry(name, zipfile.ZIP_STORED) as part:
            shutil.copyfileobj(source, part, _PIECE)
        return part

    def _line(self, key: int | None, table: str) -> int | None:
        """The line of a row by its id; None where it is not there."""
        ids = self._ids[table]
        if key is None or not ids.size:
            return None
        line = int(np.searchsorted(ids, key))
        return line if line < ids.size and ids[line] == key else None

    @contextmanager
    def _entry(self, name: str, compression: int) -> Iterator["_Part"]:
        entry = zipfile.ZipInfo(name, timezone.now().timetuple()[:6])
        entry.compress_type = compression
        with self._archive.open(entry, "w", force_zip64=True) as stream:
            yield _Part(stream)

    @contextmanager
    def _part(self, name: str, compression: int = zipfile.ZIP_DEFLATED) -> Iterator["_Part"]:
        with self._entry(name, compression) as part:
            yield part
        self.parts[name] = {"sha256": part.digest.hexdigest(), "bytes": part.size, "rows": part.rows}


class _Part:
    """An entry of an archive while it is written."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.digest, self.size, self.rows = hashlib.sha256(), 0, 0
        self._stream = stream

    def write(self, data: bytes) -> None:
        self.digest.update(data)
        self.size += len(data)
        self._stream.write(data)


def _rows_of(table: Table, kb: KnowledgeBase) -> QuerySet[Any]:
    rows: QuerySet[Any] = table.model._default_manager.filter(**{table.kb_path: kb, **table.only}).order_by("pk")
    return rows


def _with_files(kb: KnowledgeBase) -> QuerySet[Document]:
    return Document.objects.filter(knowledge_base=kb).exclude(file="").only("file").order_by("pk")


def _vectors_of(kb: KnowledgeBase) -> QuerySet[ChunkEmbedding]:
    return ChunkEmbedding.objects.filter(knowledge_base=kb, model=F("knowledge_base__embedding_model"))


def _json_line(row: dict[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=datetime.isoformat) + "\n").encode()


def _without_secrets(value: Any) -> Any:
    """Settings of a search provider hold no secrets; what looks like one does not leave the installation all the same."""
    if isinstance(value, dict):
        return {
            name: _without_secrets(each)
            for name, each in value.items()
            if not any(sign in name.lower() for sign in _SECRET)
        }
    return [_without_secrets(each) for each in value] if isinstance(value, list) else value


def _too_large() -> Rejected:
    message = _("A text of this knowledge base is too long for an archive: split the longest chunks and export again.")
    return Rejected("too_large", message)
