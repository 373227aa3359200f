"""PDF by PDFium: a section a page, or a bookmark on it, with lines joined into paragraphs."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from kb.base.remarks import Remark, RemarkCode
from kb.ingest.formats import ocr
from kb.ingest.formats.lines import Line, join_lines, paragraphs
from kb.ingest.formats.pdf_bookmarks import Bookmarks
from kb.ingest.formats.pdf_lines import is_garbled, page_lines
from kb.ingest.parser.parsed import ErrorCode, ParsedDocument, ParseError, Section

# PDFium's objects have no types that mypy reads.
Page = Any

# What programs write when their user gave no title.
_NO_TITLE = re.compile(
    r"^(untitled|无标题|(microsoft (word|powerpoint) - )?[^/\\]*\.(docx?|pdf|tex|pptx?|wps|indd))$", re.I
)
# A page is a scan if pictures cover this much of it, or if its letters are drawn as this many shapes.
_SCANNED_SHARE = 0.3
_DRAWN_SHAPES = 200
# A stamp or a page number over a scan is not its text.
_STAMP_LENGTH = 40
_MAX_PICTURE_DEPTH = 5


@dataclass(slots=True)
class _Reading:
    """What has been read so far; page numbers count from 1."""

    sections: list[Section] = field(default_factory=list)
    recognised: list[int] = field(default_factory=list)
    without_text: list[int] = field(default_factory=list)

    def remarks(self) -> Iterator[Remark]:
        if self.without_text:
            yield Remark(RemarkCode.PAGES_WITHOUT_TEXT, {"pages": ranges(self.without_text)})
        if self.recognised:
            yield Remark(RemarkCode.PAGES_RECOGNISED, {"pages": ranges(self.recognised)})


def read(data: bytes) -> ParsedDocument:
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == pdfium.FPDF_ERR_PASSWORD:
            raise ParseError(ErrorCode.PROTECTED, format="PDF") from error
        raise ParseError(ErrorCode.DAMAGED_FILE, format="PDF") from error
    with document:
        try:
            return _read(document)
        except pypdfium2.PdfiumError as error:
            raise ParseError(ErrorCode.DAMAGED_FILE, format="PDF") from error


def _read(document: pypdfium2.PdfDocument) -> ParsedDocument:
    bookmarks, reading = Bookmarks(document), _Reading()
    for number in range(1, len(document) + 1):
        _read_page(document, number, bookmarks, reading)
    if not reading.sections:
        raise ParseError(ErrorCode.NO_TEXT_LAYER, pages=len(document))
    return ParsedDocument(_title(document), "application/pdf", tuple(reading.sections), tuple(reading.remarks()))


def ranges(numbers: Sequence[int]) -> str:
    """Page numbers in order as people write them: "1–3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _title(document: pypdfium2.PdfDocument) -> str:
    title = str(document.get_metadata_value("Title")).strip()
    return "" if _NO_TITLE.match(title) else title


def _read_page(document: pypdfium2.PdfDocument, number: int, bookmarks: Bookmarks, reading: _Reading) -> None:
    page = document[number - 1]
    textpage = page.get_textpage()
    try:
        lines = list(page_lines(textpage))
        if sum(len(line.text) for line in lines) < _STAMP_LENGTH and (is_garbled(textpage) or _is_scan(page)):
            recognised = ocr.recognise(page)
            (reading.recognised if recognised else reading.without_text).append(number)
            lines = recognised or lines
    finally:
        textpage.close()
        page.close()
    reading.sections += _sections(lines, number, bookmarks)


def _sections(lines: Sequence[Line], number: int, bookmarks: Bookmarks) -> Iterator[Section]:
    for path, heading, below in bookmarks.split(lines, number):
        if blocks := list(filter(None, [join_lines(line.text for line in heading), *paragraphs(below)])):
            yield Section("\n\n".join(blocks), number, path)


def _is_scan(page: Page) -> bool:
    width, height = page.get_size()
    covered, shapes = 0.0, 0
    for shape in page.get_objects(max_depth=_MAX_PICTURE_DEPTH):
        if shape.type == pdfium.FPDF_PAGEOBJ_IMAGE:
            left, bottom, right, top = shape.get_bounds()
            covered += abs(right - left) * abs(top - bottom)
        shapes += shape.type == pdfium.FPDF_PAGEOBJ_PATH
    return covered > _SCANNED_SHARE * width * height or shapes >= _DRAWN_SHAPES
