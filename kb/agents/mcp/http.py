"""The MCP server behind a port: streamable HTTP at /mcp, and /health.

Also over standard input and output, as a child of the program that uses it.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import h11
import uvicorn
from django.conf import settings
from django.db import DatabaseError, connections
from django.http.request import split_domain_port, validate_host
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from kb.access.services.api_keys import api_key_use
from kb.access.services.rate_limits import FAILURES, attempt_spend
from kb.agents.mcp.server import build_server, key_in
from kb.base.loopback import CLIENT_MIN_RATE, CLIENT_SECONDS
from kb.base.metrics import serve_metrics
from kb.base.net.client_address import caller_address, network_of
from kb.base.streams import STREAMS
from kb.base.telemetry import logs, otel
from kb.base.telemetry.requests import note
from kb.search.wiring import warm_up

logger = logging.getLogger(__name__)

PATH, HEALTH = "/mcp", "/health"
# Of a request's head, as on the web server's port (config/gunicorn.py); the first also of the frame of a chunk.
HEAD_BYTES, LINE_BYTES, FIELDS = 32 * 1024, 8_190, 64


def serve_http(host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT, and then ends what is under way."""
    warm_up_beside()
    serve_metrics()
    # uvicorn raises a signal again once it has ended; that must not be taken for a crash.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    uvicorn.run(
        application(),
        host=host,
        port=port,
        http=BoundedProtocol,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # uvicorn would believe any process of this host; TRUSTED_PROXIES says whom to believe
        timeout_graceful_shutdown=10,  # how long calls that are under way may take
    )


def warm_up_beside() -> None:
    """Loads tokenizers and models beside the first requests, once a process."""
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()


class BoundedConnection(h11.Connection):
    """Takes no head beyond the bounds."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            lines = [len(event.target), *(len(name) + len(value) for name, value in event.headers)]
            if len(lines) > FIELDS + 1 or max(lines) > LINE_BYTES or sum(lines) > HEAD_BYTES:
                raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
        return event


class BoundedProtocol(H11Protocol):
    """Bounds the heads of requests, and closes a connection over which for CLIENT_SECONDS none has come or is answered.

    It is not uvicorn's faster protocol, whose parser takes a head of any length.
    """

    _seen: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = BoundedConnection(h11.SERVER, HEAD_BYTES)

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:  # amid an answer
            self.transport.abort()
            return
        error = sys.exception()  # for which the library calls this
        refusal = error.error_status_hint if isinstance(error, h11.ProtocolError) else 400
        head = f"HTTP/1.1 {refusal} \r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
        self.transport.write(f"{head}{msg}".encode())
        self.transport.close()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(CLIENT_SECONDS, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.cycle is self._seen:
            self.transport.abort()
            return
        self._seen = self.cycle
        self.loop.call_later(CLIENT_SECONDS, self._look)


def paced(receive: Receive) -> Receive:
    """As a client that goes away is one whose body comes too slowly."""
    started, received, is_whole = time.monotonic(), 0, False

    async def received_in_time() -> Message:
        nonlocal received, is_whole
        if is_whole:
            return await receive()
        message: Message = {"type": "http.disconnect"}
        with anyio.move_on_after(started + CLIENT_SECONDS + received / CLIENT_MIN_RATE - time.monotonic()):
            message = await receive()
        received += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        return message

    return received_in_time


def application() -> ASGIApp:
    """The ASGI application. Each request stands for itself, so any process may answer it."""
    # The door checks hosts and origins, by the rules that the web server has.
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return Door(
        build_server().streamable_http_app(
            streamable_http_path=PATH, stateless_http=True, json_response=True, transport_security=security
        )
    )


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Lets another call begin while the one of this thread waits for a chat model."""
    anyio.from_thread.run_sync(_allow_threads, 1)
    try:
        yield
    finally:
        anyio.from_thread.run_sync(_allow_threads, -1)


def _allow_threads(more: int) -> None:
    anyio.to_thread.current_default_thread_limiter().total_tokens += more


