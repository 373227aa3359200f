"""A server on the loopback that takes every connection and never answers, and work that is cancelled while it waits for it."""

import socket
import threading
from contextlib import suppress

from kb.jobs import leases
from tests.interleaving import PATIENCE, Running


class SilentServer:
    """Use it as a context manager.

    Attributes:
        asked: set when the first request has come.
    """

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.asked = threading.Event()
        self._changed = threading.Condition()
        self._open = set()

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def is_left(self):
        """Whether the other side has closed all connections, or does so soon."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, PATIENCE)

    def _accept(self):
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return
            with self._changed:
                self._open.add(connection)
            threading.Thread(target=self._hold, args=(connection,), daemon=True).start()

    def _hold(self, connection):
        with connection, suppress(OSError):
            while connection.recv(65_536):
                self.asked.set()
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()


def ends_when_cancelled(monkeypatch, asked, work, cancel, *arguments):
    """Cancels what waits in a thread once it has asked; whether it has ended by itself, without an error."""
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.05)
    running = Running(work, *arguments)
    assert asked.wait(PATIENCE)
    cancel()
    running.join(10)  # what waits would do so for longer
    assert not running.is_alive()
    return running.outcome() is None
