import contextlib
import os
import shutil
import signal
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from kb.base.metrics import SHARED_FOLDER
from kb.management.addresses import Address
from kb.management.children import SIGNALS, Children, running

if TYPE_CHECKING:
    from django.db.backends.postgresql.base import DatabaseWrapper

MIGRATION_LOCK = (
    7_402_311  # of PostgreSQL's advisory locks: two servers that start together migrate one after the other
)
LOOK_SECONDS = 0.2
DEMO_SECONDS = 60


class Command(BaseCommand):
    help = (
        "Runs the web server, a worker and the MCP server; starts PostgreSQL and Redis first where none are configured."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
        parser.add_argument("--mcp-port", type=int, metavar="PORT", help="port of the MCP server (default: --port + 1)")
        parser.add_argument("--no-mcp", action="store_true", help="run no MCP server")
        parser.add_argument("--workers", type=int, default=2, help="ingestion processes (default: %(default)s)")

    def handle(self, *_args: Any, **options: Any) -> None:
        address = Address(options["host"], options["port"])
        address.require_allowed()
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
            with running(children):
                self._await(address, mcp, children)
                if is_first:
                    self._await_demo(children)
                self._announce(address, mcp)
                while True:
                    children.revive()
                    time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            self.stdout.write("Zhiku has stopped.")

    def _prepare(self, verbosity: int) -> bool:
        """Whether this is the first start."""
        # They load the models and their libraries.
        from kb.access.services.attribution import How, acting  # noqa: PLC0415
        from kb.operations.services.bootstrap import first_start  # noqa: PLC0415

        with _advisory_lock():
            executor = MigrationExecutor(connection)
            if executor.migration_plan(executor.loader.graph.leaf_nodes()):
                self.stdout.write("Preparing the database ...")
                call_command("migrate", interactive=False, verbosity=max(verbosity - 1, 0), stdout=self.stdout)
            with acting(How.COMMAND, via="serve"):
                is_first = first_start(stdout=self.stdout)
        _disconnect()
        return is_first

    def _await(self, address: Address, mcp: Address | None, children: Children) -> None:
        while not (address.answers("/admin/login/") and (mcp is None or mcp.answers("/health"))):
            children.require_alive()
            time.sleep(LOOK_SECONDS)

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
    schedule = settings.DATA_DIR / "celerybeat-schedule"
    worker = (
        f"celery -A config worker -B --concurrency {workers} -l WARNING --without-gossip --without-mingle --schedule"
    )
    commands = {
        "web server": ["gunicorn", "--config", "python:config.gunicorn", "--bind", address.bind],
        "worker": [*worker.split(), str(schedule)],
    }
    if mcp is not None:
        commands["MCP server"] = ["config", "mcp", "--http", "--host", mcp.host, "--port", str(mcp.port)]
    return commands


def environment_of_children() -> dict[str, str]:
    """This process's; at a terminal a line for each request and task would push the password out of sight."""
    return {"LOG_LEVEL": "WARNING" if settings.LOCAL else "INFO", **os.environ, SHARED_FOLDER: _metrics_folder()}


def _metrics_folder() -> str:
    """Where web server and worker count together: the operator's folder, else one of our own without old counts."""
    if chosen := os.environ.get(SHARED_FOLDER):
        return chosen
    folder = settings.DATA_DIR / "metrics"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return str(folder)


@contextlib.contextmanager
def _advisory_lock() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK])
