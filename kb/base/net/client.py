"""Reads addresses that people and pages give, within bounds, by a deadline and only where it may."""

import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from functools import lru_cache, partial
from typing import Any, Final

import httpcore
import httpx

from kb.base import cancellation
from kb.base.net.addresses import FetchError, Guard, parse_url, port_of
from kb.base.net.interruptible import InterruptibleBackend, InterruptibleStream


class Deadline:
    def __init__(self, seconds: float) -> None:
        self.restart(seconds)

    def restart(self, seconds: float) -> None:
        """For the next request of connections that stay open."""
        self.seconds, self._end = seconds, time.monotonic() + seconds

    def remaining(self, host: str) -> float:
        """Seconds left; raises FetchError where there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise FetchError("timeout", host=host, seconds=max(1, round(self.seconds)))
        return left


class GuardedBackend(httpcore.NetworkBackend):
    """Resolves a host once and connects to what was checked; TLS and HTTP go on with the host's name."""

    def __init__(self, guard: Guard, deadline: Deadline) -> None:
        self._guard, self._deadline = guard, deadline
        self._backend = InterruptibleBackend(httpcore)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline takes its place
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: httpcore.NetworkError | None = None
        for address in cancellation.abandonable(partial(self._guard.addresses, host, port)):
            left = self._deadline.remaining(host)
            try:
                stream = self._backend.connect_tcp(address, port, left, local_address, socket_options)
                return TimedStream(stream, self._deadline, host)
            except httpcore.ConnectError as error:
                failure = error
        raise FetchError("unreachable", host=host) from failure


class TimedStream(httpcore.NetworkStream):
    """A stream whose every read and write ends by the deadline, however slowly the other side trickles."""

    def __init__(self, stream: InterruptibleStream, deadline: Deadline, host: str) -> None:
        self._stream, self._deadline, self._host = stream, deadline, host

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
        try:
            stream = self._stream.start_tls(ssl_context, server_hostname, self._deadline.remaining(self._host))
        except httpcore.ConnectError as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise FetchError("tls_failed", host=self._host) from error
            raise
        return TimedStream(stream, self._deadline, self._host)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


MIB: Final = 1024**2
_GZIP_OR_ZLIB: Final = 47
_GZIP_MAGIC: Final = b"\x1f\x8b"


