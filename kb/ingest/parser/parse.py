"""Turns an uploaded file into text, or says in one sentence why it cannot.

Nothing here imports Django: the sandbox child that runs it starts in a fraction of a second.
"""

import importlib
from dataclasses import replace
from pathlib import PurePath

from kb.ingest.formats.detect import READERS, detect_readable
from kb.ingest.parser.parsed import (
    LEGACY_EXTENSIONS,
    ErrorCode,
    ParsedDocument,
    ParseError,
    Section,
    SectionKind,
    clean,
    legacy_office,
)

_TITLE_LENGTH = 255
_NO_TEXT = frozenset({ErrorCode.BINARY_CONTENT, ErrorCode.UNDECODABLE, ErrorCode.UNSUPPORTED_TYPE})


def parse(data: bytes, filename: str) -> ParsedDocument:
    """Reads a file's text, headings and pages, as what its bytes are, whatever its name says.

    Raises:
        ParseError: the file is empty, damaged, protected, or of a type without a reader.
    """
    name = PurePath(filename)
    extension = name.suffix.lower()
    try:
        reader = importlib.import_module(READERS[detect_readable(data, extension)])
        document: ParsedDocument = reader.read(data)
    except ParseError as error:
        if error.code in _NO_TEXT and extension in LEGACY_EXTENSIONS:
            raise legacy_office(extension) from error
        raise
    sections = tuple(section for section in map(_clean_section, document.sections) if section.text)
    if not sections:
        raise ParseError(ErrorCode.EMPTY_FILE)
    title = _one_line(document.title) or _one_line(name.stem)
    return replace(document, title=title[:_TITLE_LENGTH], sections=sections)


def _clean_section(section: Section) -> Section:
    path = tuple(_one_line(heading)[:_TITLE_LENGTH] for heading in section.heading_path)
    if section.kind is not SectionKind.QA:
        return replace(section, text=clean(section.text), heading_path=path)
    others = tuple(filter(None, map(clean, section.alternatives)))
    return Section.pair(clean(section.question), clean(section.answer), alternatives=others, heading_path=path)


def _one_line(text: str) -> str:
    return " ".join(clean(text).split())
