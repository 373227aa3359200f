"""A Redis that tests may kill."""

import os
import signal
import socket
from contextlib import suppress

from config.embedded.servers import HOST, Redis


class OwnRedis(Redis):
    """A server of a test's own, which it may kill."""

    def kill(self):
        with socket.create_connection((HOST, self._port())) as watch:
            os.kill(int((self.directory / "redis.pid").read_text()), signal.SIGKILL)
            with suppress(ConnectionResetError):
                assert watch.recv(1) == b""

    def restart_empty(self):
        self.kill()
        assert self.start()
