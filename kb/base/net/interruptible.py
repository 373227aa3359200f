"""Connections of httpcore and httpcore2 whose waits end with the work that they are for (`kb.base.cancellation`)."""

import socket
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import httpcore
import httpcore2
import httpx

from kb.base.cancellation import abandonable, interruptible

C = TypeVar("C")


class InterruptibleStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with interruptible(self._stop):
            return bytes(self._stream.read(max_bytes, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with interruptible(self._stop):
            self._stream.write(buffer, timeout)

    def start_tls(self, *args: Any, **options: Any) -> "InterruptibleStream":
        with interruptible(self._stop):
            return InterruptibleStream(self._stream.start_tls(*args, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _stop(self) -> None:
        """To close it would not wake up the thread that reads."""
        with suppress(OSError):
            socket.socket.shutdown(self._stream.get_extra_info("socket"), socket.SHUT_RDWR)


class InterruptibleBackend:
    """A network backend of `core`, httpcore or httpcore2."""

    def __init__(self, core: Any) -> None:
        self._backend = core.SyncBackend()

    def connect_tcp(self, *args: Any, **options: Any) -> InterruptibleStream:
        connect = partial(self._backend.connect_tcp, *args, **options)
        return InterruptibleStream(abandonable(connect, lambda stream: stream.close()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def made_interruptible(client: C) -> C:
    """A client of httpx or httpx2 with such connections, those through proxies among them."""
    known: Any = client
    core = httpcore if isinstance(client, httpx.Client) else httpcore2
    for transport in filter(None, (known._transport, *known._mounts.values())):
        transport._pool._network_backend = InterruptibleBackend(core)
    return client
