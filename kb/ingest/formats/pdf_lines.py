"""The lines of a page by PDFium, with the cells of table rows told apart."""

import ctypes
import re
from collections.abc import Iterator
from itertools import pairwise

import pypdfium2
import pypdfium2.raw as pdfium

from kb.ingest.formats.lines import LIST_MARK, Line

_LINE_END = "\n"
# PDFium puts one of these in place of a hyphen at the end of a line, and drops the line end.
_HYPHENS = frozenset("\x02\ufffe")
_UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd-\uffff]")
# A gap this wide, in line heights, separates table cells, unless it follows a list mark.
_CELL_GAP = 1.8


def page_lines(textpage: pypdfium2.PdfTextPage) -> Iterator[Line]:
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


def is_garbled(textpage: pypdfium2.PdfTextPage) -> bool:
    """True for letters that are drawn, but whose font does not say which characters they are."""
    characters = [_character(textpage, index) for index in range(textpage.count_chars())]
    visible = [character for character in characters if not character.isspace()]
    return bool(visible) and not _cleaned("".join(visible))


def _character(textpage: pypdfium2.PdfTextPage, index: int) -> str:
    """Exactly one character for each index, so that positions in a line lead back to the page."""
    code = pdfium.FPDFText_GetUnicode(textpage, index)
    return chr(code) if code < 0x110000 else "\ufffd"


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
    return Line(
        " | ".join(filter(None, cells)),
        left=first.left,
        right=last.right,
        baseline=_baseline(textpage, start + visible[0]),
        height=height,
        tabular=len(cells) > 1,
    )


def _cleaned(text: str) -> str:
    return _UNREADABLE.sub("", "".join("-" if character in _HYPHENS else character for character in text)).strip()


def _box(textpage: pypdfium2.PdfTextPage, index: int) -> pdfium.FS_RECTF:
    box = pdfium.FS_RECTF()
    pdfium.FPDFText_GetLooseCharBox(textpage, index, box)
    return box


def _baseline(textpage: pypdfium2.PdfTextPage, index: int) -> float:
    x, y = ctypes.c_double(), ctypes.c_double()
    pdfium.FPDFText_GetCharOrigin(textpage, index, x, y)
    return y.value
