"""A network between a browser and a server, which can be cut: a relay of TCP connections on the loopback."""

import contextlib
import socket
import threading


class Network:
    """Use it as a context manager; `url` is where the server is reached through it."""

    def __init__(self, port):
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends = set()
        self._is_cut = False
        self._cut_after = None
        self.was_cut = threading.Event()

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()
        self.cut()

    def cut(self):
        """Drops every connection, and from now on each new one."""
        self._is_cut = True
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def restore(self):
        self._is_cut = False

    def cut_after(self, words):
        """Cuts as soon as a client has sent these bytes, which the server still gets."""
        self._cut_after = words

    def _accept(self):
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client):
        with contextlib.closing(client), contextlib.suppress(OSError):
            if self._is_cut:
                return
            with socket.create_connection(("127.0.0.1", self._port)) as server:
                self._ends |= {client, server}
                back = threading.Thread(target=self._relay, args=(server, client), daemon=True)
                back.start()
                self._relay(client, server)
                back.join()
                self._ends -= {client, server}

    def _relay(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
                if self._cut_after is not None and self._cut_after in data:
                    self._cut_after = None
                    self.cut()
                    self.was_cut.set()
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
