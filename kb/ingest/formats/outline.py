"""What readers share: lines of a page joined into paragraphs, headings and blocks collected into sections."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from kb.ingest.parser.parsed import Region, Section

# Scripts that put no space between words.
CJK = "\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_CJK_END = re.compile(f"[{CJK}“‘…—]")
_CJK_START = re.compile(f"[{CJK}”’…—]")
_CJK_LINE_BREAK = re.compile(f"(?<=[{CJK}])[^\\S\\n]*\\n\\s*(?=[{CJK}])")
_HYPHENATED = re.compile(r"[^\W\d_]-")
BAR = "\\|"  # a bar within a cell
_SENTENCE_END = re.compile(r"[。！？；：.!?:;…][”’」』）》\"')\]]*$")
LIST_MARK = re.compile(
    r"^(?:[•●○■□◆▪–·*]\s*|-\s+|\(?\d{1,3}[.)、\uff0e]\s?(?!\d)|[（(][一二三四五六七八九十\d]{1,3}[)）]|[一二三四五六七八九十]{1,3}、"
    r"|第[一二三四五六七八九十百千零〇\d]{1,7}[编章节条])"
)

# Thresholds in line heights or in shares of the usual line; they follow how books and office documents are set.
_PARAGRAPH_STEP = 1.35
_INDENT = 1.2
_SIZE_CHANGE = 0.25
_SHORT_LINE = 0.6
_NEARLY_FULL_LINE = 0.95
_NEIGHBOURS = 4
_ROW_STEP = 3.5
_COLUMN = 4.0
# A table with longer cells lays out a page; of its equal cells that follow each other the longer ones are merged ones.
_MOST_CELL = 500
_SEPARATOR = "\n\n"
_MOST_MERGED = 20


class Block(NamedTuple):
    """A heading, a paragraph or a table, and the regions of its text."""

    text: str
    regions: Sequence[Region] = ()


class Cell(NamedTuple):
    """Words of a line that stand apart from its others, in points."""

    text: str
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a page, in points; baseline counts upwards.

    A line of two cells or more, with wide gaps between, is a row of a table. `size` is that of its letters, 0 where that
    is not known; `height` is that of the line. The region holds all its letters.
    """

    text: str
    left: float
    right: float
    baseline: float
    height: float
    size: float = 0.0
    is_bold: bool = False
    cells: tuple[Cell, ...] = ()
    region: Region | None = None

    @property
    def width(self) -> float:
        return self.right - self.left


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown; its first row is the header, and a line end within a cell becomes a space.

    Rows without text are left out, and short ones are filled up. What has one row or column only stays lines of text, and
    a table that lays out a page becomes its cells, one below the other.
    """
    if any(len(cell) > _MOST_CELL for row in rows for cell in row):
        cells = [cell for row in rows for cell in row if cell.strip()]
        is_merged = [len(one) > _MOST_MERGED and one == other for one, other in pairwise(["", *cells])]
        return "\n\n".join(cell for cell, again in zip(cells, is_merged, strict=True) if not again)
    width = max(map(len, rows), default=0)
    rows = [[*row, *[""] * (width - len(row))] for row in rows if any(map(str.strip, row))]
    if len(rows) < 2 or width < 2:
        return "\n".join(" | ".join(filter(str.strip, row)) for row in rows)
    written = [f"| {' | '.join(' '.join(cell.replace('|', BAR).split()) for cell in row)} |" for row in rows]
    return "\n".join([written[0], f"|{' --- |' * len(rows[0])}", *written[1:]])


def join_lines(lines: Iterable[str]) -> str:
    """One paragraph: Chinese lines meet without a space, others with one, and hyphenation is undone."""
    joined = ""
    for line in map(str.strip, lines):
        if not joined or not line:
            joined += line
        elif _HYPHENATED.fullmatch(joined[-2:]):
            joined = (joined[:-1] if line[0].islower() else joined) + line
        elif _CJK_END.match(joined[-1]) or _CJK_START.match(line):
            joined += line
        else:
            joined += f" {line}"
    return joined


def flow(text: str) -> str:
    """Collapses white space as a browser does, but a source line may end between two Chinese characters."""
    return re.sub(r"\s+", " ", _CJK_LINE_BREAK.sub("", text))


def paragraphs(lines: Sequence[Line]) -> list[Block]:
    """Groups the lines of one page by spacing, indent, size, list marks and short last lines."""
    if not lines:
        return []
    down = [step for above, below in pairwise(lines) if (step := above.baseline - below.baseline) > 0]
    step = median_low(down) if len(down) > 1 else 0.0
    full = _full_widths(lines)
    groups = [[lines[0]]]
    for index in range(1, len(lines)):
        last = groups[-1]
        if (
            not _goes_on(last, lines[index])
            if last[0].cells
            else _starts_paragraph(lines, index, step, full[index - 1])
        ):
            groups.append([])
        groups[-1].append(lines[index])
    blocks = (
        Block(_table(group), around(line.region for line in group)) if group[0].cells else paragraph(group)
        for group in groups
    )
    return [block for block in blocks if block.text]


def paragraph(lines: Sequence[Line]) -> Block:
    """Lines as one text, with a region for each column, or page, that they stand in."""
    runs: list[list[Line]] = []
    for number, line in enumerate(lines):
        if not number or line.baseline >= lines[number - 1].baseline:
            runs.append([])
        runs[-1].append(line)
    regions: list[Region] = []
    done: list[Line] = []
    for run in runs:
        start = len(join_lines(line.text for line in [*done, run[0]])) - len(run[0].text.strip())
        regions += (replace(each, start=start) for each in around(line.region for line in run))
        done += run
    return Block(join_lines(line.text for line in lines), regions)


def around(regions: Iterable[Region | None]) -> list[Region]:
    """One region of the same page around all; none where none is known."""
    known = [each for each in regions if each is not None and each.box is not None]
    if not known:
        return []
    lefts, tops, rights, bottoms = zip(*(each.box for each in known if each.box), strict=True)
    return [Region(page=known[0].page, box=(min(lefts), min(tops), max(rights), max(bottoms)))]


def section_of(blocks: Sequence[Block], page: int | None, path: tuple[str, ...]) -> Section:
    """Blocks as a section; where some have regions, those without are on its page, at no place that is known."""
    regions: list[Region] = []
    start = 0
    has_regions = any(block.regions for block in blocks)
    for block in blocks:
        own = block.regions or ([Region(page=page)] if has_regions else [])
        regions += (replace(each, start=start + each.start) for each in own)
        start += len(block.text) + len(_SEPARATOR)
    return Section(_SEPARATOR.join(block.text for block in blocks), page, path, regions=tuple(regions))


def _full_widths(lines: Sequence[Line]) -> list[float]:
    """How wide a full line is where each stands: lines that begin far from each other are of different columns or boxes."""
    columns: list[list[int]] = []
    last = 0.0
    for number, line in sorted(enumerate(lines), key=lambda numbered: numbered[1].left):
        if not columns or line.left - last > _COLUMN * line.height:
            columns.append([])
        columns[-1].append(number)
        last = line.left
    full = [0.0] * len(lines)
    for column in columns:
        width = sorted(lines[number].width for number in column)[3 * len(column) // 4]
        for number in column:
            full[number] = width
    return full


def _table(lines: Sequence[Line]) -> str:
    """Rows of cells by columns, which are what the cells of all rows leave free between them.

    A line of one cell, not of the first column, goes on with the row above.
    """
    spans: list[list[float]] = []
    for left, right in sorted((cell.left, cell.right) for line in lines for cell in _cells(line)):
        if spans and left <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], right)
        else:
            spans.append([left, right])
    starts = [left for left, _ in spans]
    rows: list[list[str]] = []
    for line in lines:
        placed = [""] * len(spans)
        for cell in _cells(line):
            column = bisect_right(starts, cell.left) - 1
            placed[column] = join_lines([placed[column], cell.text]) if placed[column] else cell.text
        if rows and not placed[0] and sum(map(bool, placed)) == 1:
            rows[-1] = [join_lines(filter(None, pair)) for pair in zip(rows[-1], placed, strict=True)]
        else:
            rows.append(placed)
    return markdown_table(rows) if len(rows) > 1 else "\n".join(line.text for line in lines)


def _cells(line: Line) -> tuple[Cell, ...]:
    return line.cells or (Cell(line.text, line.left, line.right),)


def _goes_on(table: Sequence[Line], line: Line) -> bool:
    """Whether a line is the next row of a table, or goes on below a cell of its last rows that is not the first."""
    above = table[-1]
    if not 0 < above.baseline - line.baseline <= _ROW_STEP * max(above.height, line.height):
        return False
    cells = [cell for row in table[-_NEIGHBOURS:] for cell in row.cells[1:]]
    return bool(line.cells) or any(abs(line.left - cell.left) < line.height for cell in cells)


def _starts_paragraph(lines: Sequence[Line], index: int, step: float, full: float) -> bool:
    above, line = lines[index - 1], lines[index]
    if _HYPHENATED.fullmatch(above.text[-2:]):
        return False
    height = max(above.height, line.height)
    if line.cells or LIST_MARK.match(line.text):
        return True
    if abs(above.height - line.height) > _SIZE_CHANGE * height:
        return True
    fall = above.baseline - line.baseline
    if fall <= 0:  # the next column: a sentence may run on there
        return bool(_SENTENCE_END.search(above.text))
    is_apart = step > 0 and fall > _PARAGRAPH_STEP * step
    return is_apart or line.left - above.left > _INDENT * height or _ends_early(lines, index - 1, full)


def _ends_early(lines: Sequence[Line], index: int, full: float) -> bool:
    """A last line is shorter than its neighbours; measured by width, so that columns do not matter."""
    line = lines[index]
    near = lines[max(0, index - _NEIGHBOURS) : index + _NEIGHBOURS + 1]
    usual = max(full, *(each.width for each in near if abs(each.left - line.left) <= _COLUMN * line.height))
    if line.width < _SHORT_LINE * usual:
        return True
    return bool(_SENTENCE_END.search(line.text)) and line.width < _NEARLY_FULL_LINE * usual


class Outline:
    """Builds sections in document order.

    A heading's words stay in the text of its section, so that they can be searched; a heading without text of
    its own is carried into the first section below it.
    """

    def __init__(self) -> None:
        self.first_heading = ""
        self._page: int | None = None
        self._sections: list[Section] = []
        self._path: list[tuple[int, str]] = []
        self._parts: list[Block] = []
        self._has_body = False

    def heading(self, level: int, text: str, regions: Sequence[Region] = ()) -> None:
        """Opens a section; level 1 is the highest. The regions are by their places in the text."""
        title = " ".join(text.split())
        if not title:
            return
        opens_below = bool(self._path) and level > self._path[-1][0]
        if self._has_body or not opens_below:
            self._close()
        self._path = [*(entry for entry in self._path if entry[0] < level), (level, title)]
        self._parts.append(Block(title, regions))
        self.first_heading = self.first_heading or title

    def turn(self, page: int) -> None:
        """Begins a page; what has text so far is a section of the page before."""
        if self._has_body:
            self._close()
        self._page = page

    def block(self, text: str, regions: Sequence[Region] = (), *, joined: bool = False) -> None:
        """Adds a paragraph; joined puts it on the next line, as a list item, not after a blank one."""
        if not text.strip():
            return
        if joined and self._has_body:
            above = self._parts[-1]
            below = (replace(each, start=each.start + len(above.text) + 1) for each in regions)
            self._parts[-1] = Block(f"{above.text}\n{text}", [*above.regions, *below])
        else:
            self._parts.append(Block(text, regions))
        self._has_body = True

    def sections(self) -> tuple[Section, ...]:
        self._close()
        return tuple(self._sections)

    def _close(self) -> None:
        if self._parts:
            self._sections.append(section_of(self._parts, self._page, tuple(title for _, title in self._path)))
        self._parts = []
        self._has_body = False
