"""Files that LibreOffice converts, judged by their bytes: which format, behind a password, with macros."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

import olefile

from kb.ingest.formats.package import DAMAGE, is_bomb
from kb.ingest.parser.parsed import ParseError

# The stream that each format of Office before 2007 keeps its content in; Excel's is named differently before 97.
_STREAMS: Final = {"WordDocument": ".doc", "Workbook": ".xls", "Book": ".xls", "PowerPoint Document": ".ppt"}
_ENCRYPTED_PACKAGE: Final = "EncryptedPackage"
_MACRO_STORAGES: Final = ("Macros", "_VBA_PROJECT_CUR")
# VBAInfoAtom of [MS-PPT]: version 2, type 0x400, 12 bytes, of which the second four say whether there are macros.
_POWERPOINT_MACROS: Final = b"\x02\x00\x00\x04\x0c\x00\x00\x00"
_POWERPOINT_ENCRYPTED: Final = 0xF3D1C4DF
_WORD_ENCRYPTED: Final = 0x0100
_EXCEL_FILEPASS, _EXCEL_EOF = 0x002F, 0x000A
_MOST_RECORDS: Final = 10_000
_LIBRARY_LISTS: Final = frozenset({"script-lc.xml", "script-lb.xml", "dialog-lc.xml", "dialog-lb.xml"})
_OLE_DAMAGE: Final = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError, struct.error)


def ole_kind(data: bytes) -> str | None:
    """A key of OFFICE_FORMATS for a file of Office before 2007; None: it is none.

    Raises ParseError where the file is damaged, protected or holds macros.
    """
    try:
        with olefile.OleFileIO(io.BytesIO(data)) as ole:
            if ole.exists(_ENCRYPTED_PACKAGE):
                raise ParseError("protected", format="Office")
            name = next((name for name in _STREAMS if ole.exists(name)), None)
            if name is None:
                return None
            kind = _STREAMS[name]
            # LibreOffice would read what is left of a file that is cut off, and say nothing
            if len(ole.openstream(name).read()) < ole.get_size(name):
                raise ParseError("damaged_file", format=kind[1:].upper())
            if _is_encrypted(ole, name):
                raise ParseError("protected", format=kind[1:].upper())
            if any(map(ole.exists, _MACRO_STORAGES)) or (kind == ".ppt" and _has_powerpoint_macros(ole)):
                raise ParseError("macros", format=kind[1:].upper())
            return kind
    except _OLE_DAMAGE as error:
        raise ParseError("damaged_file", format="Office") from error


def check_open_document(data: bytes, kind: str) -> None:
    """Judges an OpenDocument package by its directory; raises ParseError as `ole_kind`, and where it unpacks to too much."""
    name = kind[1:].upper()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if is_bomb(entries):
                raise ParseError("zip_bomb", format=name)
            names = {entry.filename for entry in entries}
            manifest = archive.read("META-INF/manifest.xml") if "META-INF/manifest.xml" in names else b""
            if b"encryption-data" in manifest or any(entry.flag_bits & 1 for entry in entries):
                raise ParseError("protected", format=name)
            if any(map(_is_macro, names)):
                raise ParseError("macros", format=name)
    except (*DAMAGE, zlib.error) as error:
        raise ParseError("damaged_file", format=name) from error


def _is_macro(name: str) -> bool:
    path = PurePosixPath(name)
    return not name.endswith("/") and (
        path.parts[0] == "Scripts" or (path.parts[0] == "Basic" and path.name not in _LIBRARY_LISTS)
    )


def _is_encrypted(ole: Any, name: str) -> bool:
    if name == "WordDocument":
        beginning = ole.openstream(name).read(12)
        return bool(struct.unpack_from("<H", beginning, 10)[0] & _WORD_ENCRYPTED)
    if name == "PowerPoint Document":
        if not ole.exists("Current User"):
            return False
        return bool(struct.unpack_from("<I", ole.openstream("Current User").read(16), 12)[0] == _POWERPOINT_ENCRYPTED)
    return _EXCEL_FILEPASS in _excel_records(ole.openstream(name))


def _excel_records(stream: Any) -> Iterator[int]:
    """The types of the records before the first sheet, to their end or damage."""
    for _ in range(_MOST_RECORDS):
        header = stream.read(4)
        if len(header) < 4:
            return
        kind, size = struct.unpack("<HH", header)
        yield kind
        if kind == _EXCEL_EOF:
            return
        stream.seek(size, io.SEEK_CUR)


def _has_powerpoint_macros(ole: Any) -> bool:
    content = ole.openstream("PowerPoint Document").read()
    place = content.find(_POWERPOINT_MACROS)
    while place >= 0:
        if content[place + 12 : place + 16] == b"\x01\x00\x00\x00":
            return True
        place = content.find(_POWERPOINT_MACROS, place + 1)
    return False
