"""HTTP clients of models' servers, which connect only to addresses that the model may have.

A host is resolved once for a connection, checked, and the address that was checked is connected to; redirects are not
followed. `openai` talks through httpx2, everything else through httpx: both have the same guard.
"""

import ssl
from collections.abc import Iterable
from functools import partial
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpcore2
import httpx
import httpx2

from kb.base.cancellation import abandonable
from kb.base.net.addresses import MESSAGES, AllowList, FetchError, Guard, parse_url, port_of
from kb.base.net.client import public_tls
from kb.base.net.interruptible import InterruptibleBackend
from kb.base.streams import MOST as STREAMS_MOST, after_read, before_read
from kb.providers.endpoints import Endpoint
from retrieval.errors import AddressRefused, Message

PORTS: Final = range(1, 65_536)  # model servers listen anywhere
# By which clouds call their metadata, also where only a proxy resolves names.
_METADATA_NAMES: Final = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)
CONNECTIONS: Final = 32
MOST_CONNECTIONS: Final = CONNECTIONS + STREAMS_MOST  # one for each answer that is streamed
KEPT_SECONDS: Final = 30.0
# Public addresses; those and private ones; a cloud's metadata and reserved ones are in neither.
PUBLIC: Final = Guard(ports=PORTS)
PRIVATE: Final = Guard(AllowList(any_private=True), ports=PORTS)


def addresses_of(host: str, port: int, *, allows_private: bool) -> list[str]:
    """The addresses of a model's server that may be connected to, resolved once.

    Raises FetchError with "metadata_address" for one that no model may have, "private_model" for a private one that is
    not confirmed, and "unknown_host".
    """
    if host.lower().rstrip(".") in _METADATA_NAMES:
        raise FetchError("metadata_address", host=host, address=host)
    found = _checked(PRIVATE, "metadata_address", host, port)
    return found if allows_private else _checked(PUBLIC, "private_model", host, port, found)


def _checked(guard: Guard, code: str, host: str, port: int, found: list[str] | None = None) -> list[str]:
    pinned = guard if found is None else Guard(guard.allowed, lambda *_: found, guard.ports)
    try:
        return pinned.addresses(host, port)
    except FetchError as error:
        if error.code != "forbidden_address":
            raise
        raise FetchError(code, **error.params) from error


def is_private_address(url: httpx.URL) -> bool:
    """Whether an address is a private one; False for a name that nobody knows now. Raises FetchError for a cloud's metadata."""
    try:
        addresses_of(url.host, port_of(url), allows_private=True)
        addresses_of(url.host, port_of(url), allows_private=False)
    except FetchError as error:
        if error.code in {"private_model", "unknown_host"}:
            return error.code == "private_model"
        raise
    return False


def message_of_fetch(error: FetchError) -> Message:
    return Message(MESSAGES[error.code], **error.params)


def allows_private(endpoint: Endpoint) -> bool:
    """Whoever sets an environment variable may name any server of theirs."""
    return endpoint.allows_private or bool(endpoint.variable)


# A pool drops the cause of what is raised in it, so the error of the library is itself one of ours.
_REFUSED: Final[dict[Any, Any]] = {
    core: type("ConnectRefused", (core.ConnectError, AddressRefused), {}) for core in (httpcore, httpcore2)
}


class ModelConnection:
    """A connection that reports when it is waited for: what is streamed on is sent then, see `kb.base.streams`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        before_read()
        data: bytes = self._stream.read(max_bytes, timeout)
        # With TLS a read is one record at most.
        while data and len(data) < max_bytes and self._stream.get_extra_info("is_readable"):
            more = self._stream.read(max_bytes - len(data), timeout)
            if not more:
                break
            data += more
        after_read()
        return data

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Any:
        return ModelConnection(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Backend(InterruptibleBackend):
    """Connects to the addresses that were checked; TLS and HTTP go on with the host's name."""

    def __init__(self, core: Any, *, allows_private: bool) -> None:
        super().__init__(core)
        self._core, self._allows_private = core, allows_private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Any:
        failure: Exception = OSError(host)
        try:
            addresses = abandonable(partial(addresses_of, host, port, allows_private=self._allows_private))
        except FetchError as error:
            if error.code == "unknown_host":
                raise self._core.ConnectError(str(error)) from error
            raise _REFUSED[self._core](message_of_fetch(error)) from error
        for address in addresses:
            try:
                return ModelConnection(super().connect_tcp(address, port, timeout, local_address, socket_options))
            except self._core.ConnectError as error:
                failure = error
        raise failure


def http_client(endpoint: Endpoint) -> httpx.Client:
    """A client for a model's server, without its key; connections to an address that it may not have fail.

    The cause of such a failure is an AddressRefused.
    """
    client: httpx.Client = _client(httpx, httpcore, endpoint)
    return client


def openai_client(endpoint: Endpoint) -> httpx2.Client:
    """The same as the package `openai` takes it."""
    client: httpx2.Client = _client(httpx2, httpcore2, endpoint)
    return client


def _client(library: Any, core: Any, endpoint: Endpoint) -> Any:
    """With a proxy in the environment the proxy resolves and connects; what is known of the host is checked before."""
    proxy = _proxy_of(endpoint.base_url)
    transport = library.HTTPTransport(verify=public_tls(), proxy=proxy)
    if proxy is not None:
        transport._pool._network_backend = InterruptibleBackend(core)
    else:
        transport._pool = core.ConnectionPool(
            ssl_context=public_tls(),
            max_connections=MOST_CONNECTIONS,
            max_keepalive_connections=CONNECTIONS,
            keepalive_expiry=KEPT_SECONDS,
            network_backend=_Backend(core, allows_private=allows_private(endpoint)),
        )
    check = partial(_check_before_proxy, library, endpoint)
    hooks = {"request": [check]} if proxy is not None else {}
    return library.Client(transport=transport, follow_redirects=False, trust_env=False, event_hooks=hooks)


def _proxy_of(base_url: str) -> str | None:
    """The proxy that the environment names for an address, as other programs read it."""
    try:
        url = parse_url(base_url)
    except FetchError:
        return None
    return None if proxy_bypass(url.host) else getproxies().get(url.scheme) or getproxies().get("all")


def _check_before_proxy(library: Any, endpoint: Endpoint, request: Any) -> None:
    try:
        addresses_of(request.url.host, port_of(request.url), allows_private=allows_private(endpoint))
    except FetchError as error:
        if error.code != "unknown_host":  # a name that only the proxy knows
            raise library.ConnectError(str(error), request=request) from AddressRefused(message_of_fetch(error))
