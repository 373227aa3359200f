"""Writes the whole installation into one file while it goes on working."""

import logging
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from django.core.files.storage import default_storage
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from kb.access.models import KnowledgeBase, User
from kb.base.files import private_file
from kb.base.models import installation_id
from kb.content.models import Chunk, Document
from kb.operations.services.archives.export import archive_folder
from kb.operations.services.backups import programs
from kb.operations.services.backups.format import DUMP, FILES, OnBytes, Writer

logger = logging.getLogger(__name__)

# Made again from the rest, or of no use elsewhere: a backup is not to hold what lets somebody in.
LEFT_OUT = ("bm25_indexes", "django_session")


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What a backup holds; `missing_files`: uploads that were deleted meanwhile, or had gone before."""

    knowledge_bases: int
    documents: int
    chunks: int
    files: int
    missing_files: int
    size: int


def backup(target: Path, *, on_bytes: OnBytes = lambda _: None) -> BackedUp:
    """Writes a backup: the database as it is at this moment, and the files that it names.

    Args:
        target: where to make the file; what is there is replaced once the backup is whole.
        on_bytes: told how many further bytes are written.

    Raises:
        Rejected: pg_dump is missing, too old, or failed.
        OSError: the target cannot be written.
        FilesUnavailable: the store of the uploads cannot be used.
    """
    unfinished = target.with_name(f"{target.name}.part")
    try:
        with (
            _snapshot() as snapshot,
            private_file(unfinished) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            writer = Writer(tar, on_bytes)
            _add_dump(writer, snapshot)
            files, missing = _add_files(writer)
            counts = {
                "knowledge_bases": KnowledgeBase.objects.count(),
                "documents": Document.objects.count(),
                "chunks": Chunk.objects.count(),
                "users": User.objects.count(),
            }
            writer.close(
                {
                    "zhiku": version("zhiku"),
                    "created_at": timezone.now().isoformat(),
                    "installation": installation_id(),
                    "postgresql": programs.server_major(),
                    "migrations": sorted(MigrationRecorder(connection).applied_migrations()),
                    "counts": counts,
                    "missing_files": missing,
                }
            )
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    size = target.stat().st_size
    return BackedUp(counts["knowledge_bases"], counts["documents"], counts["chunks"], files, missing, size)


@contextmanager
def _snapshot() -> Iterator[str]:
    """One state of the database, which pg_dump and the queries here see alike."""
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SELECT pg_export_snapshot()")
        yield cursor.fetchone()[0]


def _add_dump(writer: Writer, snapshot: str) -> None:
    with TemporaryDirectory(dir=archive_folder()) as folder:
        path = Path(folder) / DUMP
        left_out = [f"--exclude-table-data=public.{table}" for table in LEFT_OUT]
        programs.run(
            "pg_dump",
            "--format=custom",
            f"--snapshot={snapshot}",
            f"--file={path}",
            "--schema=public",
            "--no-owner",
            "--no-privileges",
            *left_out,
            at_least=programs.server_major(),
        )
        with path.open("rb") as dump:
            writer.add(DUMP, dump, path.stat().st_size)


def _add_files(writer: Writer) -> tuple[int, int]:
    """How many files were written, and how many are not there."""
    written = missing = 0
    for name in Document.objects.exclude(file="").order_by("pk").values_list("file", flat=True).distinct().iterator():
        try:
            with default_storage.open(name, "rb") as stored:
                writer.add(f"{FILES}{name}", stored, stored.size)
        except FileNotFoundError:
            logger.warning("the file %s is not there and was left out of the backup", name)
            missing += 1
        else:
            written += 1
    return written, missing
