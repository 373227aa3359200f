"""PDF by PDFium: a section a page and heading, in paragraphs and tables; pages without text are read as pictures."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats.outline import Block, Line, Outline, around, paragraph, paragraphs, section_of
from kb.ingest.formats.pdf.bookmarks import Bookmarks
from kb.ingest.formats.pdf.edges import without_edges
from kb.ingest.formats.pdf.headings import headings
from kb.ingest.formats.pdf.items import Item, Ruled, without_gaps
from kb.ingest.formats.pdf.lines import cleaned, read_items
from kb.ingest.formats.pdf.ocr import recognise
from kb.ingest.formats.pdf.pictures import pictures_on, with_pictures
from kb.ingest.formats.pdf.scans import with_sizes
from kb.ingest.formats.pictures import Gallery
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section

# PDFium's pages have no types that mypy reads.
Page = Any

# What programs write when their user gave no title.
_NO_TITLE = re.compile(
    r"^(about:.*|untitled|无标题|(microsoft (word|powerpoint) - )?[^/\\]*\.(docx?|pdf|tex|pptx?|wps|indd))$", re.I
)
# A page is a scan if pictures cover this much of it, or if its letters are drawn as this many shapes.
_SCANNED_SHARE = 0.3
_DRAWN_SHAPES = 200
# A stamp or a page number over a scan is not its text.
_STAMP_LENGTH = 40
_MAX_PICTURE_DEPTH = 5


def read(data: bytes) -> ParsedDocument:
    try:
        with pypdfium2.PdfDocument(data) as document:
            return _read(document)
    except pypdfium2.PdfiumError as error:
        is_locked = getattr(error, "err_code", None) == pdfium.FPDF_ERR_PASSWORD
        raise ParseError("protected" if is_locked else "damaged_file", format="PDF") from error


def _read(document: pypdfium2.PdfDocument) -> ParsedDocument:
    pages: list[list[Item]] = []
    heights: list[float] = []
    gallery, shown = Gallery(), list[list[Ruled]]()
    noted: dict[RemarkCode, list[int]] = {RemarkCode.PAGES_WITHOUT_TEXT: [], RemarkCode.PAGES_RECOGNISED: []}
    for number in range(1, len(document) + 1):
        with closing(document[number - 1]) as page, closing(page.get_textpage()) as textpage:
            items, code = _read_page(page, textpage, number)
            heights.append(page.get_height())
            shown.append([] if code is RemarkCode.PAGES_RECOGNISED else pictures_on(page, number, gallery))
        pages.append(items)
        if code is not None:
            noted[code].append(number)
    sized = with_sizes(pages, noted[RemarkCode.PAGES_RECOGNISED])
    pages = without_gaps(without_edges(sized, heights))
    pages = [with_pictures(items, pictures) for items, pictures in zip(pages, shown, strict=True)]
    bookmarks = Bookmarks(document)
    sections = _by_bookmarks(pages, bookmarks) if bookmarks else _by_looks(pages)
    remarks = tuple(Remark(code, {"pages": ranges(numbers)}) for code, numbers in noted.items() if numbers)
    read = gallery.finished(ParsedDocument(_title(document), tuple(sections), remarks))
    if not read.sections:
        raise ParseError("no_text_layer", pages=len(document))
    return read


def _by_bookmarks(pages: Sequence[Sequence[Item]], bookmarks: Bookmarks) -> list[Section]:
    sections = []
    for number, page in enumerate(pages, start=1):
        for path, heading, below in bookmarks.split(page, number):
            if blocks := [*_blocks_of_heading(heading), *_blocks(below)]:
                sections.append(section_of(blocks, number, path))
    return sections


def _by_looks(pages: Sequence[Sequence[Item]]) -> list[Section]:
    found, outline = headings(pages), Outline()
    for number, page in enumerate(pages, start=1):
        outline.turn(number)
        start = 0
        while start < len(page):
            if at := found.get(id(page[start])):
                level, lines = at
                outline.heading(level, *paragraph(lines))
                start += len(lines)
                continue
            stop = start
            while stop < len(page) and id(page[stop]) not in found:
                stop += 1
            for block in _blocks(page[start:stop]):
                outline.block(*block)
            start = stop
    return list(outline.sections())


def _blocks_of_heading(items: Sequence[Item]) -> Iterator[Block]:
    lines = [line for item in items for line in (item.lines if isinstance(item, Ruled) else (item,))]
    if lines:
        yield paragraph(lines)


def _blocks(items: Sequence[Item]) -> Iterator[Block]:
    """Paragraphs and tables in their order."""
    lines: list[Line] = []
    for item in items:
        if isinstance(item, Ruled):
            yield from paragraphs(lines)
            lines = []
            yield Block(item.text, around(line.region for line in item.lines))
        else:
            lines.append(item)
    yield from paragraphs(lines)


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


def _read_page(page: Page, textpage: pypdfium2.PdfTextPage, number: int) -> tuple[list[Item], RemarkCode | None]:
    items, text = read_items(page, textpage, number)
    visible = "".join(text.split())
    is_garbled = visible and not cleaned(visible)  # letters are drawn whose font does not say which they are
    if sum(len(item.text) for item in items) >= _STAMP_LENGTH or not (is_garbled or _is_scan(page)):
        return items, None
    recognised = recognise(page, number)
    if recognised:
        return [*recognised], RemarkCode.PAGES_RECOGNISED
    return items, RemarkCode.PAGES_WITHOUT_TEXT


def _is_scan(page: Page) -> bool:
    width, height = page.get_size()
    covered, shapes = 0.0, 0
    for shape in page.get_objects(max_depth=_MAX_PICTURE_DEPTH):
        if shape.type == pdfium.FPDF_PAGEOBJ_IMAGE:
            left, bottom, right, top = shape.get_bounds()
            covered += abs(right - left) * abs(top - bottom)
        shapes += shape.type == pdfium.FPDF_PAGEOBJ_PATH
    return covered > _SCANNED_SHARE * width * height or shapes >= _DRAWN_SHAPES
