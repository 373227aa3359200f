"""What stands on a page of a PDF, in the order in which it was written: lines of letters, and tables whose cells are drawn."""

import ctypes
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from kb.ingest.formats.outline import LIST_MARK, Cell, Line, join_lines, markdown_table
from kb.ingest.formats.pdf.grids import NEAR, Grid, Rule, grids

# PDFium's pages have no types that mypy reads.
Page = Any

# PDFium puts one of these in place of a hyphen at the end of a line, and drops the line end.
_HYPHENS = str.maketrans("\x02\ufffe", "--")
_LINE = re.compile("[^\n\x02\ufffe]*[\n\x02\ufffe]?")
_UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd-\uffff]")
# Letters of symbol fonts, which office programs write as marks of lists.
_SYMBOLS = re.compile("[\uf020-\uf0ff]")
# A gap this wide, in line heights, separates table cells, unless it follows a list mark.
_CELL_GAP = 1.8
_BOLD_WEIGHT = 600
# Letters of a line whose fonts are looked at.
_SAMPLED = 12
_BOLD_NAME = re.compile(r"bold|black|heavy|demi", re.IGNORECASE)
# Points: what is drawn thinner is a rule.
_THIN = 3.0
_MOST_POINTS = 20_000
# Lines of a box beside the text, and boxes that were written before it.
_MOST_BESIDE = 30
_MOST_BOXES = 20
# From one line of a paragraph to the next, and of a box, in sizes of letters, at most.
_PARAGRAPH_STEP = 1.75
_BOX_STEP = 4.0
# A table with fewer words in its cells is a frame around something else.
_LEAST_FILLED = 0.4


@dataclass(frozen=True, slots=True)
class Ruled:
    """A table that is drawn; the first row is its header. Of one row it may go on with the table of the page before.

    `lefts` are the edges of its columns, `top` is its upper one, in points; `lines` is what it would be if it were none.
    """

    rows: tuple[tuple[str, ...], ...]
    lefts: tuple[float, ...]
    top: float
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        return markdown_table(self.rows)

    def goes_on_with(self, other: "Ruled") -> bool:
        """Whether it has the columns of the other one, and not its header."""
        return (
            len(self.lefts) == len(other.lefts)
            and self.rows[0] != other.rows[0]
            and all(abs(mine - its) <= NEAR for mine, its in zip(self.lefts, other.lefts, strict=True))
        )


Item = Line | Ruled


def usual_size(pages: Sequence[Sequence[Item]]) -> float:
    """The size of most letters, in points; 0 where none is known."""
    lengths: Counter[float] = Counter()
    for page in pages:
        for item in page:
            if isinstance(item, Line) and item.size:
                lengths[item.size] += len(item.text)
    return lengths.most_common(1)[0][0] if lengths else 0.0


def without_gaps(pages: Sequence[Sequence[Item]]) -> list[list[Item]]:
    """The pages with the header of each table before what goes on with it on the next page."""
    joined: list[list[Item]] = []
    for page in pages:
        items: list[Item] = []
        for number, item in enumerate(page):
            above = joined[-1][-1] if joined and joined[-1] and not number else None
            if isinstance(item, Ruled):
                if isinstance(above, Ruled) and item.goes_on_with(above):
                    items.append(replace(item, rows=(above.rows[0], *item.rows)))
                    continue
                if len(item.rows) < 2:
                    items += item.lines
                    continue
            items.append(item)
        joined.append(items)
    return joined


def cleaned(text: str) -> str:
    return _UNREADABLE.sub("", text.translate(_HYPHENS)).strip()


def read_items(page: Page, textpage: pypdfium2.PdfTextPage) -> tuple[list[Item], str]:
    """The lines and tables of a page, and all its characters."""
    text = _characters(textpage)
    drawn = [_Drawn(grid) for grid in grids(*_rules(page))]
    found: list[tuple[Line, _Drawn | None]] = []
    places: list[Sequence[int]] = []
    for match in _LINE.finditer(text):
        visible = [match.start() + offset for offset, character in enumerate(match[0]) if not character.isspace()]
        if not visible or not cleaned(match[0]):
            continue
        table = next((each for each in drawn if each.takes(textpage, text, visible)), None)
        found.append((_line(textpage, text, match.start(), match.end(), visible), table))
        places.append(visible)
    others = _of_other_fonts(textpage, places)
    items: list[Item] = []
    lines = [
        replace(line, is_bold=True) if is_other else line for (line, _), is_other in zip(found, others, strict=True)
    ]
    for line, (_, table) in zip(lines, found, strict=True):
        if table is not None:
            table.lines.append(line)
    made = {id(table): table.made() for table in drawn}
    for line, (_, table) in zip(lines, found, strict=True):
        ruled = made[id(table)] if table else None
        if ruled is None:
            items.append(line)
        elif table and table.lines[0] is line:
            items.append(ruled)
    return _in_order(items), text


