"""Tables on a sheet: where each begins, its title and its header; each row below is a record.

Rows are read one after the other. A table's columns and header are found by its first rows, so that of a long table no
more than these are held.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from typing import Final, NamedTuple

from kb.ingest.formats.records import header_at, looks_like_names, record_sections
from kb.ingest.formats.sheet_layout import Merged
from kb.ingest.parser.parsed import Section, SectionKind

_LOOKAHEAD: Final = 20
_MOST_HEADER_ROWS: Final = 3
_MOST_TITLE: Final = 120


class SheetRow(NamedTuple):
    """Texts of a row by column, those of numbers and dates (`typed`, from 0), and the merged cells that begin in it."""

    texts: Sequence[str]
    typed: frozenset[int] = frozenset()
    merged: Sequence[Merged] = ()

    def part(self, left: int, right: int | None) -> "SheetRow":
        """The same row, of which only some columns are filled, from 0 and without the last."""
        texts = [*[""] * min(left, len(self.texts)), *self.texts[left:right]]
        return self._replace(texts=texts if any(texts) else ())

    @property
    def filled(self) -> list[int]:
        return [column for column, text in enumerate(self.texts) if text]


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns from `left`, and before `right` where another table begins; no header: a list, or rows without names."""

    left: int
    right: int | None
    title: str = ""
    notes: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    typed: frozenset[int] = frozenset()
    rows: tuple[SheetRow, ...] = field(default=(), repr=False)


def sections(
    rows: Iterable[SheetRow], path: tuple[str, ...], hidden: frozenset[int] = frozenset()
) -> Iterator[Section]:
    """What a sheet holds, in its order; `hidden` are columns, from 0, which keep nothing apart.

    A table ends at an empty row where what follows has a header of its own; two tables beside each other stand at least
    a column apart. The title of a table is a heading above its records.
    """
    known: list[_Table] = []
    waiting: list[str] = []  # lines that stand by themselves: the last of them may be a table's title
    for is_filled, block in groupby(rows, key=lambda row: any(row.texts)):
        if not is_filled:
            continue
        rest = iter(block)
        first = list(islice(rest, _LOOKAHEAD))
        if len(first) == 1 and len(first[0].filled) == 1:
            waiting.append(first[0].texts[first[0].filled[0]])
            continue
        tables = _tables(first, hidden)
        for number, table in enumerate(tables):
            before = next((each for each in known if _has_columns_of(each, table)), None)
            if before and table.header and not waiting and not table.title and not _is_new(table, before):
                tables[number] = replace(table, header=(), rows=(SheetRow(table.header), *table.rows))
            if not tables[number].header and before and before.header:
                tables[number] = replace(tables[number], title=before.title, header=before.header, typed=before.typed)
        if waiting and tables[0].header and not tables[0].title and len(waiting[-1]) <= _MOST_TITLE:
            tables[0] = replace(tables[0], title=waiting.pop())
        yield from _lines(waiting, path)
        waiting = []
        yield from _written(tables, rest, path)
        known = [replace(table, rows=()) for table in tables]
    yield from _lines(waiting, path)


def _lines(lines: Iterable[str], path: tuple[str, ...]) -> Iterator[Section]:
    for line in lines:
        yield Section(line, None, path)


def _written(tables: Sequence[_Table], rest: Iterator[SheetRow], path: tuple[str, ...]) -> Iterator[Section]:
    """Sections of tables beside each other, one table after the other."""
    if len(tables) > 1:  # they are read together, and only what becomes of them is held
        rows = list(rest)
        for table in tables:
            yield from _records(table, (row.part(table.left, table.right) for row in rows), path)
    else:
        yield from _records(tables[0], rest, path)


def _records(table: _Table, rest: Iterable[SheetRow], path: tuple[str, ...]) -> Iterator[Section]:
    below = (*path, table.title) if table.title else path
    yield from _lines(table.notes, below)
    rows = (row.texts for row in chain(table.rows, rest) if any(row.texts))
    if table.header:
        yield from record_sections(table.header, (row for row in rows if tuple(row) != table.header), below)
    else:
        for row in rows:
            yield Section(" | ".join(filter(None, row)), None, below, SectionKind.RECORD)


