import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePath

from kb.base.findings import Remark, gettext_noop

# Templates are translated first and formatted afterwards, so each is a constant.
MESSAGES: Mapping[str, str] = {
    "archive": gettext_noop(
        "The file is a ZIP archive, which is not a document itself. "
        "Upload it under a name that ends in .zip, so that each file inside becomes a document, or unpack it first."
    ),
    "binary_content": gettext_noop(
        "The content of the file is binary data of no known type. Upload the document itself."
    ),
    "damaged_file": gettext_noop(
        "The {format} file is damaged or incomplete. Open it in the program that made it, save it again and upload that."
    ),
    "empty_archive": gettext_noop("The ZIP archive holds no files. Pack the documents again and upload that."),
    "empty_file": gettext_noop("The file holds no text. Upload a file that has content."),
    "encrypted_mail": gettext_noop(
        "The mail is encrypted, or wrapped in its signature ({form}). Open it in the mail program that has the "
        "key, save its text and its attachments, and upload those."
    ),
    # Of documents that have failed before LibreOffice was asked.
    "legacy_office": gettext_noop(
        "The file is in the {detected} format of Office before 2007. "
        "Open it in Office or LibreOffice, save it as {wanted} and upload that."
    ),
    "macros": gettext_noop(
        "The {format} document holds macros, which are programs. Save it in the format without macros and upload that."
    ),
    "nested_archive": gettext_noop(
        "“{name}” is an archive inside the archive. Unpack it and upload the files that it holds."
    ),
    "nested_mail": gettext_noop(
        "The mail came within {depth} others, and attachments are taken out of no deeper one. "
        "Save its attachments and upload those."
    ),
    "nested_too_deeply": gettext_noop(
        "The file nests its parts too deeply to be read. Save it as plain text or Markdown and upload that."
    ),
    "nested_values": gettext_noop(
        "The {format} file nests its values more than {levels} levels deep. Flatten it and upload that."
    ),
    "no_such_page": gettext_noop("The document has {pages} pages: there is no page {page}."),
    "no_text_layer": gettext_noop(
        "None of the {pages} pages of the PDF has a text layer, so it is probably a scan. "
        "Run text recognition (OCR) on it and upload the result."
    ),
    "not_a_pair": gettext_noop(
        "Line {line} of the file is not a pair of question and answer. Write each line as "
        '{{"question": "…", "answer": "…"}} and upload the file again.'
    ),
    "office_failed": gettext_noop(
        "LibreOffice cannot read the {format} file, which is damaged or not what its name says. "
        "Open it in the program that made it, save it as {wanted} and upload that."
    ),
    "office_missing": gettext_noop(
        "Files in the {format} format are read through LibreOffice, which is not installed on the server. "
        "Save the file as {wanted} and upload that, or have the administrator run `{command}`."
    ),
    "office_unconfined": gettext_noop(
        "LibreOffice, which {format} files are read through, cannot be confined on the server, so it is not run. "
        "Save the file as {wanted} and upload that, or have the administrator run `apt-get install libseccomp2`."
    ),
    "out_of_memory": gettext_noop(
        "Reading the file took more than {megabytes} MB of memory. Split it into smaller files and upload those."
    ),
    "parser_crashed": gettext_noop(
        "The parser stopped unexpectedly: the file is damaged, or too complex for the memory allowed. "
        "Save it again in the program that made it, or split it, and upload that."
    ),
    "program": gettext_noop("“{name}” is a program, which is not read: upload the document itself."),
    "protected": gettext_noop(
        "The {format} file is protected by a password or against copying. Remove the protection and upload it again."
    ),
    "timeout": gettext_noop(
        "Reading the file took longer than {seconds} seconds. Split it into smaller files and upload those."
    ),
    "too_large": gettext_noop("The file is larger than {megabytes} MB. Split it into smaller files and upload those."),
    "too_many_attachments": gettext_noop(
        "The mail has more than {files} attachments. Save those that matter and upload them."
    ),
    "too_many_columns": gettext_noop(
        "The table has more than {columns} columns. Keep those that matter, or split it, and upload that."
    ),
    "too_many_files": gettext_noop(
        "The ZIP archive holds more than {files} files. Split it into smaller archives and upload those."
    ),
    "too_much_text": gettext_noop(
        "The file holds more than {megabytes} MB of text. Split it into smaller files and upload those."
    ),
    "too_many_values": gettext_noop(
        "A record of the file has more than {values} values. Split it into several records and upload those."
    ),
    "undecodable": gettext_noop(
        "The characters of the file are neither UTF-8, UTF-16 nor GB18030. "
        "Open it in a text editor, save it as UTF-8 and upload that."
    ),
    "unpacks_to_too_much": gettext_noop(
        "The ZIP archive unpacks to more than {megabytes} MB, or to far more than its own size. "
        "Split it into smaller archives and upload those."
    ),
    "unsafe_archive": gettext_noop(
        "“{name}” in the ZIP archive lies outside it, or is a link and not a file. "
        "Pack the documents themselves again and upload that."
    ),
    "unsafe_xml": gettext_noop(
        "The {format} document declares XML entities, which no such program writes and which can harm the server. "
        "Open it in the program that made it, save it again and upload that."
    ),
    "unsupported_type": gettext_noop(
        "Files of the type {detected} cannot be read. Upload one of these instead: {supported}."
    ),
    "zip_bomb": gettext_noop(
        "The {format} document unpacks to far more data than a document holds. "
        "Open it in the program that made it, save it again and upload that."
    ),
}


