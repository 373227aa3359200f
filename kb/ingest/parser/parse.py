"""Turns an uploaded file into text by its bytes; without Django, so that the child that runs it starts fast."""

import io
import json
import re
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from pkgutil import resolve_name
from typing import BinaryIO, Final

import filetype

from kb.ingest.formats.records import pair_of
from kb.ingest.formats.text import UTF16_MARKS, decode_mislabelled, is_binary
from kb.ingest.formats.transcripts import is_transcript
from kb.ingest.parser.parsed import (
    DEFAULT_READING,
    OFFICE_FORMATS,
    PROGRAM_EXTENSIONS,
    SUPPORTED_EXTENSIONS,
    ParsedDocument,
    ParseError,
    Reading,
    Section,
    SectionKind,
    clean,
    moved_regions,
    office_error,
    unsupported_name,
)

_OFFICE = "application/vnd.openxmlformats-officedocument"
# By the kind of a file, its media type and its reader in kb.ingest.formats, which is named, not imported, so that a
# child loads only the parser it needs.
READERS: Final = {
    "pdf": ("application/pdf", "pdf.reader:read"),
    "docx": (f"{_OFFICE}.wordprocessingml.document", "docx:read"),
    "pptx": (f"{_OFFICE}.presentationml.presentation", "pptx:read"),
    "xlsx": (f"{_OFFICE}.spreadsheetml.sheet", "xlsx:read"),
    "epub": ("application/epub+zip", "epub:read"),
    "html": ("text/html", "html:read"),
    "text": ("text/plain", "transcripts:read"),
    "markdown": ("text/markdown", "markdown:read"),
    "csv": ("text/csv", "records:read_csv"),
    "jsonl": ("application/jsonl", "records:read_jsonl"),
    "eml": ("message/rfc822", "mail:read"),
    "msg": ("application/vnd.ms-outlook", "msg:read"),
    "srt": ("application/x-subrip", "subtitles:read"),
    "vtt": ("text/vtt", "subtitles:read"),
    "json": ("application/json", "trees:read_json"),
    "xml": ("application/xml", "trees:read_xml"),
}
# Kinds of which a knowledge base chooses what is read: their readers take a `Reading` too.
WITH_CHOICE: Final = frozenset(["docx"])

# Bytes of plain text may be any of these, so the name is believed.
_TEXT_KINDS: Final = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".xml": "xml",
    ".html": "html",
    ".htm": "html",
    ".srt": "srt",
    ".vtt": "vtt",
}
# A mail may hold any bytes below its headers, so the name is believed where it begins as one.
_MAIL_START = re.compile(rb"\s*(?:From [^\r\n]*\r?\n)?[A-Za-z][\w-]*:[ \t\r\n]")
_SUBTITLES: Final = frozenset([".srt", ".vtt"])
_OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_MAIL_STREAM = "__properties_version1.0".encode("utf-16-le")
_OPEN_DOCUMENTS: Final = {found.mime: kind for kind, found in OFFICE_FORMATS.items() if "opendocument" in found.mime}
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_OFFICE_PARTS = {"word/": "docx", "xl/": "xlsx", "ppt/": "pptx"}
_PACKAGE_NAMES = frozenset([".docx", ".pptx", ".xlsx", ".epub", ".odt", ".ods", ".odp"])
_MAX_MIMETYPE = 100
_MIMETYPE = re.compile(r"[\w.+-]+/[\w.+-]+")
# An OpenDocument file begins with a part that is named so and says its media type.
_MIMETYPE_PLACE, _MIMETYPE_NAME = 30, b"mimetype"
# Documents written in ASCII that a text check would let through.
_TEXT_MAGICS = {b"{\\rtf": ".rtf", b"%!PS": "PS (application/postscript)"}
# Each comment ends at its first "-->": if it might end at any, many of them would take time without end.
_HTML_START = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)
_TITLE_LENGTH = 255
_NO_TEXT = frozenset({"binary_content", "undecodable", "unsupported_type"})


