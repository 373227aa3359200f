"""Files that are refused by their names and first bytes: before they are stored, and in the browser before they are sent."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from django.utils.translation import gettext as _

from kb.base.errors import Rejected
from kb.ingest.formats.text import is_binary
from kb.ingest.parser import office
from kb.ingest.parser.parsed import MESSAGES, OFFICE_FORMATS, PROGRAM_EXTENSIONS
from retrieval.errors import Message

_OLE: Final = bytes.fromhex("d0cf11e0a1b11ae1")
_ZIP: Final = b"PK\x03\x04"
_RTF: Final = b"{\\rtf"
# Of Windows, Linux and macOS, and of Java.
_PROGRAMS: Final = (
    b"MZ",
    b"\x7fELF",
    *map(bytes.fromhex, ("feedface", "feedfacf", "cefaedfe", "cffaedfe", "cafebabe")),
)
_ENCRYPTED: Final = (6, 1)  # The byte and the bit of a part of a ZIP archive that is encrypted
# A part of one begins with the version that unpacks it; what has other bytes there is damaged.
_PARTS: Final = tuple(
    _ZIP + bytes((version, 0)) for version in (10, 11, 20, 21, 25, 27, 45, 46, 50, 51, 52, 61, 62, 63)
)
_BEGINNINGS: Final = {".doc": _OLE, ".xls": _OLE, ".ppt": _OLE, ".rtf": _RTF}


@dataclass(frozen=True, slots=True)
class Refused:
    """A kind of file that is not read, and why, by a key of MESSAGES; no extensions or beginnings: whichever it has.

    `bit` is a byte, from 0, and the bits that are set in it; `is_binary`: it holds bytes of no text.
    """

    code: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    extensions: tuple[str, ...] = ()
    beginnings: tuple[bytes, ...] = ()
    bit: tuple[int, int] | None = None
    is_binary: bool = False

    def holds(self, extension: str, head: bytes) -> bool:
        return (
            (not self.extensions or extension in self.extensions)
            and (not self.beginnings or head.startswith(self.beginnings))
            and (self.bit is None or (len(head) > self.bit[0] and bool(head[self.bit[0]] & self.bit[1])))
            and (not self.is_binary or is_binary(head))
        )


def refused_kinds() -> Iterator[Refused]:
    """The kinds in the order in which they are looked at; what only LibreOffice reads is among them where that is missing."""
    yield Refused("program", extensions=tuple(sorted(PROGRAM_EXTENSIONS)))
    yield Refused("program", beginnings=_PROGRAMS, is_binary=True)
    yield Refused("protected", {"format": "ZIP"}, extensions=(".zip",), beginnings=_PARTS, bit=_ENCRYPTED)
    for kind in OFFICE_FORMATS:
        if (error := office.refusal(kind)) is not None:
            yield Refused(error.code, error.params, extensions=(kind,), beginnings=(_BEGINNINGS.get(kind, _ZIP),))


def check_kind(name: str, head: bytes) -> None:
    """Refuses a file by its name and first bytes, as Rejected with what to do instead."""
    extension = PurePath(name).suffix.lower()
    for kind in refused_kinds():
        if kind.holds(extension, head):
            raise Rejected("unsupported_type", Message(MESSAGES[kind.code], **{**kind.params, "name": name}))


def kinds_for_browser() -> dict[str, Any]:
    """The same as JSON for `file_check.js`, in the reader's language, with "{name}" for the file's name.

    It has what is said of a file without content too.
    """
    return {
        "empty": _(MESSAGES["empty_file"]),
        "kinds": [
            {
                "extensions": kind.extensions,
                "beginnings": [list(beginning) for beginning in kind.beginnings],
                "bit": kind.bit,
                "binary": kind.is_binary,
                "message": _(MESSAGES[kind.code]).format(**{**kind.params, "name": "{name}"}),
            }
            for kind in refused_kinds()
        ],
    }
