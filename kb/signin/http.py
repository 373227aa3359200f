"""The connections to the provider, of the library `requests` that django-allauth talks through, within our bounds."""

from typing import Any, Final

import httpcore
import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from kb.base.net.addresses import FetchError, Guard, parse_url
from kb.base.net.client import REDIRECTS, Deadline, GuardedBackend, mapped_errors, public_tls, too_large
from kb.base.waits import waiting_outside

SECONDS: Final = 10.0
MOST_BYTES: Final = 1024**2


class Unreachable(requests.RequestException):
    """The provider was not asked, or did not answer; the cause is a FetchError."""


def guarded_session(guard: Guard) -> requests.Session:
    """Connects only where it may, follows no redirect, and reads no more than a document of OpenID Connect has."""
    session = requests.Session()
    session.trust_env = False
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Guarded(guard))
    return session


class _Guarded(BaseAdapter):
    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def send(self, request: requests.PreparedRequest, *_args: Any, **_options: Any) -> requests.Response:
        try:
            with waiting_outside():
                return self._sent(request)
        except FetchError as error:
            raise Unreachable(str(error), request=request) from error

    def close(self) -> None:
        """Connections end with their request."""

    def _sent(self, request: requests.PreparedRequest) -> requests.Response:
        url, deadline = parse_url(request.url or ""), Deadline(SECONDS)
        body = request.body or b""  # forms, and nothing that is read bit by bit
        headers: dict[bytes | str, bytes | str] = {
            **dict(request.headers.items()),
            "Host": url.netloc.decode("ascii"),
            "Accept-Encoding": "identity",
        }
        backend = GuardedBackend(self._guard, deadline)
        with (
            mapped_errors(url.host, deadline),
            httpcore.ConnectionPool(ssl_context=public_tls(), network_backend=backend, retries=0) as pool,
            pool.stream(
                request.method or "GET",
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=headers,
                content=body if isinstance(body, bytes) else str(body).encode(),
            ) as received,
        ):
            if received.status in REDIRECTS:
                raise FetchError("redirected", host=url.host, status=received.status)
            content = bytearray()
            for piece in received.iter_stream():
                content += piece
                if len(content) > MOST_BYTES:
                    raise too_large(MOST_BYTES)
            response = requests.Response()
            response.status_code = received.status
            response.headers = CaseInsensitiveDict(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in received.headers
            )
        response._content = bytes(content)
        response.url, response.request, response.encoding = str(url), request, "utf-8"
        return response
