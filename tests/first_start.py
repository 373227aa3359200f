"""What the first start of `manage.py serve` leaves, made once for a test run and copied for whom it is not the matter."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from tests.serving import connection, environment, free_port, serving


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
    with serving(free_port(), environment(root / "data"), "--no-mcp") as (_process, printed):
        _check_demo(root / "data")
    shutil.rmtree(root / "data" / "redis")  # by its port and password, two copies would take one Redis for theirs
    shutil.rmtree(kept, ignore_errors=True)
    subprocess.run(["mv", root / "data", kept], check=True)
    root.rmdir()
    return printed


def _check_demo(data_dir):
    """It is searchable when the server says that it is ready; else each server with a copy would begin with it."""
    with connection(data_dir) as database:
        assert not database.execute("SELECT status FROM kb_document WHERE status <> 'ready'").fetchall()
