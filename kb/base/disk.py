"""Room on the disk, and errors for want of it: the system's, PostgreSQL's and our own are one `DiskFull`."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from django.conf import settings
from django.utils.translation import gettext as _
from psycopg.errors import DiskFull as DatabaseDiskFull

_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT}


class DiskFull(Exception):
    """Something was not written, as the disk has no room; the same goes well once somebody has made some."""

    def __str__(self) -> str:
        return _("The server’s disk is full: nothing was stored. Tell the server’s operator, and try again later.")


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error says that a disk is full, or comes of one that does."""
    while error is not None:
        if isinstance(error, DiskFull | DatabaseDiskFull) or getattr(error, "errno", None) in _NO_ROOM:
            return True
        error = error.__cause__
    return False


@contextmanager
def noticing_full_disk() -> Iterator[None]:
    """Raises DiskFull for every error that comes of a full disk."""
    try:
        yield
    except Exception as error:
        if is_disk_full(error) and not isinstance(error, DiskFull):
            raise DiskFull from error
        raise


def reserve(total: int) -> int:
    """The bytes of a disk of so many in all that are left to PostgreSQL, sessions and logs."""
    return min(int(settings.DISK_RESERVE_BYTES), total // 10)


def has_room(size: int = 0, folder: Path | None = None) -> bool:
    """Whether so many bytes fit into a folder, by default the data directory, without its reserve."""
    usage = shutil.disk_usage(folder or settings.DATA_DIR)
    return usage.free - size > reserve(usage.total)
