"""What the first start of `manage.py serve` leaves, made once for a test run and copied for whom it is not the matter."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 400  # migrations and the demo on a machine that other work keeps busy
# What the test run sets for itself and what would lead the child to other servers or models.
NOT_INHERITED = (
    "DATABASE_URL",
    "REDIS_URL",
    "CACHE_URL",
    "CELERY_BROKER_URL",
    "ZHIKU_EMBEDDED",
    "DJANGO_SETTINGS_MODULE",
    "LANGUAGE_CODE",
    "SECRET_KEY",
)


@dataclass(frozen=True)
class FirstStart:
    """The data directory of a server that has started for the first time, and has ended.

    Attributes:
        data: to be copied, not to be used.
        printed: by the server until it was ready.
    """

    data: Path
    printed: str

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


def environment(data_dir):
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return inherited | {
        "ZHIKU_DATA_DIR": str(data_dir),
        "DEBUG": "true",
        "EMBEDDING_MODEL": "hashing",
        "HF_HUB_OFFLINE": "1",
        "WEB_CONCURRENCY": "1",  # with one web process the second search is sure to find the first one's index
    }


def serve(data_dir):
    """The process, whose output is a pipe, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    command = [sys.executable, "manage.py", "serve", "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(data_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process, port


def first_start(folder):
    """The one of this test run, whichever of its processes asks first.

    Args:
        folder: that all processes of the run share.
    """
    kept, printed = folder / "data", folder / "printed"
    with FileLock(folder / "lock"):
        if not printed.exists():
            text = _start(kept)
            printed.write_text(text)
    return FirstStart(kept, printed.read_text())


def _start(kept):
    root = Path(tempfile.mkdtemp(prefix="zhiku-first-start-"))  # in which PostgreSQL's user may go
    process, _port = serve(root / "data")
    text = ""
    try:
        for line in process.stdout:
            text += line
            if "Zhiku is ready" in line:
                break
        assert "Zhiku is ready" in text, text
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)
    shutil.rmtree(root / "data" / "redis")  # by its port and password, two copies would take one Redis for theirs
    shutil.rmtree(kept, ignore_errors=True)
    subprocess.run(["mv", root / "data", kept], check=True)
    root.rmdir()
    return text
