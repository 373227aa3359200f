"""What a file is, by its bytes; its name only chooses between kinds of plain text."""

import io
import json
import re
import zipfile
import zlib
from collections.abc import Sequence
from typing import Final

import filetype

from kb.ingest.formats.decode import UTF16_MARKS, is_binary
from kb.ingest.formats.qa import pair_of
from kb.ingest.parser.parsed import (
    LEGACY_EXTENSIONS,
    PROGRAM_EXTENSIONS,
    SUPPORTED_EXTENSIONS,
    ErrorCode,
    ParseError,
    legacy_office,
    unsupported_name,
)

_OFFICE = "application/vnd.openxmlformats-officedocument"
PDF: Final = "PDF (application/pdf)"
DOCX: Final = f"DOCX ({_OFFICE}.wordprocessingml.document)"
PPTX: Final = f"PPTX ({_OFFICE}.presentationml.presentation)"
XLSX: Final = f"XLSX ({_OFFICE}.spreadsheetml.sheet)"
EPUB: Final = "EPUB (application/epub+zip)"
HTML: Final = "HTML (text/html)"
TEXT: Final = "TXT (text/plain)"
MARKDOWN: Final = "Markdown (text/markdown)"
CSV: Final = "CSV (text/csv)"
JSONL: Final = "JSONL (application/jsonl)"
ZIP: Final = "ZIP (application/zip)"
BINARY: Final = "binary"

# Modules are named, not imported, so that a child loads only the parser it needs.
READERS: Final[dict[str, str]] = {
    PDF: "kb.ingest.formats.pdf",
    DOCX: "kb.ingest.formats.docx",
    PPTX: "kb.ingest.formats.pptx",
    XLSX: "kb.ingest.formats.xlsx",
    EPUB: "kb.ingest.formats.epub",
    HTML: "kb.ingest.formats.html",
    TEXT: "kb.ingest.formats.text",
    MARKDOWN: "kb.ingest.formats.markdown",
    CSV: "kb.ingest.formats.csv",
    JSONL: "kb.ingest.formats.jsonl",
}

# Bytes of plain text may be any of these, so the name is believed.
_TEXT_KINDS: Final = {
    ".md": MARKDOWN,
    ".markdown": MARKDOWN,
    ".csv": CSV,
    ".tsv": CSV,
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".html": HTML,
    ".htm": HTML,
}
_OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OLE_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
# The stream that each legacy format keeps its content in.
_OLE_STREAMS: Final = {
    "WordDocument".encode("utf-16-le"): ".doc",
    "Workbook".encode("utf-16-le"): ".xls",
    "PowerPoint Document".encode("utf-16-le"): ".ppt",
}
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_OFFICE_PARTS = {"word/": DOCX, "xl/": XLSX, "ppt/": PPTX}
_BINARY_WORKBOOK = "xl/workbook.bin"
XLSB: Final = "XLSB (application/vnd.ms-excel.sheet.binary.macroEnabled.12)"
_PACKAGE_NAMES = frozenset([".docx", ".pptx", ".xlsx", ".epub"])
_MAX_MIMETYPE = 100
_MIMETYPE = re.compile(r"[\w.+-]+/[\w.+-]+")
# Documents written in ASCII that a text check would let through.
_TEXT_MAGICS = {b"{\\rtf": "RTF (application/rtf)", b"%!PS": "PS (application/postscript)"}
# PDF readers accept this much before the header.
_PDF_HEADER_WINDOW = 1024
_HTML_START = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)
_LINE_WINDOW = 65_536