class ParseError(Exception):
    """Why a file could not be read, as an English sentence for the person who uploaded it.

    The code is a key of MESSAGES, and the params are the values of its fields, for a translated sentence.
    """

    def __init__(self, code: str, **params: str | int) -> None:
        self.code = code
        self.params = params
        super().__init__(MESSAGES[code].format(**params))


@dataclass(frozen=True, slots=True)
class Region:
    """Where part of a section stands in its file: from the character `start` of the section's text to the next region.

    `box` is left, top, right and bottom as shares of the page as it is seen, from its top left corner. `picture` counts
    the document's pictures from 0, where the part stands for one; `seconds` is the time at which a recording says it.
    """

    start: int = 0
    page: int | None = None
    box: tuple[float, float, float, float] | None = None
    picture: int | None = None
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a document, written again by the parser, so that its bytes are only a picture.

    `mime` is image/png or image/jpeg; width and height are in pixels. `caption` stands beside it, `alternative` is what
    its author wrote for readers who cannot see it, and `recognised` what OCR has read on it. `page` and `box` are as in
    a region, of the place where it stands first.
    """

    data: bytes
    mime: str
    width: int
    height: int
    caption: str = ""
    alternative: str = ""
    recognised: str = ""
    page: int | None = None
    box: tuple[float, float, float, float] | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class SectionKind(StrEnum):
    TEXT = "text"
    RECORD = "record"
    QA = "qa"


@dataclass(frozen=True, slots=True)
class Section:
    """Text under one heading, one page, one record of a table, or one pair of question and answer.

    The text is all of it, so that a reader who knows no kinds misses nothing. Pages count from 1. The headings above
    are the highest first; of a record: its sheet. A record and a pair are whole, and better not joined with their
    neighbours. Only a pair has a question, an answer, and alternatives, which are other wordings of the question.
    Regions ascend by their start.
    """

    text: str
    page: int | None = None
    heading_path: tuple[str, ...] = ()
    kind: SectionKind = SectionKind.TEXT
    question: str = ""
    answer: str = ""
    alternatives: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()

    @classmethod
    def pair(
        cls, question: str, answer: str, *, alternatives: tuple[str, ...] = (), heading_path: tuple[str, ...] = ()
    ) -> "Section":
        return cls(f"{question}\n{answer}", None, heading_path, SectionKind.QA, question, answer, alternatives)


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """What a module of `kb.ingest.formats` makes of a file and `parse` completes; an empty title: the file has none.

    `metadata` is what the file says of itself beyond its title; `attachments` counts the files in it that become
    documents of their own.
    """

    title: str
    sections: tuple[Section, ...]
    remarks: tuple[Remark, ...] = ()
    mime: str = ""
    pictures: tuple[Picture, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    attachments: int = 0


class WordPart(StrEnum):
    """What a Word document holds beside its body."""

    NOTES = "notes"
    COMMENTS = "comments"
    MARGINS = "margins"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a knowledge base has read of its files, where that is its choice."""

    word_parts: tuple[WordPart, ...] = (WordPart.NOTES,)


