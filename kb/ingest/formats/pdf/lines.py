"""What stands on a page of a PDF, in the order in which it was written: lines of letters, and tables whose cells are drawn."""

import ctypes
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from statistics import median_low
from typing import Any, NamedTuple

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
_LONGEST_MARK = 12
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


Point = tuple[float, float]


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float


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
        kept = [any(column) for column in zip(*self.rows, strict=True)]
        return markdown_table([[cell for cell, is_kept in zip(row, kept, strict=True) if is_kept] for row in self.rows])

    def goes_on_with(self, other: "Ruled") -> bool:
        """Whether it has the columns of the other one, and not its header."""
        return (
            len(self.lefts) == len(other.lefts)
            and self.rows[0] != other.rows[0]
            and all(abs(mine - its) <= NEAR for mine, its in zip(self.lefts, other.lefts, strict=True))
        )


Item = Line | Ruled


def place_of(item: Item) -> float:
    """Its height on the page, in points from below: of a line its baseline, of a table its upper edge."""
    return item.top if isinstance(item, Ruled) else item.baseline


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


class _Letters:
    """The letters of a page as it is seen: upright, and with its lower left corner at 0, 0."""

    def __init__(self, page: Page, textpage: pypdfium2.PdfTextPage) -> None:
        self._raw = textpage
        self._turn = page.get_rotation()
        self._box = page.get_cropbox()
        codes = (pdfium.FPDFText_GetUnicode(textpage, index) for index in range(textpage.count_chars()))
        # Exactly one character for each index, so that positions in a line lead back to the page.
        self.text = _SYMBOLS.sub("•", "".join(chr(code) if code < 0x110000 else "\ufffd" for code in codes))

    def point(self, x: float, y: float) -> Point:
        left, bottom, right, top = self._box
        turned = {
            0: (x - left, y - bottom),
            90: (y - bottom, right - x),
            180: (right - x, top - y),
            270: (top - y, x - left),
        }
        return turned[self._turn]

    def box(self, index: int) -> Box:
        box = pdfium.FS_RECTF()
        pdfium.FPDFText_GetLooseCharBox(self._raw, index, box)
        (x1, y1), (x2, y2) = self.point(box.left, box.bottom), self.point(box.right, box.top)
        return Box(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))

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


def read_items(page: Page, textpage: pypdfium2.PdfTextPage) -> tuple[list[Item], str]:
    """The lines and tables of a page, and all its characters."""
    letters = _Letters(page, textpage)
    drawn = [_Drawn(grid) for grid in grids(*_rules(page, letters))]
    found: list[tuple[Line, _Drawn | None]] = []
    places: list[Sequence[int]] = []
    for match in _LINE.finditer(letters.text):
        visible = [match.start() + offset for offset, character in enumerate(match[0]) if not character.isspace()]
        if not visible or not cleaned(match[0]):
            continue
        table = next((each for each in drawn if each.takes(letters, visible)), None)
        found.append((_line(letters, match.start(), match.end(), visible), table))
        places.append(visible)
    others = _of_other_fonts(letters, places)
    lines = [
        replace(line, is_bold=True) if is_other else line for (line, _), is_other in zip(found, others, strict=True)
    ]
    for line, (_, table) in zip(lines, found, strict=True):
        if table is not None:
            table.lines.append(line)
    made = {id(table): table.made() for table in drawn}
    items: list[Item] = []
    for line, (_, table) in zip(lines, found, strict=True):
        ruled = made[id(table)] if table else None
        if ruled is None:
            items.append(line)
        elif table and table.lines[0] is line:
            items.append(ruled)
    return _in_order(items), letters.text


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
        while place and isinstance(above := ordered[place - 1], Ruled) and _stands_above(run, above):
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


def _stands_above(run: Sequence[Line], table: Ruled) -> bool:
    is_over = min(line.left for line in run) < table.lefts[-1] and max(line.right for line in run) > table.lefts[0]
    return is_over and run[0].baseline > table.top


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

    def takes(self, letters: _Letters, visible: Sequence[int]) -> bool:
        """Whether a line begins in the grid; its characters go to the cells that they stand in."""
        if self._place(letters.box(visible[0])) is None:
            return False
        place, start = None, visible[0]
        for index in visible:
            here = self._place(letters.box(index)) or place
            if here != place:
                self._add(place, letters.text[start:index])
                place, start = here, index
        self._add(place, letters.text[start : visible[-1] + 1])
        return True

    def _place(self, box: Box) -> tuple[int, int] | None:
        place = self._grid.place((box.left + box.right) / 2, (box.top + box.bottom) / 2)
        return None if place is None else self._grid.owner.get(place, place)

    def _add(self, place: tuple[int, int] | None, text: str) -> None:
        if place is not None and (words := cleaned(text)):
            self._texts.setdefault(place, []).append(words)

    def made(self) -> Ruled | None:
        """The table; None where the grid is a frame around something else."""
        rows = self._grid.rows({place: join_lines(texts) for place, texts in self._texts.items()})
        columns = [column for column in zip(*rows, strict=True) if any(column)]
        if len(columns) < 2 or sum(map(bool, chain(*columns))) < _LEAST_FILLED * len(columns) * len(rows):
            return None
        return Ruled(tuple(map(tuple, rows)), self._grid.lefts, self._grid.tops[0], tuple(self.lines))


def _line(letters: _Letters, start: int, stop: int, visible: Sequence[int]) -> Line:
    first, last = letters.box(visible[0]), letters.box(visible[-1])
    height = first.top - first.bottom
    cuts = [
        (before, after)
        for number, (before, after) in enumerate(pairwise(visible))
        if after - before > 1
        and not (number < _LONGEST_MARK and LIST_MARK.fullmatch(letters.text[visible[0] : before + 1]))
        and letters.box(after).left - letters.box(before).right > _CELL_GAP * height
    ]
    edges = zip([start, *(after for _, after in cuts)], [*(before + 1 for before, _ in cuts), stop], strict=True)
    boxes = [first, *(letters.box(each) for cut in cuts for each in cut), last]
    cells = tuple(
        Cell(words, boxes[2 * number].left, boxes[2 * number + 1].right)
        for number, (begin, end) in enumerate(edges)
        if (words := cleaned(letters.text[begin:end]))
    )
    sampled = visible[:: max(1, len(visible) // _SAMPLED)]
    return Line(
        " | ".join(cell.text for cell in cells),
        left=min(first.left, last.left),
        right=max(first.right, last.right),
        baseline=letters.baseline(visible[0]),
        height=height,
        size=round(median_low(letters.size(index) for index in sampled) * 2) / 2,
        is_bold=all(letters.is_bold(index) for index in (visible[0], visible[len(visible) // 2], visible[-1])),
        cells=cells if len(cells) > 1 else (),
    )


def _of_other_fonts(letters: _Letters, lines: Sequence[Sequence[int]]) -> list[bool]:
    """Which lines are written in fonts of their own, where fonts have no names that would tell a bold one.

    Such fonts hold 256 letters at most, so a text takes several; those that stand in one line are of one face.
    """
    fonts = [
        {name for index in line[:: max(1, len(line) // _SAMPLED)] if (name := letters.nameless_font(index))}
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


def _rules(page: Page, letters: _Letters) -> tuple[list[Rule], list[Rule]]:
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
