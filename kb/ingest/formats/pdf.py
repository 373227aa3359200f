"""PDF by PDFium: a section a page, or a bookmark on it, in paragraphs; RapidOCR, if installed, reads scanned pages."""

import ctypes
import importlib.util
import os
import re
import resource
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from itertools import islice, pairwise
from typing import Any, Final

import pypdfium2
import pypdfium2.raw as pdfium

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats.outline import LIST_MARK, Line, join_lines, paragraphs
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section

Path = tuple[str, ...]
# Neither PDFium's pages nor RapidOCR have types that mypy reads.
Page = Any

_MAX_BOOKMARKS = 20_000
_MAX_DEPTH = 9
# A heading may be set over this many lines.
_HEADING_LINES = 3


class Bookmarks:
    """Where each bookmark leads; without any, pages have no headings."""

    def __init__(self, document: pypdfium2.PdfDocument) -> None:
        self._on_page: dict[int, list[Path]] = defaultdict(list)
        above: list[str] = []
        for bookmark in islice(document.get_toc(max_depth=_MAX_DEPTH), _MAX_BOOKMARKS):
            destination = bookmark.get_dest()
            index = destination.get_index() if destination else None
            title = " ".join(bookmark.get_title().split())
            above = [*above[: bookmark.level], title]
            if title and index is not None:
                self._on_page[index + 1].append(tuple(filter(None, above)))
        self._pages = sorted(self._on_page)

    def split(self, lines: Sequence[Line], page: int) -> Iterator[tuple[Path, Sequence[Line], Sequence[Line]]]:
        """The lines of a page under each heading: a bookmark begins where its words stand, else with the page.

        Yields the path, the lines of its heading if they are on the page, and the lines below.
        """
        earlier = bisect_left(self._pages, page)
        path, heading, start = (self._on_page[self._pages[earlier - 1]][-1] if earlier else ()), range(0), 0
        for own in self._on_page.get(page, ()):
            found = _find(lines, own[-1], start)
            if found:
                yield path, lines[heading.start : heading.stop], lines[start : found.start]
                heading, start = found, found.stop
            path = own
        yield path, lines[heading.start : heading.stop], lines[start:]


def _find(lines: Sequence[Line], title: str, start: int) -> range:
    """The lines, from start on, that are the title; an empty range if none are."""
    wanted = "".join(title.split())
    for first in range(start, len(lines)):
        joined = ""
        for last in range(first, min(first + _HEADING_LINES, len(lines))):
            joined += "".join(lines[last].text.split())
            if joined == wanted:
                return range(first, last + 1)
            if not wanted.startswith(joined):
                break
    return range(0)


# PDFium puts one of these in place of a hyphen at the end of a line, and drops the line end.
_HYPHENS = str.maketrans("\x02\ufffe", "--")
_LINE = re.compile("[^\n\x02\ufffe]*[\n\x02\ufffe]?")
_UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd-\uffff]")
# A gap this wide, in line heights, separates table cells, unless it follows a list mark.
_CELL_GAP = 1.8


def _characters(textpage: pypdfium2.PdfTextPage) -> str:
    """Exactly one character for each index, so that positions in a line lead back to the page."""
    codes = (pdfium.FPDFText_GetUnicode(textpage, index) for index in range(textpage.count_chars()))
    return "".join(chr(code) if code < 0x110000 else "\ufffd" for code in codes)


def _line(textpage: pypdfium2.PdfTextPage, start: int, text: str) -> Line | None:
    visible = [offset for offset, character in enumerate(text) if not character.isspace()]
    if not visible or not _cleaned(text):
        return None
    first = _box(textpage, start + visible[0])
    last = _box(textpage, start + visible[-1])
    height = first.top - first.bottom
    gaps = [
        after
        for before, after in pairwise(visible)
        if after - before > 1
        and not LIST_MARK.fullmatch(text[: before + 1])
        and _box(textpage, start + after).left - _box(textpage, start + before).right > _CELL_GAP * height
    ]
    cells = [_cleaned(text[begin:end]) for begin, end in pairwise([0, *gaps, len(text)])]
    x, y = ctypes.c_double(), ctypes.c_double()
    pdfium.FPDFText_GetCharOrigin(textpage, start + visible[0], x, y)
    return Line(
        " | ".join(filter(None, cells)),
        left=first.left,
        right=last.right,
        baseline=y.value,
        height=height,
        tabular=len(cells) > 1,
    )


