"""What the places of recognised words tell: the sizes of their letters, and rows of tables."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from kb.ingest.formats.outline import CJK, Cell, Line, around
from kb.ingest.formats.pdf.items import Item

# How wide letters are, in sizes of the font: as in most faces, and near enough for a whole line.
_WIDTHS = (
    (f"[{CJK}]", 1.0),
    (r"[iljtfrI.,:;'!|()\[\] -]", 0.3),
    ("[mwMW%]", 0.85),
    (r"\d", 0.556),
    ("[A-Z]", 0.68),
    (".", 0.53),
)
_LETTERS = re.compile("|".join(f"({pattern})" for pattern, _ in _WIDTHS), re.DOTALL)
# Points that a box is wider than its words; a text of fewer sizes is too short to be measured.
_MARGIN = 2.0
_LEAST_WIDTH = 2.5
# A line is larger than text from here on; sizes that are nearer to each other than this are one.
_LARGER = 1.12
_SAME = 0.92
# Boxes of a row differ in height by less than this, and cells are apart by more than that, in heights of lines.
_ROW_STEP = 0.4
_CELL_GAP = 0.8
# Rows of a table, at least, and the share of their columns that text fills, at most: columns of text are fuller.
_LEAST_ROWS = 2
# Columns of text have so many lines, and such a share of those of their page, at least, and are so many lines' heights wide.
_LEAST_LINES = 4
_COLUMN = 0.25
_LEAST_COLUMN = 7
_MOST_FILLED = 0.85


def size_by_width(text: str, width: float) -> float:
    """The size of the letters of a line, in points: its height tells less, since not every line has high and low ones.

    0 for a line that is too short.
    """
    widths = sum(_WIDTHS[found.lastindex - 1][1] for found in _LETTERS.finditer(text) if found.lastindex)
    return max(0.0, width - _MARGIN) / widths if widths >= _LEAST_WIDTH else 0.0


def with_sizes(pages: Sequence[Sequence[Item]], numbers: Sequence[int]) -> list[Sequence[Item]]:
    """The pages, those of the numbers (from 1) with one size for their text, and one for each kind of larger lines."""
    lines = [item for number in numbers for item in pages[number - 1] if isinstance(item, Line)]
    known = sorted((line.size, len(line.text)) for line in lines if line.size and not line.cells)
    if not known:
        return list(pages)
    usual = median(size for size, length in known for _ in range(length))
    sizes: dict[float, float] = {}
    largest = above = float("inf")
    for size, _length in reversed(known):
        if size < _LARGER * usual:
            break
        largest = largest if size >= _SAME * above else size
        above = sizes[size] = size
        sizes[size] = largest
    return [
        [
            replace(item, size=usual if item.cells else sizes.get(item.size, usual)) if isinstance(item, Line) else item
            for item in page
        ]
        if number in numbers
        else page
        for number, page in enumerate(pages, start=1)
    ]


def in_order(lines: Sequence[Line]) -> list[Line]:
    """The lines of a page as they are read: column by column between those that cross all of them, tables in rows."""
    cuts = [cut for line in lines if (cut := _gutter(lines, line.left)) is not None]
    if not cuts:
        return in_rows(lines)
    cut = min(cuts, key=lambda place: sum(line.left < place < line.right for line in lines))
    ordered: list[Line] = []
    left: list[Line] = []
    right: list[Line] = []
    for line in [*sorted(lines, key=lambda line: -_middle(line)), None]:
        if line is None or line.left < cut < line.right:
            ordered += [*in_order(left), *in_order(right), *([line] if line else [])]
            left, right = [], []
        else:
            (left if line.right <= cut else right).append(line)
    return ordered


def _gutter(lines: Sequence[Line], left: float) -> float | None:
    """A place between two columns of text of which the second begins at `left`; None where there is none."""
    cut = left - 1
    before = [line for line in lines if line.right <= cut]
    after = [line for line in lines if line.left >= cut]
    if min(len(before), len(after)) < max(_LEAST_LINES, _COLUMN * len(lines)):
        return None
    width = left - min(line.left for line in before)
    usual = [median(line.width for line in side) for side in (before, after)]
    is_text = min(usual) >= _LEAST_COLUMN * median(line.height for line in lines)
    return cut if is_text and usual[0] >= _MOST_FILLED * width else None


def in_rows(lines: Sequence[Line]) -> list[Line]:
    """The lines with those that stand beside each other as cells of one, where they are rows of a table."""
    rows: list[list[Line]] = []
    for line in lines:
        row = next((row for row in rows[-1:-4:-1] if _is_beside(line, row)), None)
        if row is None:
            rows.append([line])
        else:
            row.append(line)
    ordered = [sorted(row, key=lambda line: line.left) for row in rows]
    order = {id(line): place for place, line in enumerate(lines)}
    found: list[Line] = []
    for run in _runs(ordered):
        is_table = sum(len(row) > 1 for row in run) >= _LEAST_ROWS and _filled(run) < _MOST_FILLED
        found += (
            map(_row, run)
            if is_table
            else sorted((line for row in run for line in row), key=lambda line: order[id(line)])
        )
    return found


def _is_beside(line: Line, row: Sequence[Line]) -> bool:
    return all(
        max(line.left - other.right, other.left - line.right) > _CELL_GAP * other.height
        and abs(_middle(line) - _middle(other)) < _ROW_STEP * min(line.height, other.height)
        for other in row
    )


def _middle(line: Line) -> float:
    return line.baseline + line.height / 2


def _runs(rows: Sequence[Sequence[Line]]) -> Iterator[list[Sequence[Line]]]:
    """Rows that follow each other, with the lines below a cell that is not the first; other lines by themselves."""
    run: list[Sequence[Line]] = []
    for row in rows:
        goes_on = len(row) > 1 or any(
            abs(row[0].left - cell.left) < row[0].height for above in run[-2:] for cell in above[1:]
        )
        if run and not (goes_on and (len(run) > 1 or len(run[0]) > 1)):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def _filled(run: Sequence[Sequence[Line]]) -> float:
    """How much of the way from a cell to the next its text takes, of most rows."""
    shares = [line.width / (other.left - line.left) for row in run for line, other in pairwise(row)]
    return median(shares) if shares else 1.0


def _row(cells: Sequence[Line]) -> Line:
    first = cells[0]
    if len(cells) == 1:
        return first
    return replace(
        first,
        text=" | ".join(cell.text for cell in cells),
        right=cells[-1].right,
        cells=tuple(Cell(cell.text, cell.left, cell.right) for cell in cells),
        region=next(iter(around(cell.region for cell in cells)), None),
    )
