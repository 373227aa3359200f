"""The lines and the drawn tables of a page, made of its letters and rules."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from statistics import median_low

import pypdfium2

from kb.ingest.formats.outline import LIST_MARK, Cell, Line, join_lines
from kb.ingest.formats.pdf.grids import Grid, grids
from kb.ingest.formats.pdf.items import Item, Ruled
from kb.ingest.formats.pdf.letters import Box, Letters, Page, rules
from kb.ingest.formats.pdf.order import in_order
from kb.ingest.parser.parsed import Region

# PDFium puts one of these in place of a hyphen at the end of a line, and drops the line end.
_HYPHENS = str.maketrans("\x02\ufffe", "--")
_LINE = re.compile("[^\n\x02\ufffe]*[\n\x02\ufffe]?")
_UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd-\uffff]")
# A gap this wide, in line heights, separates table cells, unless it follows a list mark.
_CELL_GAP = 1.8
# Letters of a line whose fonts and sizes are looked at, and those of a list mark at most.
_SAMPLED = 12
_LONGEST_MARK = 12
# A table with fewer words in its cells is a frame around something else.
_LEAST_FILLED = 0.4


def cleaned(text: str) -> str:
    return _UNREADABLE.sub("", text.translate(_HYPHENS)).strip()


def read_items(page: Page, textpage: pypdfium2.PdfTextPage, number: int) -> tuple[list[Item], str]:
    """The lines and tables of a page, whose number is from 1, and all its characters."""
    letters = Letters(page, textpage)
    drawn = [_Drawn(grid) for grid in grids(*rules(page, letters))]
    found: list[tuple[Line, _Drawn | None]] = []
    places: list[Sequence[int]] = []
    for match in _LINE.finditer(letters.text):
        visible = [match.start() + offset for offset, character in enumerate(match[0]) if not character.isspace()]
        if not visible or not cleaned(match[0]):
            continue
        table = next((each for each in drawn if each.takes(letters, visible)), None)
        found.append((_line(letters, match.start(), match.end(), visible, number), table))
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
    return in_order(items), letters.text


class _Drawn:
    """A grid, and the text that has been found in its cells."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._texts: dict[tuple[int, int], list[str]] = {}
        self.lines: list[Line] = []  # that begin in it

    def takes(self, letters: Letters, visible: Sequence[int]) -> bool:
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


def _line(letters: Letters, start: int, stop: int, visible: Sequence[int], page: int) -> Line:
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
        region=Region(page=page, box=letters.share(visible[0], visible[-1] + 1)),
    )


def _of_other_fonts(letters: Letters, lines: Sequence[Sequence[int]]) -> list[bool]:
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
