"""Whether this process is about to end: a byte of memory that its forks share, so that none needs a message."""

import mmap
import struct
import time
from typing import Final

_SINCE: Final = struct.Struct("d")
_shared = mmap.mmap(-1, _SINCE.size)


def begin() -> None:
    """Notes that the process ends; a second call changes nothing."""
    if since() is None:
        _shared[:] = _SINCE.pack(time.monotonic())


def since() -> float | None:
    """When it began to end, on the clock of `time.monotonic`; None where it does not."""
    (started,) = _SINCE.unpack(_shared[:])
    return started or None


def seconds() -> float:
    """For how long it has been ending; 0 where it does not."""
    started = since()
    return 0.0 if started is None else time.monotonic() - started


def forget() -> None:
    _shared[:] = _SINCE.pack(0.0)
