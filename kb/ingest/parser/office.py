"""Old Office files, OpenDocument and RTF: LibreOffice makes of them what a reader exists for.

It runs confined (`confine_program`), one file at a time, in a folder that is deleted with its profile and all that it
has written. Where it is not installed, these files are refused with a sentence that says what to install.
"""

import json
import logging
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from kb.base.cancellation import interruptible
from kb.ingest.parser.confinement import confine_program, die_with
from kb.ingest.parser.parsed import OFFICE_FORMATS, ParseError, office_error
from kb.ingest.parser.processes import kill, size_of, start

logger = logging.getLogger(__name__)

_CHILD: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from kb.ingest.parser import office; office.child()"
)
_MIB: Final = 1024**2
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PREFIX: Final = "zhiku-office-"
_BUILD_ID: Final = re.compile(r"^buildid=(.+)$", re.MULTILINE)
_OPTIONS: Final = ("--headless", "--norestore", "--nolockcheck", "--nodefault", "--nologo")
_LOOK_SECONDS: Final = 0.05
_OUTPUT_TAIL: Final = 4096
_OPEN_FILES: Final = 256
# LibreOffice wants to be started once more where its profile is new.
_ONCE_MORE, _STARTS = 81, 3
_UNCONFINED: Final = 70  # What the child exits with where it may not go on
# LibreOffice ends in many ways where its memory does.
_MEMORY_SIGNS: Final = (b"bad_alloc", b"Cannot allocate memory", b"out of memory")
# It catches this signal to say so, and aborts.
_FILE_SIZE_SIGN: Final = b"Signal %d\n" % signal.SIGXFSZ
# At once, more of them would take more memory than a worker is given.
_TURN: Final = threading.Lock()

# No macro, update of links, Java, active content, recovery or crash report; Writer and Calc number "never" differently.
_SETTINGS: Final = (
    ("Office.Common/Security/Scripting", "MacroSecurityLevel", 3),
    ("Office.Common/Security/Scripting", "DisableMacrosExecution", True),
    ("Office.Common/Security/Scripting", "BlockUntrustedRefererLinks", True),
    ("Office.Common/Security/Scripting", "DisableActiveContent", True),
    ("Office.Writer/Content/Update", "Link", 0),
    ("Office.Writer/Content/Update", "Field", False),
    ("Office.Calc/Content/Update", "Link", 1),
    ("Office.Java/VirtualMachine", "Enable", False),
    ("Office.Common/Misc", "UseOpenCL", False),
    ("Office.Common/Misc", "CrashReport", False),
    ("Office.Recovery/AutoSave", "Enabled", False),
    ("Office.Common/Save/Document", "CreateBackup", False),
)