def _cleaned(text: str) -> str:
    return _UNREADABLE.sub("", text.translate(_HYPHENS)).strip()


def _box(textpage: pypdfium2.PdfTextPage, index: int) -> pdfium.FS_RECTF:
    box = pdfium.FS_RECTF()
    pdfium.FPDFText_GetLooseCharBox(textpage, index, box)
    return box


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


def read(data: bytes) -> ParsedDocument:
    try:
        with pypdfium2.PdfDocument(data) as document:
            return _read(document)
    except pypdfium2.PdfiumError as error:
        is_locked = getattr(error, "err_code", None) == pdfium.FPDF_ERR_PASSWORD
        raise ParseError("protected" if is_locked else "damaged_file", format="PDF") from error


def _read(document: pypdfium2.PdfDocument) -> ParsedDocument:
    bookmarks, sections = Bookmarks(document), list[Section]()
    noted: dict[RemarkCode, list[int]] = {RemarkCode.PAGES_WITHOUT_TEXT: [], RemarkCode.PAGES_RECOGNISED: []}
    for number in range(1, len(document) + 1):
        with closing(document[number - 1]) as page, closing(page.get_textpage()) as textpage:
            lines, code = _read_page(page, textpage)
        sections += _sections(lines, number, bookmarks)
        if code is not None:
            noted[code].append(number)
    if not sections:
        raise ParseError("no_text_layer", pages=len(document))
    remarks = tuple(Remark(code, {"pages": ranges(pages)}) for code, pages in noted.items() if pages)
    return ParsedDocument(_title(document), tuple(sections), remarks)


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


def _read_page(page: Page, textpage: pypdfium2.PdfTextPage) -> tuple[list[Line], RemarkCode | None]:
    text = _characters(textpage)
    lines = [line for found in _LINE.finditer(text) if (line := _line(textpage, found.start(), found[0]))]
    visible = "".join(text.split())
    is_garbled = visible and not _cleaned(visible)  # letters are drawn whose font does not say which they are
    if sum(len(line.text) for line in lines) >= _STAMP_LENGTH or not (is_garbled or _is_scan(page)):
        return lines, None
    recognised = recognise(page)
    return recognised or lines, RemarkCode.PAGES_RECOGNISED if recognised else RemarkCode.PAGES_WITHOUT_TEXT


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


# Pixels a point: 108 dpi, at which RapidOCR reads text of 9 points, in a third of the memory of 200 dpi.
_SCALE: Final = 1.5
_MIN_SCORE: Final = 0.5
# The rest is for the pages that have text, and for the answer.
_SHARE_OF_TIME: Final = 0.6
_PARAMETERS: Final = {
    "Global.log_level": "critical",
    "Global.use_cls": False,
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,
    "Rec.rec_batch_num": 1,
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    "EngineConfig.onnxruntime.enable_cpu_mem_arena": False,
}


def recognise(page: Page) -> list[Line]:
    """The lines that can be read on the picture of a page; none without RapidOCR, or once the time is nearly up."""
    allowed = resource.getrlimit(resource.RLIMIT_CPU)[0]
    has_time = allowed == resource.RLIM_INFINITY or time.process_time() < _SHARE_OF_TIME * allowed
    if not is_installed() or not has_time:
        return []
    found = _recogniser()(page.render(scale=_SCALE).to_numpy())
    height = page.get_size()[1]
    entries = zip(found.boxes, found.txts, found.scores, strict=True) if found.txts else ()
    return [_recognised_line(box, text, height) for box, text, score in entries if score >= _MIN_SCORE and text.strip()]


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("rapidocr", "onnxruntime"))


@cache
def _recogniser() -> Any:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    # Most files need none, and it takes a second
    return importlib.import_module("rapidocr").RapidOCR(params=dict(_PARAMETERS))


def _recognised_line(box: Any, text: str, page_height: float) -> Line:
    """From pixels that count downwards to points that count upwards."""
    horizontal = [float(corner[0]) / _SCALE for corner in box]
    vertical = [page_height - float(corner[1]) / _SCALE for corner in box]
    bottom, top = min(vertical), max(vertical)
    return Line(text.strip(), min(horizontal), max(horizontal), bottom, top - bottom)
