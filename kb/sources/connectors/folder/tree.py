"""Opens and lists what is in a folder of this machine, whatever others do to it meanwhile: nothing outside is reached."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kb.base.net.addresses import FetchError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe that nobody writes to must not wait.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# No such thing, or a symbolic link or a file where a folder is wanted.
ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE})


def key_of(path: str) -> str:
    r"""A path as a text that a database holds: bytes that are no UTF-8 as "\xff", and so a backslash as two."""
    return os.fsencode(path.replace("\\", "\\\\")).decode("utf-8", "backslashreplace")


def path_of(key: str) -> str:
    """The path of a key by `key_of`."""
    parts = key.split("\\\\")
    raw = b"\\".join(_bytes_of(part) for part in parts)
    return os.fsdecode(raw)


def _bytes_of(part: str) -> bytes:
    first, *escaped = part.split("\\x")
    return first.encode() + b"".join(bytes.fromhex(each[:2]) + each[2:].encode() for each in escaped)


@contextmanager
def opened(root: int, path: str, *, folder: bool = False) -> Iterator[int]:
    """Opens a path below an open folder, part by part, so that no symbolic link is followed; raises OSError."""
    parts = path.split("/") if path else ["."]
    at = os.dup(root)
    try:
        for position, part in enumerate(parts, 1):
            if part in {"", ".."}:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            below = os.open(part, _FILE if position == len(parts) and not folder else _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def listed(root: int, folder: str) -> list[tuple[str, os.stat_result]]:
    """Names with what they are, links as links, in their order; raises OSError where the folder cannot be listed."""
    found = []
    with opened(root, folder, folder=True) as at, os.scandir(at) as entries:
        for entry in entries:
            try:
                found.append((entry.name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue  # deleted since
    return sorted(found, key=lambda each: each[0])


def version_of(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def reason_of(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def unlisted(path: str, error: OSError) -> FetchError:
    """Why a folder cannot be listed."""
    if error.errno in ABSENT:
        return FetchError("folder_missing", path=path)
    return FetchError("folder_unreadable", path=path, reason=reason_of(error))
