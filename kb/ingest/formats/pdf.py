"""PDF by PDFium: one section a page, with its lines joined into paragraphs."""

import ctypes
import re
from collections.abc import Iterator
from itertools import pairwise

import pypdfium2
import pypdfium2.raw as pdfium

from kb.ingest.formats.lines import LIST_MARK, Line, paragraphs
from kb.ingest.parse import ErrorCode, ParsedDocument, ParseError, Section

_LINE_END = "\n"
# PDFium puts one of these in place of a hyphen at the end of a line, and drops the line end.
_HYPHENS = frozenset("\x02\ufffe")
_UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd-\uffff]")
# A gap this wide, in line heights, separates table cells, unless it follows a list mark.
_CELL_GAP = 1.8
# What programs write when their user gave no title.
_NO_TITLE = re.compile(
    r"^(untitled|无标题|(microsoft (word|powerpoint) - )?[^/\\]*\.(docx?|pdf|tex|pptx?|wps|indd))$", re.I
)


def read(data: bytes) -> ParsedDocument:
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == pdfium.FPDF_ERR_PASSWORD:
            raise ParseError(ErrorCode.ENCRYPTED_PDF) from error
        raise ParseError(ErrorCode.DAMAGED_FILE, format="PDF") from error
    with document:
        sections = tuple(section for number in range(len(document)) if (section := _section(document, number)))
        if not sections:
            raise ParseError(ErrorCode.NO_TEXT_LAYER, pages=len(document))
        return ParsedDocument(_title(document), "application/pdf", sections)


def _title(document: pypdfium2.PdfDocument) -> str:
    title = str(document.get_metadata_value("Title")).strip()
    return "" if _NO_TITLE.match(title) else title


def _section(document: pypdfium2.PdfDocument, number: int) -> Section | None:
    try:
        page = document[number]
        textpage = page.get_textpage()
    except pypdfium2.PdfiumError as error:
        raise ParseError(ErrorCode.DAMAGED_FILE, format="PDF") from error
    try:
        blocks = paragraphs(list(_lines(textpage)))
    finally:
        textpage.close()
        page.close()
    return Section("\n\n".join(blocks), page=number + 1) if blocks else None


def _lines(textpage: pypdfium2.PdfTextPage) -> Iterator[Line]:
    start, text = 0, ""
    for index in range(textpage.count_chars()):
        character = _character(textpage, index)
        text += character
        if character == _LINE_END or character in _HYPHENS:
            if line := _line(textpage, start, text):
                yield line
            start, text = index + 1, ""
    if line := _line(textpage, start, text):
        yield line


def _character(textpage: pypdfium2.PdfTextPage, index: int) -> str:
    """Exactly one character for each index, so that positions in a line lead back to the page."""
    code = pdfium.FPDFText_GetUnicode(textpage, index)
    return chr(code) if code < 0x110000 else "\ufffd"


def _line(textpage: pypdfium2.PdfTextPage, start: int, text: str) -> Line | None:
    visible = [offset for offset, character in enumerate(text) if not character.isspace()]
    cleaned = _UNREADABLE.sub("", "".join("-" if character in _HYPHENS else character for character in text)).strip()
    if not cleaned or not visible:
        return None
    first = _box(textpage, start + visible[0])
    last = _box(textpage, start + visible[-1])
    height = first.top - first.bottom
    return Line(
        cleaned,
        left=first.left,
        right=last.right,
        baseline=_baseline(textpage, start + visible[0]),
        height=height,
        tabular=any(
            _box(textpage, start + after).left - _box(textpage, start + before).right > _CELL_GAP * height
            for before, after in pairwise(visible)
            if after - before > 1 and not LIST_MARK.fullmatch(text[: before + 1])
        ),
    )


def _box(textpage: pypdfium2.PdfTextPage, index: int) -> pdfium.FS_RECTF:
    box = pdfium.FS_RECTF()
    pdfium.FPDFText_GetLooseCharBox(textpage, index, box)
    return box


def _baseline(textpage: pypdfium2.PdfTextPage, index: int) -> float:
    x, y = ctypes.c_double(), ctypes.c_double()
    pdfium.FPDFText_GetCharOrigin(textpage, index, x, y)
    return y.value
