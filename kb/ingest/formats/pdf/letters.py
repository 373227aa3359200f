"""What PDFium tells of the letters and the rules on a page, by their places on it as it is seen."""

import ctypes
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pypdfium2
import pypdfium2.raw as pdfium

from kb.ingest.formats.pdf.grids import Rule

# PDFium's pages have no types that mypy reads.
Page = Any

# Letters of symbol fonts, which office programs write as marks of lists.
_SYMBOLS = re.compile("[\uf020-\uf0ff]")
_BOLD_WEIGHT = 600
_BOLD_NAME = re.compile(r"bold|black|heavy|demi", re.IGNORECASE)
# Points: what is drawn thinner is a rule.
_THIN = 3.0
_MOST_POINTS = 20_000

Point = tuple[float, float]


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float


class Letters:
    """The letters of a page as it is seen: upright, and with its lower left corner at 0, 0."""

    def __init__(self, page: Page, textpage: pypdfium2.PdfTextPage) -> None:
        self._raw = textpage
        left, bottom, right, top = page.get_cropbox()
        turned: dict[int, Callable[[float, float], Point]] = {
            0: lambda x, y: (x - left, y - bottom),
            90: lambda x, y: (y - bottom, right - x),
            180: lambda x, y: (right - x, top - y),
            270: lambda x, y: (top - y, x - left),
        }
        self.point = turned[page.get_rotation()]
        self._size: Point = page.get_size()
        codes = (pdfium.FPDFText_GetUnicode(textpage, index) for index in range(textpage.count_chars()))
        # Exactly one character for each index, so that positions in a line lead back to the page.
        self.text = _SYMBOLS.sub("•", "".join(chr(code) if code < 0x110000 else "\ufffd" for code in codes))

    def box(self, index: int) -> Box:
        box = pdfium.FS_RECTF()
        pdfium.FPDFText_GetLooseCharBox(self._raw, index, box)
        (x1, y1), (x2, y2) = self.point(box.left, box.bottom), self.point(box.right, box.top)
        return Box(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))

    def share(self, start: int, stop: int) -> tuple[float, float, float, float]:
        """The box around the letters from one to another, as `Region.box`."""
        left, top, right, bottom = ctypes.c_double(), ctypes.c_double(), ctypes.c_double(), ctypes.c_double()
        places: list[Point] = []
        for number in range(pdfium.FPDFText_CountRects(self._raw, start, stop - start)):
            pdfium.FPDFText_GetRect(self._raw, number, left, top, right, bottom)
            places += [self.point(left.value, top.value), self.point(right.value, bottom.value)]
        width, height = self._size
        across = [min(max(x / width, 0.0), 1.0) for x, _ in places] or [0.0, 1.0]
        down = [min(max(1 - y / height, 0.0), 1.0) for _, y in places] or [0.0, 1.0]
        return min(across), min(down), max(across), max(down)

    def baseline(self, index: int) -> float:
        x, y = ctypes.c_double(), ctypes.c_double()
        pdfium.FPDFText_GetCharOrigin(self._raw, index, x, y)
        return self.point(x.value, y.value)[1]

    def size(self, index: int) -> float:
        """In points on the page: the size of the font as its matrix scales it."""
        matrix = pdfium.FS_MATRIX()
        size = pdfium.FPDFText_GetFontSize(self._raw, index)
        if pdfium.FPDFText_GetMatrix(self._raw, index, matrix):
            size *= (matrix.b**2 + matrix.d**2) ** 0.5 or 1.0
        return float(size)

    def is_bold(self, index: int) -> bool:
        if pdfium.FPDFText_GetFontWeight(self._raw, index) >= _BOLD_WEIGHT:
            return True
        name, flags = ctypes.create_string_buffer(128), ctypes.c_int()
        pdfium.FPDFText_GetFontInfo(self._raw, index, name, len(name), flags)
        return bool(_BOLD_NAME.search(name.value.decode("latin-1")))

    def nameless_font(self, index: int) -> int:
        """What tells a font without a name from others of the page; 0 for one with a name."""
        shape = pdfium.FPDFText_GetTextObject(self._raw, index)
        font = pdfium.FPDFTextObj_GetFont(shape) if shape else None
        if not font or pdfium.FPDFFont_GetBaseFontName(font, None, 0) > 1:
            return 0
        return ctypes.addressof(font.contents)


def rules(page: Page, letters: Letters) -> tuple[list[Rule], list[Rule]]:
    """The horizontal and the vertical rules that are drawn on a page: thin shapes, and the edges of stroked ones."""
    across: list[Rule] = []
    down: list[Rule] = []
    for one, other in _edges_of(page):
        (x1, y1), (x2, y2) = letters.point(*one), letters.point(*other)
        if abs(y1 - y2) <= 1 < abs(x1 - x2):
            across.append(Rule((y1 + y2) / 2, min(x1, x2), max(x1, x2)))
        elif abs(x1 - x2) <= 1 < abs(y1 - y2):
            down.append(Rule((x1 + x2) / 2, min(y1, y2), max(y1, y2)))
    return across, down


def _edges_of(page: Page) -> Iterator[tuple[Point, Point]]:
    """Only of shapes on the page itself: those within forms know no places on it."""
    left = _MOST_POINTS
    for shape in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_PATH], max_depth=1):
        x1, y1, x2, y2 = shape.get_bounds()
        if min(x2 - x1, y2 - y1) <= _THIN:
            middle_x, middle_y = (x1 + x2) / 2, (y1 + y2) / 2
            yield ((x1, middle_y), (x2, middle_y)) if x2 - x1 > y2 - y1 else ((middle_x, y1), (middle_x, y2))
            continue
        fill, is_stroked = ctypes.c_int(), ctypes.c_int()
        pdfium.FPDFPath_GetDrawMode(shape, fill, is_stroked)
        left -= pdfium.FPDFPath_CountSegments(shape)
        if not is_stroked.value or left < 0:
            continue
        yield from pairwise(_points(shape))


def _points(shape: Any) -> Iterator[Point]:
    """The corners of a path, on the page."""
    a, b, c, d, e, f = shape.get_matrix().get()
    start: Point | None = None
    for number in range(pdfium.FPDFPath_CountSegments(shape)):
        segment = pdfium.FPDFPath_GetPathSegment(shape, number)
        x, y = ctypes.c_float(), ctypes.c_float()
        pdfium.FPDFPathSegment_GetPoint(segment, x, y)
        point = (a * x.value + c * y.value + e, b * x.value + d * y.value + f)
        if start is None or pdfium.FPDFPathSegment_GetType(segment) == pdfium.FPDF_SEGMENT_MOVETO:
            start = point
        yield point
        if pdfium.FPDFPathSegment_GetClose(segment):
            yield start
