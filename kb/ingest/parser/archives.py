"""Files that hold documents: those of a ZIP archive and the attachments of a mail, unpacked into a folder under limits."""

import stat
import zipfile
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from pkgutil import resolve_name
from typing import Any, BinaryIO, Final

import msgspec

from kb.ingest.parser.parse import detect_readable
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS, ParseError, unsupported_name
from kb.ingest.parser.sandbox import Limits, run_job

ARCHIVE_EXTENSIONS: Final = (".zip",)

_MIB: Final = 1024**2
_PIECE = 256 * 1024
# Text packs to a tenth; a small file may be all zeros.
_MAX_RATIO = 100
_RATIO_FROM = 4 * _MIB
_UTF8_FLAG = 0x800
_ENCRYPTED_FLAG = 0x1
_NESTED = (".zip", ".rar", ".7z", ".tar", ".gz", ".tgz", ".bz2", ".xz")
# What file managers add.
_LITTER = ("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini")
_MAILS: Final = {"eml": "mail", "msg": "msg"}
_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, LookupError)


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What one archive may hold, folders and litter aside, in unpacked bytes; a file above `file_bytes` is skipped."""

    files: int = 10_000
    file_bytes: int = 50 * _MIB
    total_bytes: int = 1024 * _MIB
    archive_bytes: int = 500 * _MIB
    seconds: float = 300.0
    memory_bytes: int = 512 * _MIB


DEFAULT_LIMITS: Final = ArchiveLimits()
MAIL_LIMITS: Final = ArchiveLimits(files=500, archive_bytes=50 * _MIB, memory_bytes=1024 * _MIB)


class _Unpacked(msgspec.Struct):
    """What a child says: the name and the number of each file, and the names of those left out, with the reasons."""

    members: list[tuple[str, int]]
    skipped: list[tuple[str, str, dict[str, str | int]]]


def is_archive_name(name: str) -> bool:
    """Whether a file of this name, if its bytes are a ZIP archive and no document, stands for the files in it."""
    return name.lower().endswith(ARCHIVE_EXTENSIONS)


def unpack(
    archive: Path, folder: Path, *, limits: ArchiveLimits = DEFAULT_LIMITS
) -> tuple[list[tuple[str, Path]], list[tuple[str, ParseError]]]:
    """Unpacks a ZIP archive in a child process into an empty folder, which the caller deletes, also after an error.

    The files get numbers for names, so that no name of the archive reaches the file system. Files that no reader is
    named for, too large ones and archives inside the archive are skipped. Returns where each file was unpacked to, or
    why it was not, by its name with the folders in the archive. Raises ParseError where the archive is damaged,
    protected, empty or too large, or a path in it leads outside; OSError where archive or folder is not there.
    """
    return _unpacked("unpack", archive, folder, limits)


def detach(
    mail: Path, filename: str, folder: Path, *, limits: ArchiveLimits = MAIL_LIMITS
) -> tuple[list[tuple[str, Path]], list[tuple[str, ParseError]]]:
    """Takes the attachments out of a mail, as `unpack` does with the files of an archive; archives among them too.

    Raises ParseError where the mail is damaged or has too many; OSError where mail or folder is not there.
    """
    return _unpacked("detach", mail, folder, limits, filename=filename)


def _unpacked(
    job: str, path: Path, folder: Path, limits: ArchiveLimits, **arguments: Any
) -> tuple[list[tuple[str, Path]], list[tuple[str, ParseError]]]:
    sandbox = Limits(
        memory_bytes=limits.memory_bytes,
        seconds=limits.seconds,
        input_bytes=limits.archive_bytes,
        file_bytes=limits.file_bytes,
    )
    arguments |= {"folder": str(folder.resolve(strict=True)), "allowed": asdict(limits)}
    answer = run_job(job, path, limits=sandbox, writable=folder, **arguments)
    # The child's word is not trusted: only files that it could have written are taken.
    try:
        told = msgspec.convert(answer, _Unpacked)
        skipped = [(name, ParseError(code, **params)) for name, code, params in told.skipped]
    except (msgspec.ValidationError, TypeError, KeyError) as error:
        raise ParseError("parser_crashed") from error
    members = [(name, folder / str(number)) for name, number in told.members]
    is_possible = (
        len(members) + len(skipped) <= limits.files
        and len({path for _, path in members}) == len(members)
        and all(0 < number <= limits.files for _, number in told.members)
        and all(path.is_file() and not path.is_symlink() for _, path in members)
    )
    if not is_possible:
        raise ParseError("parser_crashed")
    return members, skipped


def unpack_job(file: BinaryIO, folder: str, allowed: dict[str, Any]) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(file) as archive:
            return _unpack(archive, Path(folder), ArchiveLimits(**allowed))
    except _DAMAGE as error:
        raise ParseError("damaged_file", format="ZIP") from error


def detach_job(file: BinaryIO, folder: str, allowed: dict[str, Any], filename: str) -> dict[str, Any]:
    data, limits = file.read(), ArchiveLimits(**allowed)
    kind = detect_readable(data, PurePosixPath(filename).suffix.lower())
    if kind not in _MAILS:
        raise ParseError("damaged_file", format="MSG")
    mail = resolve_name(f"kb.ingest.formats.{_MAILS[kind]}:read_mail")(data)
    if len(mail.attachments) > limits.files:
        raise ParseError("too_many_attachments", files=limits.files)
    members: list[tuple[str, int]] = []
    skipped: list[tuple[str, str, dict[str, str | int]]] = []
    for number, attachment in enumerate(mail.attachments, start=1):
        try:
            data = _attached(attachment, limits)
        except ParseError as reason:
            skipped.append((attachment.name, reason.code, reason.params))
            continue
        with Path(folder, str(number)).open("xb") as target:
            target.write(data)
        members.append((attachment.name, number))
    return {"members": members, "skipped": skipped}


def _attached(attachment: Any, limits: ArchiveLimits) -> bytes:
    """The bytes of an attachment; ParseError: it becomes no document."""
    extension = PurePosixPath(attachment.name).suffix.lower()
    if extension not in (*SUPPORTED_EXTENSIONS, *ARCHIVE_EXTENSIONS):
        raise unsupported_name(attachment.name)
    data: bytes = attachment.data()
    if not data:
        raise ParseError("empty_file")
    if len(data) > limits.file_bytes:
        raise ParseError("too_large", megabytes=max(1, limits.file_bytes // _MIB))
    return data


def _unpack(archive: zipfile.ZipFile, folder: Path, limits: ArchiveLimits) -> dict[str, Any]:
    named = ((_name(entry), entry) for entry in archive.infolist() if not entry.is_dir())
    entries = [(name, entry) for name, entry in named if not set(_LITTER) & set(PurePosixPath(name).parts)]
    _check(entries, limits)
    members: list[tuple[str, int]] = []
    skipped: list[tuple[str, str, dict[str, str | int]]] = []
    left = limits.total_bytes
    for number, (name, entry) in enumerate(entries, start=1):
        if reason := _reason_to_skip(name, entry, limits):
            skipped.append((name, reason.code, reason.params))
            continue
        left -= _write(archive, entry, folder / str(number), min(left, limits.file_bytes), limits)
        members.append((name, number))
    return {"members": members, "skipped": skipped}


def _name(entry: zipfile.ZipInfo) -> str:
    """Windows writes names in the encoding of its country without saying so; zipfile reads those as cp437."""
    name = entry.filename
    if not entry.flag_bits & _UTF8_FLAG:
        raw = name.encode("cp437", errors="replace")
        for encoding in ("utf-8", "gb18030"):
            with suppress(UnicodeDecodeError):
                return raw.decode(encoding).replace("\\", "/")
    return name.replace("\\", "/")


def _check(entries: list[tuple[str, zipfile.ZipInfo]], limits: ArchiveLimits) -> None:
    """Judges the archive by its directory, before anything is unpacked."""
    if not entries:
        raise ParseError("empty_archive")
    if len(entries) > limits.files:
        raise ParseError("too_many_files", files=limits.files)
    for name, entry in entries:
        path = PurePosixPath(name)
        if (path.is_absolute() or ".." in path.parts or name[1:2] == ":" or "\0" in name) or stat.S_ISLNK(
            entry.external_attr >> 16
        ):
            raise ParseError("unsafe_archive", name=name)
        if entry.flag_bits & _ENCRYPTED_FLAG:
            raise ParseError("protected", format="ZIP")
    total = sum(entry.file_size for _, entry in entries)
    is_bomb = any(entry.file_size > max(_RATIO_FROM, _MAX_RATIO * entry.compress_size) for _, entry in entries)
    if total > limits.total_bytes or is_bomb:
        raise _too_much(limits)


def _reason_to_skip(name: str, entry: zipfile.ZipInfo, limits: ArchiveLimits) -> ParseError | None:
    path = PurePosixPath(name)
    if path.suffix.lower() in _NESTED:
        return ParseError("nested_archive", name=name)
    if path.suffix.lower() not in SUPPORTED_EXTENSIONS:
        return unsupported_name(path.name)
    if entry.file_size > limits.file_bytes:
        return ParseError("too_large", megabytes=max(1, limits.file_bytes // _MIB))
    return None


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, most: int, limits: ArchiveLimits) -> int:
    """Counts what comes out, since the directory may lie."""
    written = 0
    with archive.open(entry) as source, path.open("xb") as target:
        while piece := source.read(_PIECE):
            written += len(piece)
            if written > most:
                raise _too_much(limits)
            target.write(piece)
    return written


def _too_much(limits: ArchiveLimits) -> ParseError:
    return ParseError("unpacks_to_too_much", megabytes=max(1, limits.total_bytes // _MIB))