def _in_order(items: Sequence[Item]) -> list[Item]:
    """The items as they are read: programs write what stands beside or above others at another time, at times."""
    ordered: list[Item] = []
    waiting: list[list[Line]] = []
    for run in _runs(items):
        if isinstance(run, Ruled):
            ordered.append(run)
            continue
        boxes = [box for box in waiting if _stands_beside(box, run)][::-1]
        moved = {id(line) for box in boxes for line in box}
        if moved:
            ordered = [item for item in ordered if id(item) not in moved]
        waiting = [box for box in waiting if id(box[0]) not in moved] + ([run] if len(run) <= _MOST_BESIDE else [])
        waiting = waiting[-_MOST_BOXES:]
        place = len(ordered)
        while place and isinstance(above := ordered[place - 1], Ruled) and run[0].baseline > above.top:
            place -= 1
        ordered[place:place] = _with_boxes(run, boxes)
    return ordered


def _runs(items: Sequence[Item]) -> Iterator[list[Line] | Ruled]:
    """Lines that go down the page one after the other, and tables."""
    run: list[Line] = []
    for item in items:
        if run and not (
            isinstance(item, Line)
            and -NEAR <= run[-1].baseline - item.baseline <= _BOX_STEP * max(item.size, run[-1].size)
            and item.left < max(line.right for line in run[-3:])
            and item.right > min(line.left for line in run[-3:])
        ):
            yield run
            run = []
        if isinstance(item, Line):
            run.append(item)
        else:
            yield item
    if run:
        yield run


def _stands_beside(box: Sequence[Line], run: Sequence[Line]) -> bool:
    """Whether a box that was written before some text stands within its height, at its right: at its left is a column."""
    if not run[-1].baseline < box[0].baseline < run[0].baseline - NEAR:
        return False
    left = min(line.left for line in box)
    return all(line.right <= left for line in run if box[-1].baseline - NEAR <= line.baseline <= box[0].baseline + NEAR)


def _with_boxes(run: Sequence[Line], boxes: Sequence[Sequence[Line]]) -> list[Line]:
    """Each box before the paragraph that it begins beside."""
    lines = list(run)
    for box in boxes:
        place = next(number for number, line in enumerate(lines) if line.baseline <= box[0].baseline + NEAR)
        while place and lines[place - 1].baseline - lines[place].baseline <= _PARAGRAPH_STEP * lines[place].size:
            place -= 1
        lines[place:place] = box
    return lines