def detect_readable(data: bytes, extension: str) -> str:
    """The type of a file that a reader exists for, as a key of READERS.

    Args:
        data: the whole file.
        extension: of its name, in small letters and with the dot; believed only among kinds of plain text.

    Raises:
        ParseError: the file is empty, protected, cut off, or of a type that is not read.
    """
    if not data.strip():
        raise ParseError(ErrorCode.EMPTY_FILE)
    if extension in PROGRAM_EXTENSIONS:
        raise unsupported_name(f"program{extension}")
    if data.startswith(_OLE_MAGIC):
        _refuse_legacy(data)
    detected = detect(data)
    if detected == TEXT:
        return _TEXT_KINDS.get(extension) or (JSONL if _begins_with_pair(data) else TEXT)
    if detected in READERS:
        return detected
    if detected == ZIP:
        if extension in _PACKAGE_NAMES or not zipfile.is_zipfile(io.BytesIO(data)):
            name = extension[1:] if extension in _PACKAGE_NAMES else "zip"
            raise ParseError(ErrorCode.DAMAGED_FILE, format=name.upper())
        raise ParseError(ErrorCode.ARCHIVE)
    if detected == BINARY:
        raise ParseError(ErrorCode.BINARY_CONTENT)
    raise ParseError(ErrorCode.UNSUPPORTED_TYPE, detected=detected, supported=", ".join(SUPPORTED_EXTENSIONS))


def detect(data: bytes) -> str:
    """A label such as "PNG (image/png)", for the curator and for READERS."""
    if data.startswith(_ZIP_MAGICS):
        return _zip_label(data)
    if b"%PDF-" in data[:_PDF_HEADER_WINDOW] and (data.lstrip().startswith(b"%PDF-") or is_binary(data)):
        return PDF
    # Magic numbers can be two letters (BM, MZ), so text is never asked for them.
    if is_binary(data):
        kind = filetype.guess(data)
        return f"{kind.extension.upper()} ({kind.mime})" if kind else BINARY
    for magic, label in _TEXT_MAGICS.items():
        if data.startswith(magic):
            return label
    return HTML if _HTML_START.match(_beginning(data)) else TEXT


def is_readable_head(head: bytes) -> bool:
    """False where the beginning of a file says that it is of a known type without a reader.

    What cannot be told by the beginning is left to `detect_readable`, which says more: packages, binary data of no known
    type, and Office formats of before 2007.
    """
    if head.startswith((*_ZIP_MAGICS, _OLE_MAGIC)):
        return True
    detected = detect(head)
    return detected in READERS or detected == BINARY


def is_legacy_head(head: bytes, extension: str) -> bool:
    """Whether a file begins as those of Office before 2007 do, and is named as one: others may be protected new ones."""
    return head.startswith(_OLE_MAGIC) and extension in LEGACY_EXTENSIONS


def _refuse_legacy(data: bytes) -> None:
    if _OLE_ENCRYPTED in data:
        raise ParseError(ErrorCode.PROTECTED, format="Office")
    for stream, legacy in _OLE_STREAMS.items():
        if stream in data:
            raise legacy_office(legacy)


def _beginning(data: bytes) -> str:
    encoding = UTF16_MARKS.get(data[:2], "latin-1")
    return data[:4096].removeprefix(b"\xef\xbb\xbf").decode(encoding, errors="ignore").lstrip("\ufeff")


def _begins_with_pair(data: bytes) -> bool:
    line = data[:_LINE_WINDOW].removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
    if not line.startswith(b"{"):
        return False
    try:
        return pair_of(json.loads(line)) is not None
    except (ValueError, RecursionError):
        return False


def _zip_label(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            own = _own_mimetype(archive, names)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, RuntimeError, EOFError):
        return ZIP
    if own or "META-INF/container.xml" in names:
        return EPUB if own in ("", "application/epub+zip") else own
    if "[Content_Types].xml" not in names:
        return ZIP
    if _BINARY_WORKBOOK in names:
        return XLSB
    found = (label for folder, label in _OFFICE_PARTS.items() if any(name.startswith(folder) for name in names))
    return next(found, ZIP)


def _own_mimetype(archive: zipfile.ZipFile, names: Sequence[str]) -> str:
    """What books and OpenDocument files say of themselves in their first part."""
    if "mimetype" not in names or archive.getinfo("mimetype").file_size > _MAX_MIMETYPE:
        return ""
    found = archive.read("mimetype").decode("ascii", errors="ignore").strip()
    return found if _MIMETYPE.fullmatch(found) else ""
