"""Reads addresses that people and pages give, within bounds and only where it may."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from functools import lru_cache
from typing import Final

import httpcore
import httpx

from kb.base.net.addresses import Guard, parse_url, port_of
from kb.base.net.backend import MIB, Deadline, GuardedBackend, Inflater, too_large
from kb.base.net.errors import FetchCode, FetchError
from kb.base.net.politeness import Politeness

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS: Final = 5
_VALIDATORS: Final = {"etag": 500, "last-modified": 100}

# Is called with every address before it is asked; returns the seconds that its host wants between requests, or
# raises.
Hop = Callable[[httpx.URL], float]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What an address holds.

    Attributes:
        url: where it was found in the end.
        not_modified: the server says that it is as it was; there is no content then.
        charset: that of the header; blank: none.
    """

    url: str
    content: bytes = b""
    not_modified: bool = False
    media_type: str = ""
    charset: str = ""
    etag: str = ""
    last_modified: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted of an address.

    Attributes:
        types: the media types that are of use; None: any.
        max_bytes: of the content, unpacked; None: the client's.
        etag: and `last_modified`: of the copy at hand, so that the server need not send it again.
        before_hop: see `Hop`.
        deadline: for all of it, where somebody waits: no pauses between requests then. None: the client's, for each hop.
    """

    types: frozenset[str] | None = None
    max_bytes: int | None = None
    etag: str = ""
    last_modified: str = ""
    before_hop: Hop = lambda _: 0.0
    deadline: Deadline | None = None


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # which reads SSL_CERT_FILE, for an intranet with an authority of its own


@dataclass(frozen=True, slots=True)
class WebClient:
    """See the module's description.

    Attributes:
        seconds: for one request with its whole answer.
        tls: certificates that are trusted; None: those of the public authorities.
    """

    guard: Guard
    politeness: Politeness
    user_agent: str
    max_bytes: int = 10 * MIB
    seconds: float = 30.0
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def fetch(self, url: str, ask: Ask = Ask()) -> Fetched:
        """Reads an address, following where it leads; every hop is checked as the first.

        Raises:
            FetchError: it cannot be read, or must not be.
        """
        at = parse_url(url)
        for _ in range(MAX_REDIRECTS + 1):
            gap = ask.before_hop(at)
            deadline = ask.deadline
            if deadline is None:
                self.politeness.wait(f"{at.host}:{port_of(at)}", gap)
                deadline = Deadline(self.seconds)
            with _mapped_errors(at.host, deadline), self._response(at, ask, deadline) as response:
                if response.status not in REDIRECTS:
                    return self._fetched(at, response, ask)
                location = _header(response, "location")
            at = _next(at, location)
        raise FetchError(FetchCode.TOO_MANY_REDIRECTS, count=MAX_REDIRECTS)

    @contextmanager
    def _response(self, url: httpx.URL, ask: Ask, deadline: Deadline) -> Iterator[httpcore.Response]:
        headers = {"User-Agent": self.user_agent, "Accept": "*/*", "Accept-Encoding": "gzip", "Connection": "close"}
        if ask.etag:
            headers["If-None-Match"] = ask.etag
        if ask.last_modified:
            headers["If-Modified-Since"] = ask.last_modified
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        fields = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        fields.append((b"Host", url.netloc))
        backend = GuardedBackend(self.guard, deadline)
        with (
            httpcore.ConnectionPool(ssl_context=self.tls or _tls(), network_backend=backend, retries=0) as pool,
            pool.stream("GET", target, headers=fields) as response,
        ):
            yield response

    def _fetched(self, url: httpx.URL, response: httpcore.Response, ask: Ask) -> Fetched:
        etag, last_modified = (
            value if len(value := _header(response, name)) <= most else "" for name, most in _VALIDATORS.items()
        )
        if response.status == 304 and (ask.etag or ask.last_modified):
            # A server need not say again what it was asked with.
            etag, last_modified = etag or ask.etag, last_modified or ask.last_modified
            return Fetched(str(url), not_modified=True, etag=etag, last_modified=last_modified)
        _check_status(url.host, response)
        # Media type and charset; a server that names none most often means a page
        message = Message()
        message["Content-Type"] = _header(response, "content-type") or "text/html"
        media_type, charset = message.get_content_type(), (message.get_content_charset() or "")
        if ask.types is not None and media_type not in ask.types:
            raise FetchError(FetchCode.BAD_TYPE, type=media_type[:100])
        content = _content(url.host, response, ask.max_bytes or self.max_bytes)
        return Fetched(
            str(url), content, media_type=media_type, charset=charset, etag=etag, last_modified=last_modified
        )


@contextmanager
def _mapped_errors(host: str, deadline: Deadline) -> Iterator[None]:
    try:
        yield
    except httpcore.TimeoutException as error:
        raise FetchError(FetchCode.TIMEOUT, host=host, seconds=max(1, round(deadline.seconds))) from error
    except httpcore.NetworkError as error:
        raise FetchError(FetchCode.UNREACHABLE, host=host) from error
    except httpcore.ProtocolError as error:
        raise FetchError(FetchCode.BROKEN_RESPONSE, host=host) from error


def _next(url: httpx.URL, location: str) -> httpx.URL:
    try:
        joined = str(url.join(location))
    except (httpx.InvalidURL, ValueError) as error:
        raise FetchError(FetchCode.BAD_URL, url=location[:200]) from error
    return parse_url(joined).copy_with(fragment=None)


def _check_status(host: str, response: httpcore.Response) -> None:
    status = response.status
    if status in {404, 410}:
        raise FetchError(FetchCode.GONE, status=status)
    if status == 429 or (status == 503 and _header(response, "retry-after")):
        raise FetchError(FetchCode.TOO_MANY_REQUESTS, host=host, status=status)
    if status in {401, 402, 403, 407, 451}:
        raise FetchError(FetchCode.FORBIDDEN, status=status)
    if status != 200:
        raise FetchError(FetchCode.BAD_STATUS, status=status)


def _content(host: str, response: httpcore.Response, max_bytes: int) -> bytes:
    encoding = _header(response, "content-encoding").strip().lower()
    if encoding not in {"", "identity", "gzip", "x-gzip"}:
        raise FetchError(FetchCode.BAD_ENCODING, encoding=encoding[:40])
    stated = _header(response, "content-length")
    if stated.isdecimal() and int(stated[:20]) > max_bytes:
        raise too_large(max_bytes)
    inflate = Inflater(max_bytes).feed if encoding.endswith("gzip") else bytes
    content = bytearray()
    try:
        for piece in response.iter_stream():
            content += inflate(piece)
            if len(content) > max_bytes:
                raise too_large(max_bytes)
    except FetchError as error:
        if error.code == FetchCode.BROKEN_RESPONSE:
            raise FetchError(FetchCode.BROKEN_RESPONSE, host=host) from error
        raise
    return bytes(content)


def _header(response: httpcore.Response, name: str) -> str:
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == wanted), "")
