"""Transport of the guarded client: connects to checked addresses only, within a deadline, and unpacks within a bound."""

import ssl
import time
import zlib
from collections.abc import Iterable
from typing import Any, Final

import httpcore

from kb.base.net.addresses import Guard
from kb.base.net.errors import FetchCode, FetchError


class Deadline:
    """The end of the time that something may take."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def remaining(self, host: str) -> float:
        """Seconds left.

        Raises:
            FetchError: there are none.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise FetchError(FetchCode.TIMEOUT, host=host, seconds=max(1, round(self.seconds)))
        return left


class GuardedBackend(httpcore.NetworkBackend):
    """Resolves a host once and connects to what was checked; TLS and HTTP go on with the host's name."""

    def __init__(self, guard: Guard, deadline: Deadline) -> None:
        self._guard = guard
        self._deadline = deadline
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline takes its place
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: httpcore.NetworkError | None = None
        for address in self._guard.addresses(host, port):
            left = self._deadline.remaining(host)
            try:
                stream = self._backend.connect_tcp(address, port, left, local_address, socket_options)
            except httpcore.ConnectError as error:
                failure = error
            else:
                return TimedStream(stream, self._deadline, host)
        raise FetchError(FetchCode.UNREACHABLE, host=host) from failure

    def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.NetworkStream:
        raise FetchError(FetchCode.BAD_SCHEME, scheme="unix")


class TimedStream(httpcore.NetworkStream):
    """A stream whose every read and write ends by the deadline, however slowly the other side trickles."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline, host: str) -> None:
        self._stream = stream
        self._deadline = deadline
        self._host = host

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - as above
        return self._stream.read(max_bytes, self._deadline.remaining(self._host))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        self._stream.write(buffer, self._deadline.remaining(self._host))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        left = self._deadline.remaining(self._host)
        try:
            stream = self._stream.start_tls(ssl_context, server_hostname, left)
        except httpcore.ConnectError as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise FetchError(FetchCode.TLS_FAILED, host=self._host) from error
            raise
        return TimedStream(stream, self._deadline, self._host)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


MIB: Final = 1024**2
_GZIP_OR_ZLIB: Final = 47
_GZIP_MAGIC: Final = b"\x1f\x8b"


class Inflater:
    """Unpacks gzip, of several members too, as it comes in.

    Args:
        max_bytes: of what comes out, in all.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._left = max_bytes
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB)

    def feed(self, data: bytes) -> bytes:
        """The next piece unpacked.

        Raises:
            FetchError: it is more than allowed, or broken.
        """
        pieces = []
        while data:
            try:
                piece = self._member.decompress(data, self._left + 1)
            except zlib.error as error:
                raise FetchError(FetchCode.BROKEN_RESPONSE, host="gzip") from error
            self._left -= len(piece)
            if self._left < 0:
                raise too_large(self._max)
            pieces.append(piece)
            data = self._member.unconsumed_tail
            if self._member.eof:
                data = self._member.unused_data
                if not data.startswith(_GZIP_MAGIC):
                    break  # padding
                self._member = zlib.decompressobj(_GZIP_OR_ZLIB)
        return b"".join(pieces)


def too_large(max_bytes: int) -> FetchError:
    return FetchError(FetchCode.TOO_LARGE, megabytes=max(1, max_bytes // MIB))


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """The bytes of a gzip file; others as they are.

    Raises:
        FetchError: they are more than allowed, or broken.
    """
    return Inflater(max_bytes).feed(data) if data.startswith(_GZIP_MAGIC) else data
