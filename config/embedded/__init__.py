"""PostgreSQL with pgvector and Redis from wheels, so that a first start needs no server.

`ensure` starts both in `ZHIKU_DATA_DIR` when neither `DATABASE_URL` nor `REDIS_URL` is set, and sets the two variables
for this process and its children. The servers outlive the process that started them: `stop` ends them.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from config.embedded.servers import EmbeddedError, Postgres, Redis
from config.installation import data_dir, is_local

__all__ = ["EmbeddedError", "data_dir", "ensure", "stop"]

URLS = ("DATABASE_URL", "REDIS_URL")
# pg_ctl gives the path to a shell, in quotes that hold none of these.
UNSUITABLE = set('"$`\\\n')


def ensure(*, durable: bool = True) -> bool:
    """Starts what is not running yet, sets DATABASE_URL, REDIS_URL and ZHIKU_EMBEDDED; does nothing where both are set.

    Returns whether this call started a server. `durable=False` trades safety in a crash for speed, for tests; it takes
    effect when PostgreSQL starts.

    Raises:
        EmbeddedError: Only one of the URLs is set, ZHIKU_LOCAL is off, or a server is missing or does not start.
    """
    if _configured():
        return False
    directory = data_dir()
    if UNSUITABLE & set(str(directory)):
        raise EmbeddedError(f"The path {directory} holds a quote, $, ` or \\: set ZHIKU_DATA_DIR to a plainer one.")
    with _locked(directory):
        if _configured():  # another thread was first
            return False
        # Takes the directory and the uploads from other users, also those of an older version; PostgreSQL's may pass through
        allowed = {directory: 0o711 if os.geteuid() == 0 else 0o700, directory / "media": 0o700}
        for path, mode in allowed.items():
            # Not there yet, or another user's to decide on
            with contextlib.suppress(FileNotFoundError, PermissionError):
                path.chmod(path.stat().st_mode & mode)
        postgres, redis = Postgres(directory / "postgres", durable=durable), Redis(directory / "redis")
        started = [redis.start(), postgres.start()]
        os.environ |= {
            "DATABASE_URL": postgres.url(),
            "REDIS_URL": redis.url(),
            "ZHIKU_DATA_DIR": str(directory),
            "ZHIKU_EMBEDDED": "1",
        }
    return any(started)


def stop() -> bool:
    """Stops the servers of the data directory, whoever started them; returns whether one was running."""
    directory = data_dir()
    if not directory.exists():
        return False
    with _locked(directory):
        stopped = [Postgres(directory / "postgres").stop(), Redis(directory / "redis").stop()]
        if os.environ.pop("ZHIKU_EMBEDDED", None):
            for name in URLS:
                os.environ.pop(name, None)
    return any(stopped)


def _configured() -> bool:
    """Whether the environment names both servers; an error where it names one, or where embedded ones are not allowed."""
    missing = [name for name in URLS if not os.environ.get(name)]
    if not missing:
        return True
    if len(missing) == 1:
        other = next(name for name in URLS if name not in missing)
        raise EmbeddedError(
            f"{other} is set and {missing[0]} is not: set both, or unset both to use the embedded PostgreSQL and Redis."
        )
    if not is_local():
        raise EmbeddedError(
            "The embedded PostgreSQL and Redis are for a local installation, and ZHIKU_LOCAL is off: "
            "set DATABASE_URL and REDIS_URL to your servers, or leave ZHIKU_LOCAL out."
        )
    return False


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps other processes and other threads out: each call opens the file again, and flock binds to the opening."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (directory / "embedded.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except PermissionError as error:
        raise EmbeddedError(
            f"{error.filename} belongs to another user: run this as that user, or set ZHIKU_DATA_DIR to your own directory."
        ) from error
