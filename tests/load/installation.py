"""An installation of its own on the loopback, whose parts can be killed and begun again."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.load.client import TIMEOUT_S
from tests.serving import free_port

STARTS_WITHIN = 180.0
ROOT = Path(__file__).parents[2]


class Installation:
    """PostgreSQL, Redis, and `manage.py serve` in production settings; see `installation`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = port

    def kill_redis(self) -> None:
        self._redis_process().kill()

    def start_redis(self) -> None:
        from config.embedded.servers import Redis

        Redis(self.folder / "redis").start()

    def stop_postgres(self) -> None:
        """As a restart by its operator does: those who are connected lose their connections."""
        from config.embedded.servers import Postgres

        Postgres(self.folder / "postgres").stop()

    def start_postgres(self) -> None:
        from config.embedded.servers import Postgres

        Postgres(self.folder / "postgres").start()

    def kill_worker(self) -> None:
        """The worker and its processes at once, as a lost host would lose them."""
        workers = [each for each in psutil.Process(self._pid()).children() if "celery" in each.cmdline()]
        doomed = [*workers, *(child for each in workers for child in each.children(recursive=True))]
        if not workers:
            raise RuntimeError("there is no worker to kill")
        for each in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    def serve(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "ZHIKU_EMBEDDED"} | {
            "SECRET_KEY": os.environ.setdefault("SECRET_KEY", secrets.token_urlsafe(64)),
            "SECURE_SSL_REDIRECT": "false",
            "CACHE_ENABLED": "false",  # so that every search is run
            "RERANKER_MODEL": "",
            "EMBEDDING_MODEL": "hashing",
        }
        command = [sys.executable, "manage.py", "serve", "--port", str(self._port), "--workers", "2"]
        log = (self.folder / "serve.log").open("w")
        self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        deadline = time.monotonic() + STARTS_WITHIN
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "serve.log").read_text())
            time.sleep(0.5)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/api/v1/ready/", timeout=TIMEOUT_S).close()
        except OSError:
            return False
        return True

    def _pid(self) -> int:
        if self._process is None:
            raise RuntimeError("nothing is served yet")
        return self._process.pid

    def _redis_process(self) -> psutil.Process:
        [pid] = (self.folder / "redis").glob("*.pid")
        return psutil.Process(int(pid.read_text()))


@contextlib.contextmanager
def installation(folder: Path) -> Iterator[Installation]:
    """Starts PostgreSQL and Redis in the folder and sets this process up for them; `serve` is left to the caller."""
    port = free_port()
    os.environ |= {"ZHIKU_DATA_DIR": str(folder), "DJANGO_SETTINGS_MODULE": "config.settings"}
    from config import embedded

    embedded.ensure()
    import django
    from django.core.management import call_command

    made = Installation(folder, port)
    try:
        django.setup()
        call_command("migrate", verbosity=0)
        yield made
    finally:
        made.stop()
        embedded.stop()