def _has_columns_of(before: _Table, table: _Table) -> bool:
    """Whether all columns of a table are among those of the one above it."""
    columns = {column for row in table.rows for column in row.filled} | _named(table)
    return bool(columns) and columns <= _named(before)


def _named(table: _Table) -> set[int]:
    return {column for column, name in enumerate(table.header) if name}


def _is_new(table: _Table, before: _Table) -> bool:
    """Whether the first row below an empty one names columns, and is no record of the table before."""
    if table.header == before.header or _named(table) != _named(before):
        return True
    return bool(table.typed) if not before.typed else not before.typed.isdisjoint(_named(table))


def _tables(rows: Sequence[SheetRow], hidden: frozenset[int]) -> list[_Table]:
    """The tables of a block without empty rows, from left to right."""
    starts = _starts(rows, hidden)
    bounds = zip(starts, [*starts[1:], None], strict=True)
    parts = [(left, right, [row.part(left, right) for row in rows]) for left, right in bounds]
    found = [_table(left, right, part) for left, right, part in parts]
    # An empty column within a table keeps nothing apart
    if len(found) > 1 and not all(table.header for table in found):
        return [_table(0, None, rows)]
    return found


def _starts(rows: Sequence[SheetRow], hidden: frozenset[int]) -> list[int]:
    """The columns in which tables of two columns and more begin, from 0."""
    used = set(hidden)
    for row in rows:
        used.update(row.filled)
        for each in row.merged:
            used.update(range(each.left - 1, min(each.right, len(row.texts) + each.right - each.left)))
    starts, width, last = [0], 0, -1
    for column in sorted(used):
        if column > last + 1 and width > 1:
            starts.append(column)
            width = 0
        width += column not in hidden
        last = column
    if len(starts) > 1 and width < 2:
        starts.pop()
    return starts


def _table(left: int, right: int | None, rows: Sequence[SheetRow]) -> _Table:
    rows = [row for row in rows if any(row.texts)]
    above = 0
    while above < len(rows) and len(rows[above].filled) == 1:
        above += 1
    if above == len(rows):  # a list
        return _Table(left, right, rows=tuple(rows))
    notes, header, body = _header(rows[above:])
    if not header:
        return _Table(left, right, rows=tuple(rows))
    lines = [" | ".join(filter(None, row.texts)) for row in (*rows[:above], *notes)]
    title = lines.pop(0) if above and len(lines[0]) <= _MOST_TITLE else ""
    typed = frozenset(column for row in body for column in row.typed.intersection(row.filled))
    return _Table(left, right, title, tuple(lines), tuple(header), typed, tuple(body))


def _group_rows(rows: Sequence[SheetRow]) -> int:
    """How many rows hold headings over several columns each, above the row that names the columns."""
    count = 0
    while count < min(len(rows) - 2, _MOST_HEADER_ROWS - 1):
        filled = rows[count].filled
        wide = [each for each in rows[count].merged if each.is_wide and each.left - 1 in filled]
        below = rows[count + 1]
        if not wide or below.typed.intersection(below.filled):
            break
        count += 1
    return count


def _header(rows: Sequence[SheetRow]) -> tuple[Sequence[SheetRow], Sequence[str], Sequence[SheetRow]]:
    """The rows above the header, the names of the columns and the rows below; no names: the rows are records without."""
    if groups := _group_rows(rows):
        names = _joined(rows[: groups + 1])
        return (), (names if looks_like_names(names) else ()), rows[groups + 1 :]
    start = header_at([row.texts for row in rows])
    if start is None or rows[start].typed.intersection(rows[start].filled):
        return (), (), rows
    return rows[:start], rows[start].texts, rows[start + 1 :]


def _joined(rows: Sequence[SheetRow]) -> list[str]:
    """Names below the headings over them, such as "2025 / Q1"."""
    width = max(len(row.texts) for row in rows)
    names: list[list[str]] = [[] for _ in range(width)]
    for row in rows:
        texts = [*row.texts, *[""] * (width - len(row.texts))]
        for each in row.merged:
            if each.is_wide and each.left <= width:
                right = min(each.right, width)
                texts[each.left - 1 : right] = [texts[each.left - 1]] * (right - each.left + 1)
        for column, text in enumerate(texts):
            if text and text not in names[column]:
                names[column].append(text)
    return [" / ".join(name) for name in names]
