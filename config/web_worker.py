"""Gunicorn's worker with threads, in which no thread waits for a client to send.

Gunicorn gives a connection to a thread as soon as anything has arrived, and there reads the request at the client's pace:
as many slow clients as threads hold all of them. Here the event loop takes requests in. A thread sees a request when its
head is there, decides whether its body may come, and answers when all of it has.
"""

import contextlib
import errno
import logging
import os
import socket
import time
from concurrent.futures import Future
from functools import partial
from itertools import chain
from pathlib import Path
from selectors import EVENT_READ
from tempfile import TemporaryFile
from typing import IO, Any, Final

from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.body import LengthReader
from gunicorn.http.errors import LimitRequestHeaders
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, TConn, ThreadWorker

from kb.base.disk import DiskFull, has_room, is_disk_full
from kb.base.loopback import CLIENT_MIN_RATE, CLIENT_SECONDS

logger = logging.getLogger(__name__)

HEAD_BYTES: Final = 32 * 1024
PIECE: Final = 256 * 1024
# For which what still comes is thrown away after the last answer: closed at once, the client would lose the answer.
LINGER_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.2
HEAD_END: Final = b"\r\n\r\n"
_AWAITS_BODY: Final = object()


class Arrival:
    """What has come over a connection and was not read yet; to gunicorn's parser a socket that never blocks."""

    def __init__(self) -> None:
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self.missing = 0
        self.received = 0
        self.failure: Exception | None = None

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def has_head(self) -> bool:
        return HEAD_END in self._memory or self.is_too_long

    @property
    def is_too_long(self) -> bool:
        return len(self._memory) > HEAD_BYTES and HEAD_END not in self._memory

    @property
    def is_whole(self) -> bool:
        return self.missing == 0

    @property
    def wanted(self) -> int:
        """How many bytes to take from the socket next; none that belong to a later request than this body's."""
        return min(self.missing, PIECE) if self.missing else HEAD_BYTES + 1 - len(self._memory)

    def begin(self, ahead: bytes) -> None:
        """The next request begins, of which the client may have sent a part already."""
        self.end_body()
        self._memory[:0] = ahead
        self.missing, self.failure = 0, None

    def end_body(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # of what found no room
                self._file.close()
            self._file = None

    def await_body(self, folder: str | os.PathLike[str] | None) -> None:
        """What comes next is the body's: to a file in the folder where there is one, which needs room, else to memory."""
        self.received = 0
        if folder and not has_room(self.missing, Path(folder)):
            self.failure = DiskFull()
            return
        self._file = TemporaryFile(dir=folder) if folder else None  # noqa: SIM115 - end_body closes it

    def add(self, data: bytes) -> None:
        if self._file is None:
            self._memory += data
        else:
            self._file.write(data)
        if self.missing:
            self.missing -= len(data)
            self.received += len(data)
            if self.is_whole and self._file is not None:
                self._file.seek(0)

    def recv(self, size: int) -> bytes:
        """Some of what has come.

        Raises:
            TimeoutError: no more has, of a body that should have; the framework takes that for a client that went away.
            DiskFull: there is no room for it.
        """
        if self._memory:
            data = bytes(self._memory[:size])
            del self._memory[:size]
            return data
        if self.failure or self.missing:
            raise self.failure or TimeoutError("the body has not arrived")
        return self._file.read(size) if self._file is not None else b""


class Parser(RequestParser):  # type: ignore[misc]
    """Gives a request a second time once its body has arrived."""

    waiting: Request | None = None

    def __next__(self) -> Request:
        request, self.waiting = self.waiting, None
        if request is not None:
            return request
        if self.unreader.sock.is_too_long:
            raise LimitRequestHeaders(f"longer than {HEAD_BYTES} bytes")
        return super().__next__()

    next = __next__


class Connection(TConn):  # type: ignore[misc]
    """A client's connection, looked at again when it is `due` (`time.monotonic`).

    `has_waited` says whether its request has waited for its body.
    """

    def __init__(self, cfg: Config, sock: socket.socket, client: Any, server: Any) -> None:
        super().__init__(cfg, sock, client, server)
        self.initialized = self.data_ready = True
        self.arrival = Arrival()
        self.parser = Parser(cfg, self.arrival, client)
        self.due = 0.0
        self.has_waited = False

    def begin(self) -> None:
        self.arrival.begin(self.parser.unreader.take_buffered())
        self.has_waited = False

    def close(self, graceful: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - gunicorn's, which would wait
        super().close()
        self.arrival.end_body()


class BufferingWorker(ThreadWorker):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arriving: dict[Connection, None] = {}
        self.lingering: dict[Connection, None] = {}
        self._next_look = 0.0

    @classmethod
    def check_config(cls, cfg: Config, log: Any) -> None:
        super().check_config(cfg, log)
        if cfg.is_ssl:
            raise ValueError("This server speaks no TLS: put a proxy before it, as docs/deploying.md says.")

    def set_accept_enabled(self, enabled: bool) -> None:  # noqa: FBT001 - gunicorn's
        """Once it ends it also closes its copy of the port: nobody is kept waiting there until it has ended."""
        super().set_accept_enabled(enabled)
        if not enabled and (not self.alive or self.ppid != os.getppid()):
            for listener in self.sockets:
                listener.close()

    # -- In the event loop: nothing here waits ------------------------------------------------------------------------
    def accept(self, listener: socket.socket) -> None:
        try:
            sock, client = listener.accept()
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.ECONNABORTED, errno.EMFILE, errno.ENFILE}:
                raise
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                self._drop_oldest()
            return
        self.nr_conns += 1
        conn = Connection(self.cfg, sock, client, listener.getsockname())
        if self.nr_conns >= self.worker_connections:  # else nobody could come in until some have been too slow
            self._drop_oldest()
        self._await_more(conn)

    def on_client_socket_readable(self, conn: Connection, client: socket.socket) -> None:
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        self._await_more(conn)

    def murder_pending(self) -> None:
        """Of gunicorn's loop: what has to be looked at from time to time."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        for conn in [each for each in self.lingering if each.due <= now]:
            self._drop(conn)
        for conn in [each for each in self.arriving if each.due <= now]:
            arrival = conn.arrival
            if arrival.is_whole:
                self._drop(conn)  # not even its head has come
            elif arrival.received >= CLIENT_MIN_RATE * CLIENT_SECONDS:
                arrival.received, conn.due = 0, now + CLIENT_SECONDS
            else:
                self._forget(conn)
                self.enqueue_req(conn)  # which says that the body did not arrive

    def finish_request(self, conn: Connection, fs: Future[Any]) -> None:
        """What becomes of a connection that a thread gives back."""
        result = not fs.cancelled() and fs.exception() is None and fs.result()
        try:
            if result is _AWAITS_BODY:
                self._await_more(conn)
            elif result:
                conn.begin()
                if conn.arrival.has_head:
                    self.enqueue_req(conn)
                elif len(conn.arrival):
                    self._await_more(conn)
                else:
                    conn.sock.settimeout(0)
                    conn.set_timeout()
                    if not self.alive:
                        conn.timeout = min(conn.timeout, time.monotonic() + STOP_KEEPALIVE_LINGER)
                    self.keepalived_conns.append(conn)
                    self.poller.register(conn.sock, EVENT_READ, partial(self.on_client_socket_readable, conn))
            else:
                conn.sock.settimeout(0)
                conn.sock.shutdown(socket.SHUT_WR)
                conn.due = time.monotonic() + LINGER_SECONDS
                self.poller.register(conn.sock, EVENT_READ, partial(self._on_lingering, conn))
                self.lingering[conn] = None
        except (OSError, ValueError):  # the socket is closed already
            self._drop(conn)

    def _await_more(self, conn: Connection) -> None:
        conn.sock.settimeout(0)
        conn.due = time.monotonic() + CLIENT_SECONDS
        self.poller.register(conn.sock, EVENT_READ, partial(self._on_arrival, conn))
        self.arriving[conn] = None
        self._on_arrival(conn, conn.sock)  # mostly it is there

    def _on_arrival(self, conn: Connection, sock: socket.socket) -> None:
        if conn not in self.arriving:  # dropped for another since the loop woke
            return
        data = self._received(conn, sock, conn.arrival.wanted)
        if not data:
            return
        is_head = conn.arrival.is_whole
        try:
            conn.arrival.add(data)
        except OSError as error:
            logger.exception("a request's body could not be put on the disk")
            conn.arrival.failure = DiskFull() if is_disk_full(error) else error
        if conn.arrival.failure or (conn.arrival.has_head if is_head else conn.arrival.is_whole):
            self._forget(conn)
            self.enqueue_req(conn)

    def _on_lingering(self, conn: Connection, sock: socket.socket) -> None:
        if conn in self.lingering:
            self._received(conn, sock, PIECE)

    def _received(self, conn: Connection, sock: socket.socket, size: int) -> bytes:
        """What has come; nothing where nothing has yet, and where the client has gone, whose connection is dropped."""
        try:
            data = sock.recv(size)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            data = b""
        if not data:
            self._drop(conn)
        return data

    def _forget(self, conn: Connection) -> None:
        for waiting in (self.arriving, self.lingering):
            if waiting.pop(conn, conn) is None:
                self.poller.unregister(conn.sock)

    def _drop(self, conn: Connection) -> None:
        self._forget(conn)
        self.nr_conns -= 1
        conn.close()

    def _drop_oldest(self) -> None:
        heads = (conn for conn in self.arriving if not conn.has_waited)
        oldest = next(chain(self.lingering, heads, self.arriving), None)
        if oldest is not None:
            self._drop(oldest)

    def _cap_keepalive(self, deadline: float) -> None:
        super()._cap_keepalive(deadline)
        for conn in self.arriving:
            if not len(conn.arrival) and conn.arrival.is_whole:  # nothing was asked
                conn.due = min(conn.due, deadline)

    # -- In a thread ------------------------------------------------------------------------------------------------
    def handle_request(self, req: Request, conn: Connection) -> Any:
        """Answers, or has the event loop take the body in first.

        A body that may not come, or that has not come in time, is as one that breaks off; the connection ends then.
        """
        conn.sock.settimeout(CLIENT_SECONDS)
        if not conn.has_waited and _is_to_wait(req, conn, self.cfg):
            conn.has_waited, conn.parser.waiting = True, req
            return _AWAITS_BODY
        if not conn.arrival.is_whole or not isinstance(req.body.reader, LengthReader):
            req.force_close()
        return super().handle_request(req, conn)

    def handle_error(self, req: Request | None, client: socket.socket, addr: Any, exc: Exception) -> None:
        with contextlib.suppress(OSError):
            client.settimeout(CLIENT_SECONDS)
            super().handle_error(req, client, addr, exc)

    def _keepalive_after(self, conn: Connection, keepalive: Any) -> Any:
        if keepalive is _AWAITS_BODY:
            return keepalive
        return conn.arrival.is_whole and super()._keepalive_after(conn, keepalive)


def _is_to_wait(req: Request, conn: Connection, cfg: Config) -> bool:
    """Whether a body is not here yet and may come; says so to a client that waits to hear it."""
    from django.conf import settings  # noqa: PLC0415 - there are none before the application is loaded

    from kb.web.api.callers import may_send  # noqa: PLC0415

    expects_a_word, req._expected_100_continue = req._expected_100_continue, False
    if not isinstance(req.body.reader, LengthReader):
        return False  # in chunks, which no view takes
    length = req.body.reader.length
    conn.arrival.missing = max(0, length - len(req.unreader.buf.getvalue()) - len(conn.arrival))
    if conn.arrival.is_whole:
        return False
    is_small = length <= settings.ANONYMOUS_BODY_BYTES
    if not is_small and not may_send(wsgi.create(req, conn.sock, conn.client, conn.server, cfg)[1]):
        return False
    conn.arrival.await_body(None if is_small else settings.FILE_UPLOAD_TEMP_DIR)
    if conn.arrival.failure:
        return False  # which says so
    if expects_a_word:
        conn.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    return True