def parse(data: bytes, filename: str, reading: Reading = DEFAULT_READING) -> ParsedDocument:
    """Text, headings and pages of a file, by its bytes; ParseError: it is empty, damaged, protected or unknown.

    What only LibreOffice reads is `office_missing`, once it has been found neither damaged nor protected.
    """
    extension = PurePath(filename).suffix.lower()
    try:
        kind = detect_readable(data, extension)
        if kind in OFFICE_FORMATS:
            raise office_error("office_missing", kind)
        mime, reader = READERS[kind]
        choice = (reading,) if kind in WITH_CHOICE else ()
        document: ParsedDocument = resolve_name(f"kb.ingest.formats.{reader}")(data, *choice)
    except ParseError as error:
        if error.code in _NO_TEXT and extension in OFFICE_FORMATS:
            raise ParseError("damaged_file", format=extension[1:].upper()) from error
        raise
    return completed(document, filename, mime)


def kind_job(file: BinaryIO, filename: str) -> str:
    """For the sandbox; raises as `detect_readable`."""
    return detect_readable(file.read(), PurePath(filename).suffix.lower())


def completed(document: ParsedDocument, filename: str, mime: str) -> ParsedDocument:
    """What a reader made of a file, cleaned, and with the file's name where it has no title; ParseError: it is empty."""
    sections = tuple(section for section in map(_clean_section, document.sections) if section.text)
    if not sections:
        raise ParseError("empty_file")
    title = _one_line(document.title) or _one_line(PurePath(filename).stem)
    return replace(document, title=title[:_TITLE_LENGTH], sections=sections, mime=mime)


def _clean_section(section: Section) -> Section:
    path = tuple(_one_line(heading)[:_TITLE_LENGTH] for heading in section.heading_path)
    if section.kind is SectionKind.QA:
        others = tuple(filter(None, map(clean, section.alternatives)))
        pair = Section.pair(clean(section.question), clean(section.answer), alternatives=others, heading_path=path)
        cleaned = replace(pair, page=section.page)
    else:
        cleaned = replace(section, text=clean(section.text), heading_path=path)
    return replace(cleaned, regions=moved_regions(section.regions, section.text, cleaned.text))


def _one_line(text: str) -> str:
    return " ".join(clean(text).split())


def detect_readable(data: bytes, extension: str) -> str:
    """The kind of a file, as a key of READERS or OFFICE_FORMATS; an extension is in small letters, with the dot.

    Raises ParseError where the file is empty, protected, cut off, or of a type that is not read.
    """
    if not data.strip():
        raise ParseError("empty_file")
    if extension in PROGRAM_EXTENSIONS:
        raise unsupported_name(f"program{extension}")
    if kind := _mail_kind(data, extension) or _ole_kind(data):
        return kind
    detected = detect(data)
    if detected == "text":
        return _TEXT_KINDS.get(extension) or ("jsonl" if _begins_with_pair(data) else "text")
    if detected in OFFICE_FORMATS and data.startswith(_ZIP_MAGICS):
        resolve_name("kb.ingest.formats.office:check_open_document")(data, detected)
    if detected in READERS or detected in OFFICE_FORMATS:
        return detected
    raise _unreadable(data, detected, extension)


def _unreadable(data: bytes, detected: str, extension: str) -> ParseError:
    if detected == "zip":
        if extension in _PACKAGE_NAMES or not zipfile.is_zipfile(io.BytesIO(data)):
            name = extension[1:] if extension in _PACKAGE_NAMES else "zip"
            return ParseError("damaged_file", format=name.upper())
        return ParseError("archive")
    if detected == "binary":
        return ParseError("binary_content")
    return ParseError("unsupported_type", detected=detected, supported=", ".join(SUPPORTED_EXTENSIONS))


