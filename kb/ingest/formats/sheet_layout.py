"""What the library's fast reading of a sheet leaves out: merged cells, what is hidden, links, formulas without a value.

They stand in the sheet's XML around its cells, and are read row by row, so that a large sheet takes no more memory than
a small one.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, NamedTuple

from lxml import etree
from openpyxl.packaging.relationship import get_dependents, get_rels_path
from openpyxl.utils import column_index_from_string, get_column_letter, range_boundaries

_MAIN: Final = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_STRICT: Final = "{http://purl.oclc.org/ooxml/spreadsheetml/main}"
_READ: Final = tuple(
    f"{space}{name}" for space in (_MAIN, _STRICT) for name in ("row", "col", "mergeCell", "hyperlink")
)
_RELATION: Final = (
    "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id",
    "{http://purl.oclc.org/ooxml/officeDocument/relationships}id",
)
_LINK_FORMULA: Final = re.compile(r'\s*(?:_xlfn\.)?HYPERLINK\(\s*"((?:https?|mailto):[^"]+)"', re.IGNORECASE)
_ADDRESS: Final = re.compile(r"(?:https?|mailto|ftp):\S", re.IGNORECASE)
# Excel's own limits, and as many as people make by hand.
_MAX_COLUMN: Final = 16_384
_MOST_MERGED: Final = 50_000
_MOST_LINKS: Final = 100_000
_MOST_SPANNING: Final = 2_000
_MOST_NAMED: Final = 20
# A longer text that is merged over rows is a remark beside them, not a value of each.
_MOST_REPEATED: Final = 500


class Merged(NamedTuple):
    """Cells merged into one, by their first and last row and column, which count from 1."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def is_wide(self) -> bool:
        return self.right > self.left


@dataclass
class Layout:
    """Rows and columns count from 1; `uncached` are names of cells, of which the first are kept."""

    hidden_rows: set[int] = field(default_factory=set)
    hidden_columns: set[int] = field(default_factory=set)
    merged: list[Merged] = field(default_factory=list)
    links: dict[tuple[int, int], str] = field(default_factory=dict)
    uncached: list[str] = field(default_factory=list)

    def hidden_names(self) -> list[str]:
        """Such as 3:5 and C:D, as formulas name them."""
        rows = [f"{first}:{last}" for first, last in _runs(self.hidden_rows)]
        columns = [
            f"{get_column_letter(first)}:{get_column_letter(last)}" for first, last in _runs(self.hidden_columns)
        ]
        return shortened([*columns, *rows])


def shortened(names: Sequence[str]) -> list[str]:
    return [*names[:_MOST_NAMED], *(["…"] if len(names) > _MOST_NAMED else [])]


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def layout_of(sheet: Any) -> Layout:
    """Reads the XML of a sheet that openpyxl has opened for reading only."""
    archive, layout, counted = sheet.parent._archive, Layout(), 0
    addresses = _addresses(archive, sheet._worksheet_path)
    with archive.open(sheet._worksheet_path) as source:
        options = {"resolve_entities": False, "no_network": True, "load_dtd": False, "huge_tree": True}
        for _event, element in etree.iterparse(source, events=("end",), tag=_READ, **options):
            kind = element.tag.rpartition("}")[2]
            if kind == "row":
                counted = int(element.get("r") or counted + 1)
                _row(layout, counted, element)
            elif kind == "col" and _is_true(element.get("hidden")):
                first, last = int(element.get("min", 1)), int(element.get("max", 1))
                layout.hidden_columns.update(range(max(1, first), min(last, _MAX_COLUMN) + 1))
            elif kind == "mergeCell" and len(layout.merged) < _MOST_MERGED:
                with suppress(ValueError, TypeError):
                    left, top, right, bottom = range_boundaries(element.get("ref", ""))
                    layout.merged.append(Merged(top, left, bottom, right))
            elif kind == "hyperlink" and len(layout.links) < _MOST_LINKS:
                _link(layout, element, addresses)
            _forget(element)
    layout.merged.sort()
    return layout


def _row(layout: Layout, number: int, row: Any) -> None:
    if _is_true(row.get("hidden")):
        layout.hidden_rows.add(number)
        return
    for formula in row.iter(f"{_MAIN}f", f"{_STRICT}f"):
        cell = formula.getparent()
        name = cell.get("r") or ""
        value = cell.find(f"{formula.tag[:-1]}v")
        if (value is None or not value.text) and cell.get("t") != "str":
            layout.uncached.append(name)
            del layout.uncached[_MOST_NAMED + 1 :]
        if (found := _LINK_FORMULA.match(formula.text or "")) and (column := re.match("[A-Z]{1,3}", name)):
            layout.links[number, column_index_from_string(column[0])] = found[1]


def _link(layout: Layout, element: Any, addresses: Mapping[str, str]) -> None:
    address = next((addresses[found] for name in _RELATION if (found := element.get(name)) in addresses), "")
    if not _ADDRESS.match(address):
        return
    with suppress(ValueError, TypeError):
        left, top, _right, _bottom = range_boundaries(element.get("ref", ""))
        layout.links[top, left] = address


def _addresses(archive: Any, path: str) -> dict[str, str]:
    """Addresses outside the file by the names that the sheet's links give them."""
    try:
        return {link.Id: link.Target for link in get_dependents(archive, get_rels_path(path)) if link.TargetMode}
    except KeyError:  # it links to nothing
        return {}


def _is_true(value: str | None) -> bool:
    return value in ("1", "true", "on")


def _forget(element: Any) -> None:
    element.clear()
    while element.getprevious() is not None:
        del element.getparent()[0]


class MergedCells:
    """The merged cells of a sheet, whose rows are asked for in ascending order.

    A value that is merged over rows is one of each of them, so that each is whole by itself.
    """

    def __init__(self, merged: Sequence[Merged]) -> None:
        self._merged = merged
        self._next = 0
        self._spanning: list[tuple[Merged, str]] = []

    def fill(self, number: int, texts: list[str]) -> None:
        """Fills the first column of what was merged in rows above into a row's texts."""
        self._spanning = [(each, text) for each, text in self._spanning if each.bottom >= number]
        for each, text in self._spanning:
            if each.left <= len(texts) and not texts[each.left - 1]:
                texts[each.left - 1] = text
            elif each.left == len(texts) + 1:
                texts.append(text)
        while self._next < len(self._merged) and self._merged[self._next].top <= number:
            each = self._merged[self._next]
            self._next += 1
            text = texts[each.left - 1] if each.top == number and each.left <= len(texts) else ""
            if each.bottom > number and 0 < len(text) <= _MOST_REPEATED and len(self._spanning) < _MOST_SPANNING:
                self._spanning.append((each, text))

    def at(self, number: int) -> list[Merged]:
        """Those that begin in a row."""
        first = bisect_left(self._merged, (number, 0, 0, 0))
        return list(takewhile(lambda each: each.top == number, self._merged[first : first + _MOST_SPANNING]))