class Door:
    """Lets requests in that name this server, come from no foreign page and carry a key that opens something."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            # Each call of a tool has a thread and with it a connection of the pool.
            anyio.to_thread.current_default_thread_limiter().total_tokens = int(os.environ.get("WEB_THREADS", "8"))
            STREAMS.aside = aside
            await self._app(scope, receive, send)
        elif scope["path"].rstrip("/") == HEALTH:
            await JSONResponse({"status": "ok"})(scope, receive, send)
        else:
            with otel.request_span("mcp", Headers(scope=scope)):
                await self._let_in(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, headers = time.perf_counter(), Headers(scope=scope)
        refusal = (
            _refusal_of_page(headers)
            or await anyio.to_thread.run_sync(_refusal_of_key, scope)
            or _refusal_of_method(scope)
        )
        if refusal is not None:
            await refusal(scope, receive, send)
            with logs.bound(request_id=logs.request_id_of(headers)):
                note("mcp", scope["method"], refusal.status_code, started)
            return
        if scope["path"] == f"{PATH}/":
            scope = {**scope, "path": PATH, "raw_path": PATH.encode()}
        await self._app(scope, paced(receive), send)


def _refusal_of_page(headers: Headers) -> Response | None:
    """A page of another site can make a browser send requests here, under a name that leads here too."""
    if not _is_allowed(headers.get("host", "")):
        return _refusal(421, "misdirected", "This server does not go by that name: add it to ALLOWED_HOSTS.")
    origin = headers.get("origin")
    if origin and origin not in settings.CSRF_TRUSTED_ORIGINS and not _is_allowed(origin.partition("://")[2]):
        return _refusal(403, "foreign_origin", "Pages of that origin may not call: add it to CSRF_TRUSTED_ORIGINS.")
    return None


def _is_allowed(host: str) -> bool:
    domain, _port = split_domain_port(host)
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)


def _refusal_of_key(scope: Scope) -> Response | None:
    headers = Headers(scope=scope)
    try:
        if api_key_use(key_in(headers)) is not None:
            return None
        peer = scope["client"][0] if scope.get("client") else ""
        # A proxy may write a line of its own below that of the client.
        spent = attempt_spend(FAILURES, network_of(caller_address(peer, ",".join(headers.getlist("x-forwarded-for")))))
    except DatabaseError:
        logger.exception("the database could not answer")
        detail = "The database is out of reach or overloaded: try again later."
        return _refusal(503, "unavailable", detail, {"Retry-After": "30"})
    finally:
        connections.close_all()
    if spent is not None and not spent.allowed:
        detail = "Too many requests without a valid API key: wait as Retry-After says."
        return _refusal(429, "throttled", detail, {"Retry-After": str(spent.resets_in_s)})
    detail = "Send “Authorization: Bearer ” with an API key of this server that is neither revoked nor expired."
    return _refusal(401, "not_authenticated", detail, {"WWW-Authenticate": 'Bearer realm="zhiku"'})


def _refusal_of_method(scope: Scope) -> Response | None:
    """Without sessions there is nothing to listen to, for which a GET would be held open for ever, and nothing to end."""
    if scope["path"].rstrip("/") != PATH or scope["method"] == "POST":
        return None
    return _refusal(405, "method_not_allowed", "Send a POST: this server sends nothing by itself.", {"Allow": "POST"})


def _refusal(status: int, code: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"code": code, "detail": detail}, status, headers)


def serve_stdio() -> None:
    """Serves until standard input ends, or SIGTERM or SIGINT ends it."""
    warm_up_beside()
    anyio.run(_serve, _closable_input())


async def _serve(close_input: Callable[[], None]) -> None:
    async def close_on_signal() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _number in signals:
                close_input()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close_on_signal)
        await build_server().run_stdio_async()
        tasks.cancel_scope.cancel()


def _closable_input() -> Callable[[], None]:
    """Puts a socket in the place of standard input, and a thread that fills it; returns what ends it.

    The server waits for standard input in a thread that nothing can wake but its end.
    """
    original = os.dup(0)
    ours, servers = socket.socketpair()
    os.dup2(servers.fileno(), 0)
    servers.close()

    def close() -> None:
        with contextlib.suppress(OSError):  # it has ended already
            ours.shutdown(socket.SHUT_WR)

    def fill() -> None:
        with contextlib.suppress(OSError):  # it was ended meanwhile
            while block := os.read(original, 65_536):
                ours.sendall(block)
        close()

    threading.Thread(target=fill, name="standard-input", daemon=True).start()
    return close