class Inflater:
    """Unpacks gzip, of several members too, as it comes in, up to so many bytes."""

    def __init__(self, max_bytes: int, host: str = "gzip") -> None:
        self._max, self._host = max_bytes, host
        self._left = max_bytes
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB)

    def feed(self, data: bytes) -> bytes:
        """The next piece unpacked; raises FetchError where it is more than allowed, or broken."""
        pieces = []
        while data:
            try:
                piece = self._member.decompress(data, self._left + 1)
            except zlib.error as error:
                raise FetchError("broken_response", host=self._host) from error
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
    return FetchError("too_large", megabytes=max(1, max_bytes // MIB))


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """The bytes of a gzip file, others as they are; raises FetchError as `Inflater.feed`."""
    return Inflater(max_bytes).feed(data) if data.startswith(_GZIP_MAGIC) else data


HOSTS: Final = 1_000


class Politeness:
    """Keeps requests to one host so many seconds apart, those of all threads together."""

    def __init__(
        self,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = cancellation.sleep,
    ) -> None:
        self._seconds, self._clock, self._sleep = seconds, clock, sleep
        self._free_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def wait(self, host: str, at_least: float = 0.0) -> None:
        """Returns when the host (name and port) may be asked; it may itself ask for more seconds between two requests."""
        gap = max(self._seconds, at_least)
        with self._lock:
            now = self._clock()
            turn = max(now, self._free_at.get(host, now))
            self._free_at[host] = turn + gap
            if len(self._free_at) > HOSTS:
                self._free_at = {name: free for name, free in self._free_at.items() if free > now}
        if turn > now:
            self._sleep(turn - now)


REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS: Final = 5
_VALIDATORS: Final = {"etag": 500, "last-modified": 100}


@dataclass(frozen=True, slots=True)
class Fetched:
    """What an address holds, found at `url` in the end; no content where it is as it was (`not_modified`)."""

    url: str
    content: bytes = b""
    not_modified: bool = False
    media_type: str = ""
    charset: str = ""
    etag: str = ""
    last_modified: str = ""


@lru_cache(maxsize=1)
def public_tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # which reads SSL_CERT_FILE, for an intranet with an authority of its own


@dataclass(frozen=True, slots=True)
class WebClient:
    """Reads web addresses; `seconds` are for a request with its whole answer, `tls` None trusts public authorities."""

    guard: Guard
    politeness: Politeness
    user_agent: str
    max_bytes: int = 10 * MIB
    seconds: float = 30.0
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def fetch(
        self,
        url: str,
        *,
        types: frozenset[str] | None = None,
        max_bytes: int | None = None,
        etag: str = "",
        last_modified: str = "",
        before_hop: Callable[[httpx.URL], float] = lambda _: 0.0,
        deadline: Deadline | None = None,
    ) -> Fetched:
        """Reads an address, following where it leads; every hop is checked as the first. Raises FetchError.

        `types` are the media types that are of use; None: any. `max_bytes` are of the content, unpacked; None: the
        client's. `etag` and `last_modified` are of the copy at hand, which need not be sent again. A deadline is for
        all of it, where somebody waits: no pauses between requests then; None: `seconds` for each hop. `before_hop` is
        called with every address before it is asked, and returns the seconds that its host wants between requests, or
        raises.
        """
        at = parse_url(url)
        for _ in range(MAX_REDIRECTS + 1):
            gap = before_hop(at)
            ends = deadline
            if ends is None:
                self.politeness.wait(f"{at.host}:{port_of(at)}", gap)
                ends = Deadline(self.seconds)
            with mapped_errors(at.host, ends), self._response(at, ends, etag, last_modified) as response:
                if response.status not in REDIRECTS:
                    return _fetched(at, response, types, max_bytes or self.max_bytes, etag, last_modified)
                at = joined(at, header_of(response, "location"))
        raise FetchError("too_many_redirects", count=MAX_REDIRECTS)

    @contextmanager
    def _response(
        self, url: httpx.URL, deadline: Deadline, etag: str, last_modified: str
    ) -> Iterator[httpcore.Response]:
        headers = {
            "User-Agent": self.user_agent,
            "Accept": "*/*",
            "Accept-Encoding": "gzip",
            "Connection": "close",
            "If-None-Match": etag,
            "If-Modified-Since": last_modified,
        }
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        fields = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items() if value]
        fields.append((b"Host", url.netloc))
        backend = GuardedBackend(self.guard, deadline)
        with (
            httpcore.ConnectionPool(ssl_context=self.tls or public_tls(), network_backend=backend, retries=0) as pool,
            pool.stream("GET", target, headers=fields) as response,
        ):
            yield response


def joined(at: httpx.URL, location: str) -> httpx.URL:
    """Where an answer leads on to."""
    try:
        found = str(at.join(location))
    except (httpx.InvalidURL, ValueError) as error:
        raise FetchError("bad_url", url=location[:200]) from error
    return parse_url(found).copy_with(fragment=None)


def _fetched(
    url: httpx.URL,
    response: httpcore.Response,
    types: frozenset[str] | None,
    max_bytes: int,
    known_etag: str,
    known_last_modified: str,
) -> Fetched:
    etag, last_modified = (
        value if len(value := header_of(response, name)) <= most else "" for name, most in _VALIDATORS.items()
    )
    if response.status == 304 and (known_etag or known_last_modified):
        # A server need not say again what it was asked with.
        etag, last_modified = etag or known_etag, last_modified or known_last_modified
        return Fetched(str(url), not_modified=True, etag=etag, last_modified=last_modified)
    check_status(url.host, response)
    # Media type and charset; a server that names none most often means a page
    message = Message()
    message["Content-Type"] = header_of(response, "content-type") or "text/html"
    media_type, charset = message.get_content_type(), (message.get_content_charset() or "")
    if types is not None and media_type not in types:
        raise FetchError("bad_type", type=media_type[:100])
    content = _content(url.host, response, max_bytes)
    return Fetched(str(url), content, media_type=media_type, charset=charset, etag=etag, last_modified=last_modified)


@contextmanager
def mapped_errors(host: str, deadline: Deadline) -> Iterator[None]:
    try:
        yield
    except httpcore.TimeoutException as error:
        raise FetchError("timeout", host=host, seconds=max(1, round(deadline.seconds))) from error
    except httpcore.NetworkError as error:
        raise FetchError("unreachable", host=host) from error
    except httpcore.ProtocolError as error:
        raise FetchError("broken_response", host=host) from error


def check_status(host: str, response: httpcore.Response) -> None:
    """Raises FetchError for all but an answer with a content."""
    status = response.status
    if status in {404, 410}:
        raise FetchError("gone", status=status)
    if status == 429 or (status == 503 and header_of(response, "retry-after")):
        raise FetchError("too_many_requests", host=host, status=status)
    if status in {401, 402, 403, 407, 451}:
        raise FetchError("forbidden", status=status)
    if status != 200:
        raise FetchError("bad_status", status=status)


def _content(host: str, response: httpcore.Response, max_bytes: int) -> bytes:
    encoding = header_of(response, "content-encoding").strip().lower()
    if encoding not in {"", "identity", "gzip", "x-gzip"}:
        raise FetchError("bad_encoding", encoding=encoding[:40])
    inflate = Inflater(max_bytes, host).feed if encoding.endswith("gzip") else bytes
    return b"".join(inflate(piece) for piece in body_of(response, max_bytes))


def body_of(response: httpcore.Response, max_bytes: int) -> Iterator[bytes]:
    """What an answer holds, as it comes; raises FetchError("too_large") as soon as that is known to be more."""
    stated = header_of(response, "content-length")
    if stated.isdecimal() and int(stated[:20]) > max_bytes:
        raise too_large(max_bytes)
    yield from bounded(response.iter_stream(), max_bytes)


def bounded(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise too_large(max_bytes)
        yield piece


def header_of(response: httpcore.Response, name: str) -> str:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name.encode()), "")
