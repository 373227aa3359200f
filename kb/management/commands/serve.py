import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from kb.metrics import SHARED_FOLDER

if TYPE_CHECKING:
    from django.db.backends.postgresql.base import DatabaseWrapper

MIGRATION_LOCK = (
    7_402_311  # of PostgreSQL's advisory locks: two servers that start together migrate one after the other
)
STOP_SECONDS = 20
LOOK_SECONDS = 0.2
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @property
    def bind(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def reachable(self) -> "Address":
        """Where a browser on this machine finds it."""
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), self.port)  # noqa: S104

    def require_free(self) -> None:
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            socket.create_server((self.host, self.port), family=family).close()
        except OSError as error:
            raise CommandError(
                f"Cannot listen on {self.bind} ({error.strerror}): choose another port, such as --port {self.port + 1}."
            ) from error

    def answers(self) -> bool:
        """Whether the application behind the port, and not only the port, is there."""
        client = http.client.HTTPConnection(self.reachable.host, self.port, timeout=30)
        try:
            client.request("GET", "/admin/login/")
            client.getresponse()
        except OSError:
            return False
        finally:
            client.close()
        return True


class Command(BaseCommand):
    help = "Runs the web server and a worker; starts PostgreSQL and Redis first where none are configured."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
        parser.add_argument("--workers", type=int, default=2, help="ingestion processes (default: %(default)s)")

    def handle(self, *_args: Any, **options: Any) -> None:
        address = Address(options["host"], options["port"])
        address.require_free()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)
        try:
            self._prepare(options["verbosity"])
            with _children(_commands(address, options["workers"])) as children:
                self._announce(address, children)
                _watch(children)
        except KeyboardInterrupt:
            self.stdout.write("Zhiku has stopped.")

    def _prepare(self, verbosity: int) -> None:
        from kb.services.bootstrap import first_start  # noqa: PLC0415 it loads the models and their libraries

        with _advisory_lock():
            executor = MigrationExecutor(connection)
            if executor.migration_plan(executor.loader.graph.leaf_nodes()):
                self.stdout.write("Preparing the database ...")
                call_command("migrate", interactive=False, verbosity=max(verbosity - 1, 0), stdout=self.stdout)
            first_start(stdout=self.stdout)
        connection.close()
        cast("DatabaseWrapper", connection).close_pool()

    def _announce(self, address: Address, children: dict[str, subprocess.Popen[bytes]]) -> None:
        while not address.answers():
            _require_alive(children)
            time.sleep(LOOK_SECONDS)
        self.stdout.write(self.style.SUCCESS(f"\nZhiku is ready: http://{address.reachable.bind}/admin/"))
        self.stdout.write("Ctrl-C stops it. A lost password: manage.py changepassword admin\n")
        self.stdout.flush()


def _commands(address: Address, workers: int) -> dict[str, list[str]]:
    settings.DATA_DIR.mkdir(parents=True, exist_ok=True)
    schedule = settings.DATA_DIR / "celerybeat-schedule"
    worker = (
        f"celery -A config worker -B --concurrency {workers} -l WARNING --without-gossip --without-mingle --schedule"
    )
    return {
        "web server": ["gunicorn", "--config", "python:config.gunicorn", "--bind", address.bind],
        "worker": [*worker.split(), str(schedule)],
    }


def _metrics_folder() -> str:
    """Where web server and worker count together: the operator's folder, else one of our own without old counts."""
    if chosen := os.environ.get(SHARED_FOLDER):
        return chosen
    folder = settings.DATA_DIR / "metrics"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return str(folder)


@contextlib.contextmanager
def _children(commands: dict[str, list[str]]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Runs the modules as processes of sessions of their own, so that a Ctrl-C reaches only this process, which ends them."""
    children: dict[str, subprocess.Popen[bytes]] = {}
    environment = {**os.environ, SHARED_FOLDER: _metrics_folder()}
    try:
        for name, command in commands.items():
            children[name] = subprocess.Popen(  # noqa: S603 this interpreter
                [sys.executable, "-m", *command], cwd=settings.BASE_DIR, env=environment, start_new_session=True
            )
        yield children
    finally:
        for number in SIGNALS:  # one is enough: what follows takes at most STOP_SECONDS
            signal.signal(number, signal.SIG_IGN)
        _stop(list(children.values()))


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    """Asks all to finish what they do, then ends what is left of each with its own children."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _watch(children: dict[str, subprocess.Popen[bytes]]) -> None:
    while True:
        _require_alive(children)
        time.sleep(LOOK_SECONDS)


def _require_alive(children: dict[str, subprocess.Popen[bytes]]) -> None:
    for name, child in children.items():
        if child.poll() is not None:
            raise CommandError(f"The {name} ended with code {child.returncode}; its last messages are above.")


@contextlib.contextmanager
def _advisory_lock() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK])