def detect(data: bytes) -> str:
    """A key of READERS or OFFICE_FORMATS, "zip" or "binary", or for the curator a label such as "PNG (image/png)"."""
    if data.startswith(_ZIP_MAGICS):
        return _zip_kind(data)
    # PDF readers accept a kilobyte before the header.
    if b"%PDF-" in data[:1024] and (data.lstrip().startswith(b"%PDF-") or is_binary(data)):
        return "pdf"
    # Magic numbers can be two letters (BM, MZ), so text is never asked for them.
    if is_binary(data):
        kind = filetype.guess(data)
        if kind is None or kind.extension in ("pdf", "zip"):
            return kind.extension if kind else "binary"
        return f"{kind.extension.upper()} ({kind.mime})"
    is_html = _HTML_START.match(
        data[:4096]
        .removeprefix(BOM_UTF8)
        .decode(UTF16_MARKS.get(data[:2], "latin-1"), errors="ignore")
        .lstrip("\ufeff")
    )
    return next(
        (label for magic, label in _TEXT_MAGICS.items() if data.startswith(magic)), "html" if is_html else "text"
    )


def is_readable_head(head: bytes) -> bool:
    """False where the beginning of a file says that it is of a known type without a reader.

    What cannot be told by the beginning is left to `detect_readable`, which says more: packages, binary data of no known
    type, and damaged Office files of before 2007.
    """
    if head.startswith((*_ZIP_MAGICS, _OLE_MAGIC)):
        return True
    detected = detect(head)
    return detected in READERS or detected in OFFICE_FORMATS or detected == "binary"


def office_kind(head: bytes, extension: str) -> str | None:
    """A key of OFFICE_FORMATS where the beginning of a file, or that and its name, say that LibreOffice must read it."""
    if head.startswith(_OLE_MAGIC):
        return extension if extension in OFFICE_FORMATS else None
    if head.startswith(_ZIP_MAGICS):
        name, _, mime = head[_MIMETYPE_PLACE:].partition(_MIMETYPE_NAME)
        found = mime.partition(b"PK")[0].decode("latin-1")  # the next part begins with these letters
        return None if name else _OPEN_DOCUMENTS.get(found)
    return ".rtf" if head.startswith(b"{\\rtf") else None


def is_recording_head(head: bytes, extension: str) -> bool:
    """Whether a file is named as subtitles, or begins as a transcript with times."""
    if extension in _SUBTITLES:
        return True
    return extension == ".txt" and not is_binary(head) and is_transcript(decode_mislabelled(head))


def _mail_kind(data: bytes, extension: str) -> str:
    """Of a mail, as a key of READERS; blank for any other file."""
    if extension == ".eml" and _MAIL_START.match(data):
        return "eml"
    is_outlook = data.startswith(_OLE_MAGIC) and _MAIL_STREAM in data
    return "msg" if is_outlook and resolve_name("kb.ingest.formats.msg:is_mail")(data) else ""


def _ole_kind(data: bytes) -> str:
    """Of an Office file from before 2007, as a key of OFFICE_FORMATS; blank for any other file."""
    return resolve_name("kb.ingest.formats.office:ole_kind")(data) or "" if data.startswith(_OLE_MAGIC) else ""


def _begins_with_pair(data: bytes) -> bool:
    line = data[:65_536].removeprefix(BOM_UTF8).lstrip().partition(b"\n")[0]
    try:
        return line.startswith(b"{") and pair_of(json.loads(line)) is not None
    except (ValueError, RecursionError):
        return False


def _zip_kind(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            own = _own_mimetype(archive, names)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, RuntimeError, EOFError):
        return "zip"
    if own or "META-INF/container.xml" in names:
        return "epub" if own in ("", "application/epub+zip") else _OPEN_DOCUMENTS.get(own, own)
    if "[Content_Types].xml" not in names:
        return "zip"
    if "xl/workbook.bin" in names:
        return "XLSB (application/vnd.ms-excel.sheet.binary.macroEnabled.12)"
    found = (label for folder, label in _OFFICE_PARTS.items() if any(name.startswith(folder) for name in names))
    return next(found, "zip")


def _own_mimetype(archive: zipfile.ZipFile, names: Sequence[str]) -> str:
    """What books and OpenDocument files say of themselves in their first part."""
    if "mimetype" not in names or archive.getinfo("mimetype").file_size > _MAX_MIMETYPE:
        return ""
    found = archive.read("mimetype").decode("ascii", errors="ignore").strip()
    return found if _MIMETYPE.fullmatch(found) else ""
