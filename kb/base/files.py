"""Uploads, wherever they lie: what the storages of Django do not do alike."""

import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, Any, BinaryIO, Final

from django.conf import settings
from django.core.files import File
from django.core.files.storage import FileSystemStorage, default_storage
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.db.models.fields.files import FieldFile

from kb.base.disk import DiskFull, has_room, noticing_full_disk

_PIECE: Final = 1024**2
_MINUTE_S: Final = 60


class FilesUnavailable(Exception):
    """The object store cannot be used just now, or as it is set up; the same may go well later."""


class DiskStorage(FileSystemStorage):
    """Files on the disk, which refuses them while nothing but its reserve is free; raises DiskFull."""

    @noticing_full_disk()
    def save(self, name: str | None, content: IO[Any], max_length: int | None = None) -> str:
        if not has_room():
            raise DiskFull
        return super().save(name, content, max_length)


def private_folder(path: Path) -> Path:
    """Makes a folder, and those above it that are missing, that nobody else on this machine may look into."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    return path


def private_file(path: Path) -> BinaryIO:
    """A new file that nobody else on this machine may read, over what is there."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


@contextmanager
def local_file(file: FieldFile) -> Iterator[Path]:
    """A path under which the file can be read, for programs that take paths; a copy where it lies elsewhere.

    Raises FileNotFoundError where it has gone, and FilesUnavailable where its store cannot be used.
    """
    if isinstance(file.storage, FileSystemStorage):
        yield Path(file.path)
        return
    suffix = Path(str(file.name)).suffix
    with NamedTemporaryFile(prefix="zhiku-", suffix=suffix, dir=settings.FILE_UPLOAD_TEMP_DIR) as copy:
        with file.storage.open(str(file.name), "rb") as stored:
            shutil.copyfileobj(stored, copy, _PIECE)
        copy.flush()
        yield Path(copy.name)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file by its name in the storage, its size in bytes, and when it was last used, or written."""

    name: str
    size: int
    used_at: datetime


def files_below(folder: str) -> Iterator[StoredFile]:
    """All files of a folder and of those in it; without the folder none."""
    storage: Any = default_storage
    if not isinstance(storage, FileSystemStorage):
        yield from (StoredFile(*found) for found in storage.files_below(folder))
        return
    for path in Path(storage.path(folder)).rglob("*"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                used_at = datetime.fromtimestamp(found.st_mtime, UTC)
                yield StoredFile(path.relative_to(storage.location).as_posix(), found.st_size, used_at)


def note_use(name: str) -> None:
    """Notes that a file is used now, to within a minute; an object store only knows when it was written."""
    storage: Any = default_storage
    if isinstance(storage, FileSystemStorage):
        with suppress(FileNotFoundError):
            path = Path(storage.path(name))
            if time.time() - path.stat().st_mtime > _MINUTE_S:
                os.utime(path)


def delete_folder(name: str) -> None:
    """Deletes everything whose name begins with a folder's, if anything; raises FilesUnavailable as `local_file`."""
    storage: Any = default_storage
    if isinstance(storage, FileSystemStorage):
        shutil.rmtree(storage.path(name), ignore_errors=True)
    else:
        storage.delete_folder(name)


def replace_file(name: str, content: "File[bytes]") -> None:
    """Writes a file under exactly this name; what is there stays until all is written. Raises FilesUnavailable."""
    storage: Any = default_storage
    if isinstance(storage, FileSystemStorage):
        written = Path(storage.path(f"{name}.{uuid.uuid4().hex}.part"))
        try:
            storage.save(written.relative_to(storage.location).as_posix(), content)
            written.replace(storage.path(name))
        finally:
            written.unlink(missing_ok=True)
    else:
        storage.replace(name, content)


def sha256_of(file: "File[bytes]") -> str:
    digest = hashlib.sha256()
    for piece in file.chunks():
        digest.update(piece)
    file.seek(0)
    return digest.hexdigest()


def largest_upload_bytes() -> int:
    """Of one file; an archive of documents may be larger than any other."""
    return max(int(settings.MAX_ZIP_BYTES), int(settings.MAX_UPLOAD_BYTES))


# Longer than any request or task lasts.
_DAY_S: Final = 24 * 60 * 60


class UnnamedFileUploadHandler(FileUploadHandler):
    """Streams into a file without a name, which goes with its process, also with one that is killed."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        file = TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 - the view's, or `upload_interrupted`
        self.file = UploadedFile(file, self.file_name, self.content_type, 0, self.charset, self.content_type_extra)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:  # noqa: ARG002 - the framework's interface
        self.file.write(raw_data)

    def file_complete(self, file_size: int) -> "UploadedFile[Any]":
        self.file.seek(0)
        self.file.size = file_size
        return self.file

    def upload_interrupted(self) -> None:
        if self.file is not None:
            self.file.close()


def make_temporary_folder() -> None:
    """Makes the folder, which only its owner may read, and removes what processes that were killed have left in it."""
    folder = Path(settings.FILE_UPLOAD_TEMP_DIR)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_left(folder.iterdir())


def remove_left(paths: Iterable[Path]) -> None:
    """Deletes those of temporary files and folders that no request or task can be using any more."""
    for left in paths:
        with suppress(OSError):  # another process has removed it, or it is not ours
            if time.time() - left.lstat().st_mtime < _DAY_S:
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
