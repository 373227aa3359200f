"""Processes of this application that serve the tests' database, as an operator starts them."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

from django.db import connection

from tests.serving import free_port

ROOT = Path(__file__).parents[2]
SECONDS = 120


def environment(**changed):
    """This process's, with the tests' database in place of the one that it was made beside."""
    url = urlsplit(os.environ["DATABASE_URL"])
    name = quote(connection.settings_dict["NAME"])
    return {
        **os.environ,
        "DATABASE_URL": url._replace(path=f"{url.path.rpartition('/')[0]}/{name}").geturl(),
        "PYTHONPATH": str(ROOT),
        "LANGUAGE_CODE": "en",
        "LOG_LEVEL": "WARNING",
        **changed,
    }


class Server:
    """A process behind a port of the loopback.

    Args:
        module: what to run, with its arguments; `{port}` stands for the port.
        probe: a path that answers once the application is there.
    """

    def __init__(self, *module, probe, **changed):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", *(part.format(port=self.port) for part in module)]
        self._probe, self._changed = probe, changed
        self._process = None

    def start(self):
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=environment(**self._changed),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        deadline = time.monotonic() + SECONDS
        while not self._answers():
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.1)

    def stop(self):
        """Asks it to end; returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code

    @property
    def pid(self):
        return self._process.pid

    def output(self):
        return "".join(self._lines)

    def _read(self):
        self._lines.extend(self._process.stdout)
        self._process.stdout.close()

    def _answers(self):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(client), contextlib.suppress(OSError):
            client.request("GET", self._probe)
            return client.getresponse().status == 200
        return False


@contextlib.contextmanager
def running(server):
    server.start()
    try:
        yield server
    finally:
        server.stop()
