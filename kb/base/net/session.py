"""Many requests to one site over connections that stay open, each within bounds and only where it may."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import httpcore
import httpx

from kb.base.net.addresses import FetchError, Guard, port_of
from kb.base.net.client import (
    MAX_REDIRECTS,
    REDIRECTS,
    Deadline,
    GuardedBackend,
    header_of,
    joined,
    mapped_errors,
    public_tls,
)

KEPT_SECONDS: Final = 60.0  # that an idle connection is kept


class Session:
    """Asks one site again and again, for one thread; every new connection is checked as the first.

    Args:
        headers: of every request, credentials among them: they go to the site alone.
        seconds: for a request with its whole answer.
        tls: None trusts public authorities.
    """

    def __init__(
        self, guard: Guard, *, headers: Mapping[str, str], seconds: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._headers, self._seconds = dict(headers), seconds
        self._deadline = Deadline(seconds)
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls or public_tls(),
            network_backend=GuardedBackend(guard, self._deadline),
            max_connections=1,
            keepalive_expiry=KEPT_SECONDS,
            retries=0,
        )

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def request(
        self,
        method: str,
        url: httpx.URL,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        seconds: float | None = None,
    ) -> Iterator[tuple[httpx.URL, httpcore.Response]]:
        """Yields the address that answers in the end and its answer, whose body is still to be read.

        A redirect is followed within the host, from http:// to https:// too and never back. Raises FetchError: "off_site" for
        another one, and why there is no answer.
        """
        at = url
        for _ in range(MAX_REDIRECTS + 1):
            self._deadline.restart(seconds or self._seconds)
            with mapped_errors(at.host, self._deadline):
                response = self._sent(method, at, headers or {}, content)
                try:
                    if response.status not in REDIRECTS:
                        yield at, response
                        return
                finally:
                    response.close()
            at = within_site(at, header_of(response, "location"))
        raise FetchError("too_many_redirects", count=MAX_REDIRECTS)

    def _sent(self, method: str, url: httpx.URL, headers: Mapping[str, str], content: bytes) -> httpcore.Response:
        fields = [(name.encode(), value.encode("latin-1")) for name, value in {**self._headers, **headers}.items()]
        fields += [(b"Host", url.netloc), (b"Content-Length", str(len(content)).encode())]
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        request = httpcore.Request(method, target, headers=fields, content=content)
        try:
            return self._pool.handle_request(request)
        except (httpcore.RemoteProtocolError, httpcore.ReadError, httpcore.WriteError):
            # The site may have closed the connection just before: what is asked here changes nothing, so once more.
            return self._pool.handle_request(httpcore.Request(method, target, headers=fields, content=content))


def within_site(at: httpx.URL, location: str) -> httpx.URL:
    """Where an answer leads on to; raises FetchError("off_site") for another host or port, or back from https://."""
    url = joined(at, location)
    is_same = (url.scheme, port_of(url)) == (at.scheme, port_of(at))
    if url.host != at.host or not (is_same or (at.scheme == "http" and url.scheme == "https")):
        raise FetchError("off_site", url=str(url)[:200])
    return url
