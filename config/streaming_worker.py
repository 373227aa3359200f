"""Gunicorn's worker of the web process: answers leave the threads of requests to other requests while they are written.

A streamed answer waits for a chat model most of its time. A thread of requests does its first part, up to the status and
the headers; a thread of its own, in the same context, then sends the events as they come.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from typing import Any, Final, NamedTuple

from gunicorn.http.message import Request

from config.web_worker import BufferingWorker, Connection
from kb.base.streams import STREAMS, Outgoing, RequestThreads, sending

EVENTS: Final = ("Content-Type", "text/event-stream")
_GOES_ON: Final = object()


class Begun(NamedTuple):
    """A response whose body is still to be sent."""

    status: str
    headers: list[tuple[str, str]]
    body: Any


# In a stream's thread: what it sends.
_begun: ContextVar[Begun | None] = ContextVar("begun", default=None)


class _HandedOver(Exception):
    """Leaves gunicorn's handling of a request before anything is sent."""

    def __init__(self, begun: Begun) -> None:
        self.body = begun.body
        self.context = copy_context()
        self.context.run(_begun.set, begun)


class StreamingWorker(BufferingWorker):
    wsgi: Callable[..., Any]

    def get_thread_pool(self) -> RequestThreads:
        pool = RequestThreads(self.cfg.threads)
        STREAMS.aside = pool.aside
        return pool

    def load_wsgi(self) -> None:
        super().load_wsgi()
        self._application = self.wsgi
        self.wsgi = self._respond

    def finish_request(self, conn: Connection, fs: "Future[Any]") -> None:
        if fs.cancelled() or fs.exception() is not None or fs.result() is not _GOES_ON:
            super().finish_request(conn, fs)

    def handle_request(self, req: Request, conn: Connection) -> Any:
        if _begun.get() is not None:
            return self._send(req, conn)
        try:
            return super().handle_request(req, conn)
        except _HandedOver as handed_over:
            self._hand_over(req, conn, handed_over)
            return _GOES_ON

    def _keepalive_after(self, conn: Connection, keepalive: Any) -> Any:
        return keepalive if keepalive is _GOES_ON else super()._keepalive_after(conn, keepalive)

    def _respond(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """The application, as gunicorn calls it: in a stream's thread a second time for the same request."""
        if (begun := _begun.get()) is not None:
            start_response(begun.status, begun.headers)
            return begun.body
        heads: list[tuple[str, list[tuple[str, str]]]] = []

        def noted(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            heads.append((status, headers))
            return start_response(status, headers, *exc_info)

        body = self._application(environ, noted)
        if heads and EVENTS in heads[-1][1]:
            raise _HandedOver(Begun(*heads[-1], body))
        return body

    def _hand_over(self, req: Request, conn: Connection, handed_over: _HandedOver) -> None:
        """Begins a stream's thread, which handles the request a second time; this thread has no more to do with it."""
        # Not at the top: there are no settings before the application is loaded.
        from django.db import close_old_connections  # noqa: PLC0415
        from django.utils.translation import get_language  # noqa: PLC0415

        close_old_connections()  # of this thread: the end of the response closes those of its own
        conn.has_waited, conn.parser.waiting = True, req
        STREAMS.begin()
        in_context = (self._stream, conn, get_language())
        thread = threading.Thread(target=handed_over.context.run, args=in_context, name="stream", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            STREAMS.end()
            conn.parser.waiting = None
            handed_over.body.close()
            raise

    def _send(self, req: Request, conn: Connection) -> Any:
        client = conn.sock
        conn.sock = Outgoing(client)
        try:
            with sending(conn.sock):
                return super().handle_request(req, conn)
        finally:
            conn.sock = client

    def _stream(self, conn: Connection, language: str | None) -> None:
        from django.utils.translation import override  # noqa: PLC0415

        done: Future[Any] = Future()
        try:
            with override(language):  # which Django keeps by thread, not by context
                done.set_result(self.handle(conn))
        finally:
            STREAMS.end()
            if not done.done():
                done.cancel()
            self.method_queue.defer(self.finish_request, conn, done)
