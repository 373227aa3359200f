"""What a file is, by its bytes; its name must agree."""

import io
import re
import zipfile
from typing import Final

import filetype

from kb.ingest.formats.decode import UTF16_MARKS, is_binary
from kb.ingest.parse import ErrorCode, ParseError

PDF: Final = "PDF (application/pdf)"
DOCX: Final = "DOCX (application/vnd.openxmlformats-officedocument.wordprocessingml.document)"
HTML: Final = "HTML (text/html)"
TEXT: Final = "TXT (text/plain)"
BINARY: Final = "binary"

ACCEPTED: Final[dict[str, frozenset[str]]] = {
    ".txt": frozenset({TEXT}),
    ".md": frozenset({TEXT}),
    ".markdown": frozenset({TEXT}),
    ".html": frozenset({HTML, TEXT}),
    ".htm": frozenset({HTML, TEXT}),
    ".pdf": frozenset({PDF}),
    ".docx": frozenset({DOCX}),
}

_OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OLE_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_ZIP_MAGIC = b"PK\x03\x04"
_OFFICE_FOLDERS = {"word/": DOCX, "xl/": "XLSX (spreadsheet)", "ppt/": "PPTX (presentation)"}
# Documents written in ASCII that a text check would let through.
_TEXT_MAGICS = {b"{\\rtf": "RTF (application/rtf)", b"%!PS": "PS (application/postscript)"}
# PDF readers accept this much before the header.
_PDF_HEADER_WINDOW = 1024
_HTML_START = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)


def check_type(data: bytes, extension: str) -> None:
    """Refuses bytes that are not what the extension says.

    Raises:
        ParseError: the file is empty, protected, cut off, or of another type.
    """
    if not data.strip():
        raise ParseError(ErrorCode.EMPTY_FILE)
    if extension == ".docx" and data.startswith(_OLE_MAGIC) and _OLE_ENCRYPTED in data:
        raise ParseError(ErrorCode.ENCRYPTED_DOCX)
    detected = detect(data)
    if detected in ACCEPTED[extension]:
        return
    if extension == ".docx" and data.startswith(_ZIP_MAGIC) and _is_cut_off(data):
        raise ParseError(ErrorCode.DAMAGED_FILE, format="DOCX")
    if detected == BINARY:
        raise ParseError(ErrorCode.BINARY_CONTENT, extension=extension)
    raise ParseError(ErrorCode.TYPE_MISMATCH, extension=extension, detected=detected)


def detect(data: bytes) -> str:
    """A label such as "PNG (image/png)", for the curator and for ACCEPTED."""
    if data.startswith(_ZIP_MAGIC):
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


def _beginning(data: bytes) -> str:
    encoding = UTF16_MARKS.get(data[:2], "latin-1")
    return data[:4096].removeprefix(b"\xef\xbb\xbf").decode(encoding, errors="ignore").lstrip("\ufeff")


def _zip_label(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError):
        return "ZIP (application/zip)"
    if "[Content_Types].xml" in names:
        for folder, label in _OFFICE_FOLDERS.items():
            if any(name.startswith(folder) for name in names):
                return label
    kind = filetype.guess(data)
    return f"{kind.extension.upper()} ({kind.mime})" if kind else "ZIP (application/zip)"


def _is_cut_off(data: bytes) -> bool:
    return not zipfile.is_zipfile(io.BytesIO(data))
