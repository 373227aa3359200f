"""What the first start of `manage.py serve` shows and leaves, made once for a test run and copied for whom it is not the matter."""

import json
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock

from tests.serving import (
    SECONDS,
    connection,
    environment,
    free_port,
    interruptible,
    is_free,
    servers_run,
    serving,
    status,
)


@dataclass(frozen=True)
class FirstStart:
    """The data directory of a server that has started for the first time, and was ended by Ctrl-C.

    Attributes:
        data: to be copied, not to be used.
        port: on which it listened; the MCP server on the one after it.
        printed: until the server was ready.
        statuses: of answers while it ran, by path.
        output: what it printed at its end.
        code: its exit code.
        left: what it started and did not end.
    """

    data: Path
    port: int
    printed: str
    statuses: dict[str, int]
    output: str
    code: int
    left: list[str]

    @property
    def password(self):
        (password,) = re.findall(r"^ *password: +(\S+)$", self.printed, flags=re.MULTILINE)
        return password

    def copy_to(self, directory):
        """Args:
        directory: that is not there yet, in one of the caller's own.
        """
        directory.parent.chmod(0o711)  # PostgreSQL's files have an owner of their own, who goes through it
        subprocess.run(["cp", "-a", self.data, directory], check=True)


def first_start(folder):
    """The one of this test run, whichever of its processes asks first.

    Args:
        folder: that all processes of the run share.
    """
    data, record = folder / "data", folder / "record.json"
    with FileLock(folder / "lock"):
        if not record.exists():
            facts = _start(data)
            record.write_text(json.dumps(facts))
    return FirstStart(data, **json.loads(record.read_text()))


def _start(destination):
    """Moves the data there; returns the other fields of FirstStart."""
    root = Path(tempfile.mkdtemp(prefix="zhiku-first-start-"))  # in which PostgreSQL's user may go
    data, port = root / "data", free_port()
    with interruptible(), serving(port, environment(data)) as (process, printed):
        _check_demo(data)
        statuses = {path: status(port, path) for path in ("/admin/login/",)}
        statuses |= {path: status(port + 1, path) for path in ("/health", "/mcp")}
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SECONDS)
    left = [str(each) for each in psutil.wait_procs(started, timeout=60)[1]]
    left += ["a server"] * servers_run(data) + [f"port {each}" for each in (port, port + 1) if not is_free(each)]
    shutil.rmtree(data / "redis")  # by its port and password, two copies would take one Redis for theirs
    shutil.rmtree(destination, ignore_errors=True)
    subprocess.run(["mv", data, destination], check=True)
    root.rmdir()
    facts = {"port": port, "printed": printed, "statuses": statuses}
    return facts | {"output": output, "code": process.returncode, "left": left}


def _check_demo(data_dir):
    """It is searchable when the server says that it is ready; else each server with a copy would begin with it."""
    with connection(data_dir) as database:
        assert not database.execute("SELECT status FROM kb_document WHERE status <> 'ready'").fetchall()
