import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from config.embedded.programs import EmbeddedError, give, last_lines, run

USER = "postgres"
DATABASE = "zhiku"
PORT = 5432  # of the socket's name only: nothing listens on TCP
SOCKET_PATH_MAX = 100  # bytes; the systems' limits are 103 and 107
START_SECONDS = 120  # a recovery after a crash can take long
LAUNCHES = 20
SETTINGS = {
    "listen_addresses": "",
    "port": PORT,
    "unix_socket_permissions": "0700",
    "shared_buffers": "256MB",
    "maintenance_work_mem": "256MB",
    "max_connections": 100,
}
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@dataclass(frozen=True)
class Postgres:
    """A cluster in a directory, reached over a Unix socket only.

    The wheel gives the programs. Its own `get_server` is not used: its handles count processes and its atexit hook runs in
    every one of them, it takes no settings, it gives up a recovery after ten seconds, and its initdb fails where LANG
    names a locale that the system lacks.
    """

    directory: Path
    durable: bool = True

    def url(self) -> str:
        """The form with the socket's directory before the name, the one that django-environ turns into a HOST."""
        return f"postgres://{USER}@:{PORT}/{quote(str(self._socket_dir()))}/{DATABASE}"

    def answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def start(self) -> bool:
        """Returns whether the server had to be started.

        A server that runs is waited for; one that is certainly dead is cleaned up after and restarted.
        """
        launches, started, failure = 0, False, ""
        deadline = time.monotonic() + START_SECONDS
        while launches < LAUNCHES and time.monotonic() < deadline:
            if not self._is_alive():
                launches += 1
                failure = self._launch()
                started = not failure
            if self.answers():
                with self._connect() as connection:
                    if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).rowcount:
                        connection.execute(f"CREATE DATABASE {DATABASE}")
                return started
            time.sleep(0.3)  # after a crash, the dead server's children hold its memory for a moment
        raise EmbeddedError(f"PostgreSQL does not start. {failure}{last_lines(self._log)}")

    def stop(self) -> bool:
        """Returns whether the server was running."""
        alive = self._is_alive()
        sockets = self._socket_dir()
        if alive:
            try:
                run("pg_ctl", "stop", "-w", "-m", "fast", "-t", "30", "-D", str(self.directory))
            except subprocess.CalledProcessError:
                run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self.directory))
        self._clean(sockets)
        return alive

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    @property
    def _pid_file(self) -> Path:
        return self.directory / "postmaster.pid"

    def _pid_lines(self) -> list[str]:
        """Of the server: its pid, directory, start, port and socket directory; as many as it has written so far."""
        return self._pid_file.read_text().splitlines() if self._pid_file.exists() else []

    def _socket_dir(self) -> Path:
        lines = self._pid_lines()
        return Path(lines[4]) if len(lines) > 4 and lines[4] else self.directory

    def _make_socket_dir(self) -> Path:
        """The data directory, or a private one where that path does not fit a socket or a client's list of hosts."""
        fits = len(os.fsencode(self.directory / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_MAX
        if fits and "," not in str(self.directory):
            return self.directory
        sockets = Path(tempfile.mkdtemp(prefix="zhiku-"))
        give(sockets)
        return sockets

    def _is_alive(self) -> bool:
        """Whether the pid in the file is this cluster's server: not a zombie, and not a stranger that got its number."""
        import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 comes with the wheel

        lines = self._pid_lines()
        if not lines:
            return False
        try:
            process = psutil.Process(int(lines[0]))
            return process.status() != psutil.STATUS_ZOMBIE and str(self.directory) in process.cmdline()
        except psutil.Error:
            return False

    def _clean(self, sockets: Path) -> None:
        """Removes what a dead server left: its pid file, its socket, and the socket's own directory if it had one."""
        for name in (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"):
            (sockets / name).unlink(missing_ok=True)
        if sockets != self.directory:
            shutil.rmtree(sockets, ignore_errors=True)
        self._pid_file.unlink(missing_ok=True)

    def _launch(self) -> str:
        """Returns what went wrong, and nothing where nothing did."""
        self._clean(self._socket_dir())
        self._initialise()
        sockets = self._make_socket_dir()
        self._configure({**SETTINGS, "unix_socket_directories": f'"{sockets}"'} | ({} if self.durable else NOT_DURABLE))
        try:
            run("pg_ctl", "start", "-w", "-t", str(START_SECONDS), "-l", str(self._log), "-D", str(self.directory))
        except subprocess.CalledProcessError as error:
            if sockets != self.directory:
                shutil.rmtree(sockets, ignore_errors=True)
            return str(error.stderr)
        return ""

    def _initialise(self) -> None:
        """Makes the cluster beside its place and moves it there whole, so that an interrupted start leaves no half of one."""
        if self.directory.exists():
            return
        draft = self.directory.with_name("postgres.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        give(draft)
        options = ("--auth-local=trust", "--auth-host=reject", "-E", "UTF8", "-U", USER, "--no-instructions")
        # The built-in locale knows the case of every letter and is the same on every system, whatever LANG says.
        locale = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        try:
            run("initdb", *options, *locale, "-D", str(draft))
        except subprocess.CalledProcessError as error:
            raise EmbeddedError(f"PostgreSQL cannot make its data directory {draft}: {error.stderr}") from error
        with (draft / "postgresql.conf").open("a") as file:
            file.write("include_if_exists = 'app.conf'\n")
        draft.rename(self.directory)

    def _configure(self, settings: Mapping[str, object]) -> None:
        path = self.directory / "app.conf"
        values = ((name, str(value).replace("'", "''")) for name, value in settings.items())
        path.write_text("".join(f"{name} = '{value}'\n" for name, value in values))
        path.chmod(0o644)  # read by another user where this one is root

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self._socket_dir()), port=PORT, user=USER, dbname=USER, connect_timeout=5, autocommit=True
        )
