"""Which processes use the servers of a data directory: each holds the lock on a file of its own for as long as it lives."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_own: dict[Path, IO[str]] = {}
"""Open until this process ends, however it ends."""


def enter(directory: Path, role: str) -> None:
    """Notes that this process uses the data directory, and as what: all is in the name, for which a full disk has room."""
    folder = directory / "users"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{os.getpid()} {role}"
    if path not in _own:
        _own[path] = path.open("w")
        fcntl.flock(_own[path], fcntl.LOCK_EX)


def leave(directory: Path) -> None:
    for path in [each for each in _own if each.is_relative_to(directory)]:
        path.unlink(missing_ok=True)
        _own.pop(path).close()


def others(directory: Path) -> Iterator[tuple[int, str]]:
    """The pids and roles of other processes that use the data directory; forgets those that have ended."""
    for path in sorted((directory / "users").glob("*")):
        pid, _, role = path.name.partition(" ")
        with contextlib.suppress(FileNotFoundError), path.open() as file:
            if int(pid) == os.getpid():
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield int(pid), role
            else:
                path.unlink()