@dataclass(frozen=True, slots=True)
class OfficeLimits:
    """What one conversion may cost; `folder_bytes` bounds all that it writes, the file itself and the profile included."""

    memory_bytes: int = 1024 * _MIB
    seconds: float = 120.0
    folder_bytes: int = 400 * _MIB

    def timeout(self) -> ParseError:
        return ParseError("timeout", seconds=max(1, round(self.seconds)))

    def out_of_memory(self) -> ParseError:
        return ParseError("out_of_memory", megabytes=max(1, self.memory_bytes // _MIB))


PRESENTATIONS: Final = (".pptx", ".ppt", ".odp")
_IMPRESS: Final = "impress"
_SLIDES_FILTER: Final = 'pdf:impress_pdf_Export:{"ExportHiddenSlides":{"type":"boolean","value":"true"}}'
_VERSION_LIMITS: Final = OfficeLimits(seconds=20.0)


def program() -> Path | None:
    """LibreOffice itself, not the script that starts it; None: it is not installed, or the system is not Linux."""
    if sys.platform != "linux":
        return None
    for name in ("soffice", "libreoffice"):
        if script := shutil.which(name):
            binary = Path(script).resolve().with_name("soffice.bin")
            if binary.is_file():
                return binary
    return None


def missing_parts() -> list[str]:
    """The parts of LibreOffice that are not installed, of those that OFFICE_FORMATS need."""
    found = program()
    parts = sorted({each.part for each in OFFICE_FORMATS.values()})
    return [part for part in parts if found is None or not _has_part(found, part)]


def _has_part(found: Path, part: str) -> bool:
    return (found.parents[1] / "share" / "registry" / f"{part}.xcd").is_file()


def refusal(kind: str | None) -> ParseError | None:
    """Why files of a format are not read here; None: they are, or they are in no format of OFFICE_FORMATS."""
    if kind is None or OFFICE_FORMATS[kind].part not in missing_parts():
        return None
    return office_error("office_missing", kind)


def convertible(error: ParseError) -> str | None:
    """The format that LibreOffice must convert, and is installed to, where a child's parser could go no further."""
    if error.code != "office_missing":
        return None
    kind = next((kind for kind in OFFICE_FORMATS if kind[1:].upper() == error.params.get("format")), None)
    return None if refusal(kind) else kind


def folders() -> list[Path]:
    """Those of conversions, of this installation and others on the system, that run or were killed with their worker."""
    return list(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))


def version() -> str:
    """Of LibreOffice, which must be installed, as it says when it runs confined; ParseError: it does not."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        return _execute(Path(name), ["--version"], ".doc", _VERSION_LIMITS).decode(errors="replace").strip()


@contextmanager
def converted(path: Path, kind: str, limits: OfficeLimits) -> Iterator[Path]:
    """What LibreOffice makes of a stored file of a format of OFFICE_FORMATS, until the context ends.

    Raises ParseError where LibreOffice is not installed or not confined, cannot read the file, or goes beyond its
    limits; OSError where there is no such file.
    """
    if (error := refusal(kind)) is not None:
        raise error
    target = OFFICE_FORMATS[kind].target
    with _made(path, kind, target, target[1:], limits) as made:
        yield made


def draws_slides() -> bool:
    """Whether LibreOffice is here to draw the slides of presentations."""
    return _IMPRESS not in missing_parts()


@contextmanager
def drawn_slides(path: Path, kind: str, limits: OfficeLimits) -> Iterator[Path]:
    """The slides of a presentation, one of PRESENTATIONS, as the pages of a PDF, hidden ones among them; as `converted`."""
    if not draws_slides():
        raise office_error("office_missing", kind)
    with _made(path, kind, ".pdf", _SLIDES_FILTER, limits) as made:
        yield made


@contextmanager
def _made(path: Path, kind: str, suffix: str, filter_name: str, limits: OfficeLimits) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name).resolve()
        # What several workers convert at a time leaves room for other temporary files, as on a small tmpfs
        limits = replace(limits, folder_bytes=min(limits.folder_bytes, shutil.disk_usage(folder).free // 2))
        file, made = folder / f"document{kind}", folder / "made" / f"document{suffix}"
        shutil.copyfile(path, file)
        made.parent.mkdir()
        _write_profile(folder / "profile" / "user")
        arguments = ["--convert-to", filter_name, "--outdir", str(made.parent), str(file)]
        said = _execute(folder, arguments, kind, limits)
        # The file may have taken LibreOffice over, so only a file that it could have written is taken
        if not made.is_file() or made.is_symlink() or made.resolve() != made:
            logger.warning("LibreOffice made nothing of a %s file: %s", kind, said.decode(errors="replace"))
            raise office_error("office_failed", kind)
        yield made


def _write_profile(user: Path) -> None:
    """Settings, and whose settings they are, without which LibreOffice asks to be started once more."""
    items = "".join(
        f'<item oor:path="/org.openoffice.{path}"><prop oor:name="{name}" oor:op="fuse">'
        f"<value>{str(value).lower()}</value></prop></item>"
        for path, name, value in _SETTINGS
    )
    (user / "extensions").mkdir(parents=True)
    if (found := program()) and (own := _BUILD_ID.search(found.with_name("versionrc").read_text())):
        (user / "extensions" / "buildid").write_text(own[1])
    (user / "registrymodifications.xcu").write_text(
        '<?xml version="1.0" encoding="UTF-8"?><oor:items xmlns:oor="http://openoffice.org/2001/registry" '
        'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">'
        f"{items}</oor:items>"
    )


def _execute(folder: Path, arguments: list[str], kind: str, limits: OfficeLimits) -> bytes:
    """Runs LibreOffice to its end in a folder, the only one that it may write in; returns the end of what it said."""
    deadline = time.monotonic() + limits.seconds
    if not _TURN.acquire(timeout=limits.seconds):
        raise limits.timeout()
    try:
        for _start in range(_STARTS):
            with tempfile.TemporaryFile() as output:
                status = _run(folder, arguments, output, kind, limits, deadline)
                output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_TAIL))
                said = output.read()
            if status != _ONCE_MORE:
                break
    finally:
        _TURN.release()
    if status == 0:
        return said
    logger.warning("LibreOffice ended with status %d on a %s file: %s", status, kind, said.decode(errors="replace"))
    if status == _UNCONFINED:
        raise office_error("office_unconfined", kind)
    if status == -signal.SIGXCPU:
        raise limits.timeout()
    if status == -signal.SIGXFSZ or _FILE_SIZE_SIGN in said:
        raise _too_much(kind)
    if status == -signal.SIGKILL or any(sign in said for sign in _MEMORY_SIGNS):
        raise limits.out_of_memory()
    raise office_error("office_failed", kind)


def _run(folder: Path, arguments: list[str], output: BinaryIO, kind: str, limits: OfficeLimits, deadline: float) -> int:
    """Starts LibreOffice once and watches it; returns the status that it ends with, and leaves no process behind."""
    order = {"program": str(program()), "arguments": arguments, "folder": str(folder), "parent": os.getpid()}
    order |= asdict(limits)
    with start(_CHILD, order, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process:
        try:
            with interruptible(partial(kill, process)):
                while time.monotonic() < deadline:
                    with suppress(subprocess.TimeoutExpired):
                        return process.wait(_LOOK_SECONDS)
                    if _resident_bytes(process.pid) > limits.memory_bytes:
                        raise limits.out_of_memory()
                    if size_of(folder) > limits.folder_bytes:
                        raise _too_much(kind)
                raise limits.timeout()
        finally:
            kill(process)


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path("/proc", str(pid), "statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):  # it has ended
        return 0


def _too_much(kind: str) -> ParseError:
    return ParseError("zip_bomb", format=kind[1:].upper())


def child() -> None:
    """The child's life up to where it becomes LibreOffice: limits, confinement, an environment of its own."""
    order = json.loads(sys.argv[2])
    folder, binary = order["folder"], Path(order["program"])
    die_with(order["parent"])
    for kind, value in (
        (resource.RLIMIT_CPU, math.ceil(2 * order["seconds"]) + 1),
        (resource.RLIMIT_FSIZE, order["folder_bytes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_DATA, order["memory_bytes"]),  # a thread's stack counts as a whole, so this comes first
    ):
        hard = resource.getrlimit(kind)[1]
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (lowered, lowered))
    environment = {
        "HOME": folder,
        "LANG": "C.UTF-8",
        "SAL_USE_VCLPLUGIN": "svp",
        "TMPDIR": folder,
    }
    command = [str(binary), *_OPTIONS, f"-env:UserInstallation={Path(folder, 'profile').as_uri()}", *order["arguments"]]
    try:
        confine_program(binary.parents[1], Path(folder))
    except OSError:
        sys.exit(_UNCONFINED)
    os.execve(binary, command, environment)  # noqa: S606 - no shell, and every word of the command is ours
