"""Rows of a table to records, each value with the name of its column."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Final

from kb.ingest.formats.qa import ALTERNATIVE_NAMES, pair_columns
from kb.ingest.parser.parsed import ErrorCode, ParseError, Section, SectionKind

MAX_COLUMNS: Final = 2_000
# A title and some notes may stand above the header.
_HEADER_WITHIN = 10
_NUMBER = re.compile(r"[-+]?[\d.,\s]+%?|\d{1,4}[-/.年]\d{1,2}([-/.月]\d{1,4}日?)?.*")
_BLANK_LINES = re.compile(r"\s*\n\s*")

Row = Sequence[str]


def sections(rows: Iterable[Row], heading_path: tuple[str, ...] = ()) -> Iterator[Section]:
    """A section a record; a table whose header names questions and answers gives pairs.

    Args:
        rows: the table from the top; rows without text are left out.
        heading_path: of every section.

    Raises:
        ParseError: a row has more values than MAX_COLUMNS.
    """
    filled = filter(any, map(_cells, rows))
    first = list(islice(filled, _HEADER_WITHIN))
    start = _header_at(first)
    for row in first[: 0 if start is None else start]:
        yield Section(" | ".join(filter(None, row)), None, heading_path)
    if start is None:
        for row in chain(first, filled):
            yield Section(" | ".join(filter(None, row)), None, heading_path, SectionKind.RECORD)
        return
    header, records = first[start], chain(first[start + 1 :], filled)
    columns = pair_columns(header)
    for row in records:
        pair = columns and _pair(header, row, columns, heading_path)
        yield pair or Section(_record(header, row), None, heading_path, SectionKind.RECORD)


def _cells(row: Row) -> list[str]:
    """Values on lines without blank ones between, which separate records; empty cells at the end are cut off."""
    cells = [_BLANK_LINES.sub("\n", cell.strip()) for cell in row]
    while cells and not cells[-1]:
        cells.pop()
    if _filled(cells) > MAX_COLUMNS:
        raise ParseError(ErrorCode.TOO_MANY_COLUMNS, columns=MAX_COLUMNS)
    return cells


def _header_at(rows: Sequence[Row]) -> int | None:
    """The first row as wide as the table, if it reads like names: texts, each once, and something below it.

    A single column is a list, whose first entry names nothing.
    """
    width = max(map(_filled, rows), default=0)
    for index, row in enumerate(rows[:-1]):
        if _filled(row) > 1 and 2 * _filled(row) >= width:
            names = [cell for cell in row if cell]
            reads_like_names = len(set(names)) == len(names) and not any(map(_NUMBER.fullmatch, names))
            return index if reads_like_names else None
    return None


def _filled(row: Row) -> int:
    return sum(1 for cell in row if cell)


def _record(header: Row, row: Row) -> str:
    pairs = zip_longest(header, row, fillvalue="")
    return "\n".join(f"{name}: {value}" if name else value for name, value in pairs if value)


def _pair(header: Row, row: Row, columns: tuple[int, int], heading_path: tuple[str, ...]) -> Section | None:
    question, answer = (row[column] if column < len(row) else "" for column in columns)
    if not question or not answer:
        return None
    others = tuple(
        line
        for name, value in zip(header, row, strict=False)
        if name.strip().lower() in ALTERNATIVE_NAMES
        for line in value.split("\n")
        if line
    )
    return Section.pair(question, answer, alternatives=others, heading_path=heading_path)
