"""Turns an uploaded file into text, or says in one sentence why it cannot.

Nothing here imports Django: the sandbox child that runs it starts in a fraction of a second.
"""

import importlib
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePath
from typing import Final, Protocol, cast


def gettext_noop(message: str) -> str:
    """Marks a message for makemessages; the admin translates it where it is shown."""
    return message


class ErrorCode(StrEnum):
    BINARY_CONTENT = "binary_content"
    DAMAGED_FILE = "damaged_file"
    EMPTY_FILE = "empty_file"
    ENCRYPTED_DOCX = "encrypted_docx"
    ENCRYPTED_PDF = "encrypted_pdf"
    NESTED_TOO_DEEPLY = "nested_too_deeply"
    NO_TEXT_LAYER = "no_text_layer"
    OUT_OF_MEMORY = "out_of_memory"
    PARSER_CRASHED = "parser_crashed"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    TOO_MUCH_TEXT = "too_much_text"
    TYPE_MISMATCH = "type_mismatch"
    UNDECODABLE = "undecodable"
    UNSAFE_XML = "unsafe_xml"
    UNSUPPORTED_TYPE = "unsupported_type"
    ZIP_BOMB = "zip_bomb"


# Templates are translated first and formatted afterwards, so each is a constant.
MESSAGES: Final[dict[ErrorCode, str]] = {
    ErrorCode.BINARY_CONTENT: gettext_noop(
        "The file is named {extension}, but its content is binary data and not text. Upload the document itself."
    ),
    ErrorCode.DAMAGED_FILE: gettext_noop(
        "The {format} file is damaged or incomplete. Open it in the program that made it, save it again and upload that."
    ),
    ErrorCode.EMPTY_FILE: gettext_noop("The file holds no text. Upload a file that has content."),
    ErrorCode.ENCRYPTED_DOCX: gettext_noop(
        "The Word document is protected by a password. Remove the password and upload it again."
    ),
    ErrorCode.ENCRYPTED_PDF: gettext_noop(
        "The PDF is protected by a password. Remove the password and upload it again."
    ),
    ErrorCode.NESTED_TOO_DEEPLY: gettext_noop(
        "The page nests its elements too deeply to be read. Save it as plain text or Markdown and upload that."
    ),
    ErrorCode.NO_TEXT_LAYER: gettext_noop(
        "None of the {pages} pages of the PDF has a text layer, so it is probably a scan. "
        "Run text recognition (OCR) on it and upload the result."
    ),
    ErrorCode.OUT_OF_MEMORY: gettext_noop(
        "Reading the file took more than {megabytes} MB of memory. Split it into smaller files and upload those."
    ),
    ErrorCode.PARSER_CRASHED: gettext_noop(
        "The parser stopped unexpectedly: the file is damaged, or too complex for the memory allowed. "
        "Save it again in the program that made it, or split it, and upload that."
    ),
    ErrorCode.TIMEOUT: gettext_noop(
        "Reading the file took longer than {seconds} seconds. Split it into smaller files and upload those."
    ),
    ErrorCode.TOO_LARGE: gettext_noop(
        "The file is larger than {megabytes} MB. Split it into smaller files and upload those."
    ),
    ErrorCode.TOO_MUCH_TEXT: gettext_noop(
        "The file holds more than {megabytes} MB of text. Split it into smaller files and upload those."
    ),
    ErrorCode.TYPE_MISMATCH: gettext_noop(
        "The file is named {extension}, but its content is {detected}. "
        "Upload the document that was meant, or give the file the extension of its content."
    ),
    ErrorCode.UNDECODABLE: gettext_noop(
        "The characters of the file are neither UTF-8, UTF-16 nor GB18030. "
        "Open it in a text editor, save it as UTF-8 and upload that."
    ),
    ErrorCode.UNSAFE_XML: gettext_noop(
        "The Word document declares XML entities, which no word processor writes and which can harm the server. "
        "Open it in Word, save it again and upload that."
    ),
    ErrorCode.UNSUPPORTED_TYPE: gettext_noop(
        "Files named {extension} are not supported. Upload one of these instead: {supported}."
    ),
    ErrorCode.ZIP_BOMB: gettext_noop(
        "The Word document unpacks to far more data than a document holds. "
        "Open it in Word, save it again and upload that."
    ),
}


class ParseError(Exception):
    """Why a file could not be read, as a sentence for the person who uploaded it.

    Attributes:
        code: stable identifier, the key of MESSAGES.
        params: the values of the template's fields, for a translated template.
        message: the English sentence.
    """

    def __init__(self, code: ErrorCode, **params: str | int) -> None:
        self.code = code
        self.params = params
        self.message = MESSAGES[code].format(**params)
        super().__init__(self.message)


@dataclass(frozen=True, slots=True)
class Section:
    """Text under one heading, or one page; page counts from 1 and is None where a format has no pages."""

    text: str
    page: int | None = None
    heading_path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    title: str
    mime: str
    sections: tuple[Section, ...]


class FormatReader(Protocol):
    """A module of kb.ingest.formats: an empty title means that the file names none."""

    def read(self, data: bytes) -> ParsedDocument: ...


# Modules are named, not imported, so that a child loads only the parser it needs.
READERS: Final[dict[str, str]] = {
    ".txt": "kb.ingest.formats.text",
    ".md": "kb.ingest.formats.markdown",
    ".markdown": "kb.ingest.formats.markdown",
    ".html": "kb.ingest.formats.html",
    ".htm": "kb.ingest.formats.html",
    ".pdf": "kb.ingest.formats.pdf",
    ".docx": "kb.ingest.formats.docx",
}
SUPPORTED_EXTENSIONS: Final = tuple(READERS)

_TITLE_LENGTH = 255
_LINE_ENDS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# PostgreSQL stores no NUL and UTF-8 no lone surrogate; the rest are invisible or not characters.
_NOT_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n{3,}")


def parse(data: bytes, filename: str) -> ParsedDocument:
    """Reads a file's text, headings and pages.

    Raises:
        ParseError: the file is empty, damaged, protected, unsupported or not what its name says.
    """
    from kb.ingest.formats.detect import check_type  # noqa: PLC0415 - the formats import this module

    name = PurePath(filename)
    extension = name.suffix.lower()
    if extension not in READERS:
        raise ParseError(
            ErrorCode.UNSUPPORTED_TYPE,
            extension=extension or f"“{name.name}”",
            supported=", ".join(SUPPORTED_EXTENSIONS),
        )
    check_type(data, extension)
    reader = cast(FormatReader, importlib.import_module(READERS[extension]))
    document = reader.read(data)
    sections = tuple(_clean_section(section) for section in document.sections)
    kept = tuple(section for section in sections if section.text)
    if not kept:
        raise ParseError(ErrorCode.EMPTY_FILE)
    title = _one_line(document.title) or _one_line(name.stem)
    return replace(document, title=title[:_TITLE_LENGTH], sections=kept)


def _clean_section(section: Section) -> Section:
    path = tuple(_one_line(heading)[:_TITLE_LENGTH] for heading in section.heading_path)
    return Section(clean(section.text), section.page, path)


def clean(text: str) -> str:
    """Text that a database can hold: no control characters, one form of line end, one blank line at most."""
    lines = _NOT_TEXT.sub("", _LINE_ENDS.sub("\n", text)).split("\n")
    return _BLANK_LINES.sub("\n\n", "\n".join(line.rstrip() for line in lines)).strip("\n")


def _one_line(text: str) -> str:
    return " ".join(clean(text).split())
