"""Disks without room: one that all of it is reserve, one that is small and real, and PostgreSQL's."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from kb.base import disk


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Nothing but the reserve is free."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "reserve", lambda total: total)
        yield


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A file system of its own; only root may mount one."""
    folder = Path(tempfile.mkdtemp(prefix="zhiku-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("no file system may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def fill(folder: Path) -> Path:
    """Takes all room that a disk has; returns the file that does."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


@contextlib.contextmanager
def database_full(*tables: str) -> Iterator[None]:
    """What is written to tables, by default to all, fails as where PostgreSQL's disk is full."""

    def refuse(execute, sql, params, many, context):
        is_write = sql.lstrip().startswith(("INSERT", "UPDATE"))
        if is_write and (not tables or any(table in sql for table in tables)):
            with context["connection"].wrap_database_errors:
                raise psycopg.errors.DiskFull("could not extend file: No space left on device")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        yield
