"""A backup: a tar of the dump, the uploaded files, and last a manifest with the hash of each, which is signed."""

import hashlib
import hmac
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from django.utils.crypto import salted_hmac

from kb.base.errors import Rejected

FORMAT: Final = "zhiku-backup"
VERSION: Final = 1
MANIFEST, SIGNATURE, DUMP, FILES = "manifest.json", "manifest.sig", "database.dump", "files/"
MANIFEST_BYTES: Final = 256 * 1024**2
_PIECE: Final = 1024**2
# Names that uploads have, and no way out of their folder.
_FILE_NAME: Final = re.compile(r"documents/[0-9]+/[A-Za-z0-9_]{1,120}(\.[a-z0-9]{1,16})?")

OnBytes = Callable[[int], None]


def stored_name(name: str) -> str:
    """Where a backup lies in the storage of uploads.

    Raises:
        Rejected: its name is no plain one.
    """
    if not name or "/" in name or name.startswith("."):
        raise Rejected("bad_name", "With --storage a backup has a plain name, such as monday.tar.")
    return f"backups/{name}"


class Writer:
    """A backup on its way to the disk.

    Attributes:
        parts: by name, size and hash of what was written.
    """

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


class Reader:
    """A backup that has been read through once, and is whole.

    Attributes:
        manifest: what its writer says of it.
    """

    def __init__(self, tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], manifest: dict[str, Any]) -> None:
        self._tar, self._members = tar, members
        self.manifest = manifest

    @property
    def files(self) -> list[str]:
        """The names of the uploads."""
        return [name.removeprefix(FILES) for name in self._members if name.startswith(FILES)]

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        stream = self._tar.extractfile(self._members[name])
        if stream is None:
            raise damaged(f"{name} is no file")
        with stream:
            yield stream


@contextmanager
def reading(path: Path, *, is_trusted: bool, on_bytes: OnBytes = lambda _: None) -> Iterator[Reader]:
    """A backup, verified: nothing is missing, nothing was changed, and it was made with the secret key of this installation.

    Args:
        path: the file.
        is_trusted: take it although another secret key signed it.
        on_bytes: told how many further bytes have been verified.

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
    members: dict[str, tarfile.TarInfo] = {}
    hashes: dict[str, str] = {}
    texts: dict[str, bytes] = {}
    for member in tar:
        if not member.isreg() or member.name in members or member.name in texts:
            raise damaged(f"{member.name[:200]!r} does not belong there")
        if member.name in (MANIFEST, SIGNATURE):
            texts[member.name] = _small(tar, member)
            continue
        if member.name != DUMP and not _FILE_NAME.fullmatch(member.name.removeprefix(FILES)):
            raise damaged(f"{member.name[:200]!r} does not belong there")
        stream = tar.extractfile(member)
        counted = _Counted(stream, on_bytes)  # type: ignore[arg-type] # a regular file has one
        while counted.read(_PIECE):
            pass
        members[member.name], hashes[member.name] = member, counted.digest.hexdigest()
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


def _small(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    if stream is None or member.size > MANIFEST_BYTES:
        raise damaged("its manifest is too large")
    return stream.read()


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