DEFAULT_READING = Reading()


@dataclass(frozen=True, slots=True)
class OfficeFormat:
    """A format that LibreOffice reads: what it is converted to, and the part of LibreOffice that does so."""

    mime: str
    target: str
    part: str


_OPEN_DOCUMENT = "application/vnd.oasis.opendocument"
OFFICE_FORMATS = {
    ".doc": OfficeFormat("application/msword", ".docx", "writer"),
    ".xls": OfficeFormat("application/vnd.ms-excel", ".xlsx", "calc"),
    ".ppt": OfficeFormat("application/vnd.ms-powerpoint", ".pptx", "impress"),
    ".odt": OfficeFormat(f"{_OPEN_DOCUMENT}.text", ".docx", "writer"),
    ".ods": OfficeFormat(f"{_OPEN_DOCUMENT}.spreadsheet", ".xlsx", "calc"),
    ".odp": OfficeFormat(f"{_OPEN_DOCUMENT}.presentation", ".pptx", "impress"),
    ".rtf": OfficeFormat("application/rtf", ".docx", "writer"),
}
OFFICE_COMMAND = (
    "apt-get install --no-install-recommends libreoffice-writer-nogui libreoffice-calc-nogui libreoffice-impress-nogui"
)
SUPPORTED_EXTENSIONS = (
    *(".txt", ".md", ".markdown", ".html", ".htm", ".pdf", ".docx", ".pptx", ".xlsx"),
    *(".csv", ".tsv", ".epub", ".jsonl", ".json", ".xml", ".eml", ".msg", ".srt", ".vtt"),
    *OFFICE_FORMATS,
)
_LINE_ENDS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# PostgreSQL stores no NUL and UTF-8 no lone surrogate; the rest are invisible or not characters.
_NOT_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n{3,}")


def office_error(code: str, kind: str) -> ParseError:
    """Why LibreOffice reads nothing of a file, or draws no slides of it, by one of the codes `office_…`."""
    wanted = OFFICE_FORMATS[kind].target if kind in OFFICE_FORMATS else ".pdf"
    params = {"format": kind[1:].upper(), "wanted": wanted}
    if code == "office_missing":
        params["command"] = OFFICE_COMMAND
    return ParseError(code, **params)


def unsupported_name(name: str) -> ParseError:
    """Why a file of a name without a reader becomes no document."""
    path = PurePath(name)
    named = path.suffix or f"“{path.name}”"
    return ParseError("unsupported_type", detected=named, supported=", ".join(SUPPORTED_EXTENSIONS))


def clean(text: str) -> str:
    """Text that a database can hold: no control characters, one form of line end, one blank line at most."""
    lines = _NOT_TEXT.sub("", _LINE_ENDS.sub("\n", text)).split("\n")
    return _BLANK_LINES.sub("\n\n", "\n".join(line.rstrip() for line in lines)).strip("\n")


def moved_regions(regions: Sequence[Region], text: str, cleaned: str) -> tuple[Region, ...]:
    """The regions of a text for what `clean` has made of it: each begins with the same visible character as before."""
    if text == cleaned or not regions:
        return tuple(regions)
    moved, seen, place = [], 0, 0
    for each in regions:
        for visible in "".join(_NOT_TEXT.sub("", text[seen : each.start]).split()):
            place = cleaned.index(visible, place) + 1
        seen = each.start
        while place < len(cleaned) and cleaned[place].isspace():
            place += 1
        moved.append(replace(each, start=place if each.start else 0))
    return tuple(moved)


# Names of programs, which are refused whatever their bytes are.
PROGRAM_EXTENSIONS = frozenset(
    {".apk", ".bat", ".class", ".cmd", ".dll", ".dmg", ".exe", ".iso", ".jar", ".msi", ".scr", ".sys"}
)
