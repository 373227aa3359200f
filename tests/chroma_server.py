"""The server that comes with ChromaDB's package, as a process of the tests' own."""

import subprocess
import sysconfig
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.serving import free_port

SECONDS = 60


@contextmanager
def running(directory):
    """Its address."""
    port = free_port()
    command = [Path(sysconfig.get_path("scripts"), "chroma"), "run", "--path", directory]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], cwd=directory, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url)
        yield url
    finally:
        process.terminate()
        process.wait(SECONDS)


def _wait(process, url):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, "the server ended"
        try:
            httpx.get(f"{url}/api/v2/heartbeat").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server does not answer")
