import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from config import embedded
from kb.base.metrics import SHARED_FOLDER
from kb.management.addresses import Address

if TYPE_CHECKING:
    from django.db.backends.postgresql.base import DatabaseWrapper

# Of PostgreSQL's advisory locks: two servers that start together migrate one after the other.
MIGRATION_LOCK = 7_402_311
LOOK_SECONDS = 0.2
DEMO_SECONDS = 60
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS: Final = 20
MOST_ENDS: Final = 3
WITHIN_SECONDS: Final = 60.0
"""A child that ends more often within this time is ill, and to begin it again would only hide that."""


class Children:
    """Modules of this interpreter, each a process of a session of its own, so that a Ctrl-C reaches only this process.

    `commands` holds by name what follows `python -m`; `say` takes a line for the operator.
    """

    def __init__(
        self,
        commands: Mapping[str, list[str]],
        directory: Path,
        environment: Mapping[str, str],
        say: Callable[[str], object],
    ) -> None:
        self._commands, self._directory, self._environment, self._say = commands, directory, environment, say
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ends: dict[str, deque[float]] = defaultdict(deque)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Begins them, and ends them whatever happens."""
        try:
            for name in self._commands:
                self._begin(name)
            yield
        finally:
            for number in SIGNALS:  # one is enough: what follows takes at most STOP_SECONDS
                signal.signal(number, signal.SIG_IGN)
            # Asks all to finish what they do, then ends what is left of each with its own children.
            for child in self._running.values():
                child.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            for child in self._running.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.0, deadline - time.monotonic()))
                self._end_what_it_left(child)

    def require_alive(self) -> None:
        """CommandError where one has ended: while they begin, it would end again."""
        for name, child in self._running.items():
            if child.poll() is not None:
                raise CommandError(f"The {name} ended with code {child.returncode}; its last messages are above.")

    def revive(self) -> None:
        """Restarts those that have ended; CommandError where one has too often."""
        for name, child in self._running.items():
            if child.poll() is None:
                continue
            ends, now = self._ends[name], time.monotonic()
            ends.append(now)
            while ends[0] < now - WITHIN_SECONDS:
                ends.popleft()
            if len(ends) > MOST_ENDS:
                self.require_alive()
            self._say(f"The {name} ended with code {child.returncode}, and is restarted.")
            self._end_what_it_left(child)
            self._begin(name)

    def _begin(self, name: str) -> None:
        self._running[name] = subprocess.Popen(  # noqa: S603 this interpreter
            [sys.executable, "-m", *self._commands[name]],
            cwd=self._directory,
            env=self._environment,
            start_new_session=True,
        )

    @staticmethod
    def _end_what_it_left(child: "subprocess.Popen[bytes]") -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


class Command(BaseCommand):
    help = (
        "Runs the web server, a worker and the MCP server; starts PostgreSQL and Redis first where none are configured."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
        parser.add_argument("--mcp-port", type=int, metavar="PORT", help="port of the MCP server (default: --port + 1)")
        parser.add_argument("--no-mcp", action="store_true", help="run no MCP server")
        parser.add_argument(
            "--workers",
            type=int,
            default=2,
            help="processes for uploads, beside one for long work (default: %(default)s)",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        address = Address(options["host"], options["port"])
        address.require_allowed()
        try:
            embedded.claim(address.port)
        except embedded.EmbeddedError as error:
            raise CommandError(str(error)) from error
        address.require_free()
        mcp = None if options["no_mcp"] else Address(address.host, options["mcp_port"] or address.port + 1)
        if mcp is not None:
            mcp.require_free("--mcp-port")
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler)
        try:
            is_first = self._prepare(options["verbosity"])
            children = Children(
                _commands(address, mcp, options["workers"]),
                directory=settings.BASE_DIR,
                environment=environment_of_children(),
                say=self.stderr.write,
            )
            with children.running():
                self._await(address, mcp, children)
                if is_first:
                    self._await_demo(children)
                self._announce(address, mcp)
                while True:
                    self._revive_servers()
                    children.revive()
                    time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            self.stdout.write("Zhiku has stopped.")

    def _prepare(self, verbosity: int) -> bool:
        """Whether this is the first start."""
        # They load the models and their libraries.
        from kb.access.services.attribution import How, acting  # noqa: PLC0415
        from kb.operations.services.bootstrap import first_start  # noqa: PLC0415
        from kb.providers.services import environment_models_sync  # noqa: PLC0415
        from kb.tasks import enqueue, fetch_demo_models  # noqa: PLC0415

        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            self.stdout.write("Preparing the database ...")
            call_command("migrate", interactive=False, verbosity=max(verbosity - 1, 0), stdout=self.stdout)
        with acting(How.COMMAND, via="serve"):
            demos = first_start(stdout=self.stdout)
        environment_models_sync()
        if demos:  # after the demo's documents, so that these are searchable first
            enqueue(fetch_demo_models, *demos)
        _disconnect()  # which releases the lock
        return bool(demos)

    def _await(self, address: Address, mcp: Address | None, children: Children) -> None:
        while not (address.answers("/admin/login/") and (mcp is None or mcp.answers("/health"))):
            children.require_alive()
            time.sleep(LOOK_SECONDS)

    def _revive_servers(self) -> None:
        """Children go on: they reach a server again where it was."""
        try:
            revived = embedded.revive()
        except embedded.EmbeddedError as error:  # as where the disk is full: it may start later
            self.stderr.write(str(error))
        else:
            for name in revived:
                self.stderr.write(f"{name} ended, and is restarted.")

    def _await_demo(self, children: Children) -> None:
        from kb.models import Document  # noqa: PLC0415

        deadline = time.monotonic() + DEMO_SECONDS
        unfinished = Document.objects.filter(status__in=Document.UNFINISHED)
        while not (searchable := not unfinished.exists()) and time.monotonic() < deadline:
            children.require_alive()
            time.sleep(LOOK_SECONDS)
        _disconnect()
        if not searchable:
            self.stdout.write("\nThe demo is still being indexed: its page in the admin shows how far it is.")

    def _announce(self, address: Address, mcp: Address | None) -> None:
        if mcp is not None:
            self.stdout.write(f"\nMCP server for agents: http://{mcp.reachable.bind}/mcp")
        if settings.SECURE_SSL_REDIRECT:
            self.stdout.write(
                "\nPages are sent to https, which a TLS proxy has to offer (docs/deploying.md). "
                "To use this machine's browser without one: ZHIKU_LOCAL=true"
            )
        self.stdout.write(self.style.SUCCESS(f"\nZhiku is ready: http://{address.reachable.bind}/admin/"))
        self.stdout.write("Ctrl-C stops it. A lost password: manage.py changepassword admin\n")
        self.stdout.flush()


def _disconnect() -> None:
    connection.close()
    cast("DatabaseWrapper", connection).close_pool()


def _commands(address: Address, mcp: Address | None, workers: int) -> dict[str, list[str]]:
    settings.DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    worker = "celery --quiet -A config worker -l WARNING --without-gossip --without-mingle"
    schedule = str(settings.DATA_DIR / "celerybeat-schedule")
    commands = {
        "web server": ["gunicorn", "--config", "python:config.gunicorn", "--bind", address.bind],
        "worker": [*worker.split(), "-B", "--concurrency", str(workers), "--schedule", schedule],
        "worker for long work": [*worker.split(), *["-Q", "long,moves", "--concurrency", "1", "--hostname", "long@%h"]],
    }
    if mcp is not None:
        commands["MCP server"] = ["config", "mcp", "--http", "--host", mcp.host, "--port", str(mcp.port)]
    return commands


def environment_of_children() -> dict[str, str]:
    """This process's; at a terminal a line for each request and task would push the password out of sight."""
    found = {"LOG_LEVEL": "WARNING" if settings.LOCAL else "INFO", **os.environ}
    if not found.get(SHARED_FOLDER):  # where web server and worker count together: one of our own, without old counts
        folder = settings.DATA_DIR / "metrics"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found[SHARED_FOLDER] = str(folder)
    return found