class _Drawn:
    """A grid, and the text that has been found in its cells."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._texts: dict[tuple[int, int], list[str]] = {}
        self.lines: list[Line] = []  # that begin in it

    def takes(self, textpage: pypdfium2.PdfTextPage, text: str, visible: Sequence[int]) -> bool:
        """Whether a line begins in the grid; its characters go to the cells that they stand in."""
        box = _box(textpage, visible[0])
        if self._place(box) is None:
            return False
        place, start = None, visible[0]
        for index in visible:
            here = self._place(_box(textpage, index)) or place
            if here != place:
                self._add(place, text[start:index])
                place, start = here, index
        self._add(place, text[start : visible[-1] + 1])
        return True

    def _place(self, box: pdfium.FS_RECTF) -> tuple[int, int] | None:
        place = self._grid.place((box.left + box.right) / 2, (box.top + box.bottom) / 2)
        return None if place is None else self._grid.owner.get(place, place)

    def _add(self, place: tuple[int, int] | None, text: str) -> None:
        if place is not None and (words := cleaned(text)):
            self._texts.setdefault(place, []).append(words)

    def made(self) -> Ruled | None:
        """The table; None where the grid is a frame around something else."""
        rows = self._grid.rows({place: join_lines(texts) for place, texts in self._texts.items()})
        cells = [cell for row in rows for cell in row]
        if not rows or len(rows[0]) < 2 or sum(map(bool, cells)) < _LEAST_FILLED * len(cells):
            return None
        return Ruled(tuple(map(tuple, rows)), self._grid.lefts, self._grid.tops[0], tuple(self.lines))


def _characters(textpage: pypdfium2.PdfTextPage) -> str:
    """Exactly one character for each index, so that positions in a line lead back to the page."""
    codes = (pdfium.FPDFText_GetUnicode(textpage, index) for index in range(textpage.count_chars()))
    return _SYMBOLS.sub("•", "".join(chr(code) if code < 0x110000 else "\ufffd" for code in codes))


def _line(textpage: pypdfium2.PdfTextPage, text: str, start: int, stop: int, visible: Sequence[int]) -> Line:
    first, last = _box(textpage, visible[0]), _box(textpage, visible[-1])
    height = first.top - first.bottom
    cuts = [
        (before, after)
        for before, after in pairwise(visible)
        if after - before > 1
        and not LIST_MARK.fullmatch(text[start : before + 1])
        and _box(textpage, after).left - _box(textpage, before).right > _CELL_GAP * height
    ]
    edges = zip([start, *(after for _, after in cuts)], [*(before + 1 for before, _ in cuts), stop], strict=True)
    boxes = [first, *(_box(textpage, each) for cut in cuts for each in cut), last]
    cells = tuple(
        Cell(words, boxes[2 * number].left, boxes[2 * number + 1].right)
        for number, (begin, end) in enumerate(edges)
        if (words := cleaned(text[begin:end]))
    )
    x, y = ctypes.c_double(), ctypes.c_double()
    pdfium.FPDFText_GetCharOrigin(textpage, visible[0], x, y)
    return Line(
        " | ".join(cell.text for cell in cells),
        left=first.left,
        right=last.right,
        baseline=y.value,
        height=height,
        size=round(_size(textpage, visible[0]) * 2) / 2,
        is_bold=all(_is_bold(textpage, index) for index in (visible[0], visible[-1])),
        cells=cells if len(cells) > 1 else (),
    )


def _size(textpage: pypdfium2.PdfTextPage, index: int) -> float:
    """In points on the page: the size of the font as its matrix scales it."""
    matrix = pdfium.FS_MATRIX()
    size = pdfium.FPDFText_GetFontSize(textpage, index)
    if pdfium.FPDFText_GetMatrix(textpage, index, matrix):
        size *= (matrix.b**2 + matrix.d**2) ** 0.5 or 1.0
    return float(size)


def _is_bold(textpage: pypdfium2.PdfTextPage, index: int) -> bool:
    if pdfium.FPDFText_GetFontWeight(textpage, index) >= _BOLD_WEIGHT:
        return True
    name, flags = ctypes.create_string_buffer(128), ctypes.c_int()
    pdfium.FPDFText_GetFontInfo(textpage, index, name, len(name), flags)
    return bool(_BOLD_NAME.search(name.value.decode("latin-1")))


def _of_other_fonts(textpage: pypdfium2.PdfTextPage, lines: Sequence[Sequence[int]]) -> list[bool]:
    """Which lines are written in fonts of their own, where fonts have no names that would tell a bold one.

    Such fonts hold 256 letters at most, so a text takes several; those that stand in one line are of one face.
    """
    fonts = [
        {name for index in line[:: max(1, len(line) // _SAMPLED)] if (name := _nameless(textpage, index))}
        for line in lines
    ]
    face: dict[int, int] = {}

    def first(font: int) -> int:
        while face.setdefault(font, font) != font:
            font = face[font]
        return font

    for each in fonts:
        for font in each:
            face[first(font)] = first(next(iter(each)))
    lengths: Counter[int] = Counter()
    for line, each in zip(lines, fonts, strict=True):
        if each:
            lengths[first(next(iter(each)))] += len(line)
    usual = lengths.most_common(1)[0][0] if lengths else 0
    return [bool(each) and first(next(iter(each))) != usual for each in fonts]


def _nameless(textpage: pypdfium2.PdfTextPage, index: int) -> int:
    """What tells a font without a name from others of the page; 0 for one with a name."""
    shape = pdfium.FPDFText_GetTextObject(textpage, index)
    font = pdfium.FPDFTextObj_GetFont(shape) if shape else None
    if not font or pdfium.FPDFFont_GetBaseFontName(font, None, 0) > 1:
        return 0
    return ctypes.addressof(font.contents)


def _box(textpage: pypdfium2.PdfTextPage, index: int) -> pdfium.FS_RECTF:
    box = pdfium.FS_RECTF()
    pdfium.FPDFText_GetLooseCharBox(textpage, index, box)
    return box


def _rules(page: Page) -> tuple[list[Rule], list[Rule]]:
    """The horizontal and the vertical rules that are drawn on a page: thin shapes, and the edges of stroked ones."""
    across: list[Rule] = []
    down: list[Rule] = []
    for one, other in _edges_of(page):
        (x1, y1), (x2, y2) = one, other
        if abs(y1 - y2) <= 1 < abs(x1 - x2):
            across.append(Rule((y1 + y2) / 2, min(x1, x2), max(x1, x2)))
        elif abs(x1 - x2) <= 1 < abs(y1 - y2):
            down.append(Rule((x1 + x2) / 2, min(y1, y2), max(y1, y2)))
    return across, down


Point = tuple[float, float]


def _edges_of(page: Page) -> Iterator[tuple[Point, Point]]:
    left = _MOST_POINTS
    for shape in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_PATH], max_depth=3):
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
        points = list(_points(shape))
        yield from pairwise(points)


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
