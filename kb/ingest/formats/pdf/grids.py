"""Tables whose cells are drawn: from the rules on a page to rows of text."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

# Points: rules that are this near are one, and meet.
NEAR = 2.0
_MOST_RULES = 2_000
_MOST_CELLS = 10_000
_MOST_GRIDS = 50


class Rule(NamedTuple):
    """A line along one axis, in points: at `at` on the other axis, from `start` to `stop`."""

    at: float
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells between rules. `lefts` and `tops` hold the edges of columns, ascending, and of rows, descending, the last included.

    `owner` is the place, (row, column), of the first cell of a merged one, by each place that it covers.
    """

    lefts: tuple[float, ...]
    tops: tuple[float, ...]
    owner: dict[tuple[int, int], tuple[int, int]]

    def place(self, x: float, y: float) -> tuple[int, int] | None:
        """The cell that a point lies in; None outside of the grid."""
        if not (self.lefts[0] <= x <= self.lefts[-1] and self.tops[-1] <= y <= self.tops[0]):
            return None
        column = min(bisect_right(self.lefts, x), len(self.lefts) - 1) - 1
        row = min(bisect_right(self.tops, -y, key=lambda top: -top), len(self.tops) - 1) - 1
        return self.owner.get((row, column), (row, column))

    def rows(self, texts: dict[tuple[int, int], str]) -> list[list[str]]:
        """The text of each cell, that of a merged one in each place that it covers; rows without any are left out."""
        cells = [
            [texts.get(self.owner.get((row, column), (row, column)), "") for column in range(len(self.lefts) - 1)]
            for row in range(len(self.tops) - 1)
        ]
        return [row for row in cells if any(row)]


def grids(horizontal: Sequence[Rule], vertical: Sequence[Rule]) -> list[Grid]:
    """All grids of at least two rows or two columns that rules make, each of those that meet."""
    across, down = _joined(horizontal), _joined(vertical)
    if len(across) + len(down) > _MOST_RULES:
        return []
    found = []
    for rows, columns in _meeting(across, down):
        lefts, tops = _edges(rule.at for rule in columns), _edges(rule.at for rule in rows)[::-1]
        count = (len(lefts) - 1) * (len(tops) - 1)
        if 1 < count <= _MOST_CELLS:
            found.append(Grid(tuple(lefts), tuple(tops), _owners(lefts, tops, rows, columns)))
    return sorted(found, key=lambda grid: -len(grid.lefts) * len(grid.tops))[:_MOST_GRIDS]


def _joined(rules: Sequence[Rule]) -> list[Rule]:
    """Rules on one line that touch become one."""
    joined: list[Rule] = []
    level: list[Rule] = []
    for rule in [*sorted(rules), Rule(float("inf"), 0, 0)]:
        if level and rule.at - level[0].at > NEAR:
            level.sort(key=lambda each: each.start)
            start, stop = level[0].start, level[0].stop
            for each in level[1:]:
                if each.start > stop + NEAR:
                    joined.append(Rule(level[0].at, start, stop))
                    start = each.start
                    stop = each.stop
                stop = max(stop, each.stop)
            joined.append(Rule(level[0].at, start, stop))
            level = []
        level.append(rule)
    return joined


def _meeting(across: Sequence[Rule], down: Sequence[Rule]) -> Iterator[tuple[list[Rule], list[Rule]]]:
    """The groups of rules that meet, directly or by way of others, of at least two of each kind."""
    group = list(range(len(across) + len(down)))

    def first(number: int) -> int:
        while group[number] != number:
            group[number] = number = group[group[number]]
        return number

    for row, flat in enumerate(across):
        for column, upright in enumerate(down, start=len(across)):
            if (
                flat.start - NEAR <= upright.at <= flat.stop + NEAR
                and upright.start - NEAR <= flat.at <= upright.stop + NEAR
            ):
                group[first(column)] = first(row)
    members: dict[int, tuple[list[Rule], list[Rule]]] = defaultdict(lambda: ([], []))
    for number in range(len(group)):
        rows, columns = members[first(number)]
        if number < len(across):
            rows.append(across[number])
        else:
            columns.append(down[number - len(across)])
    yield from (each for each in members.values() if min(map(len, each)) > 1)


def _edges(places: Iterator[float] | Sequence[float]) -> list[float]:
    edges: list[float] = []
    for place in sorted(places):
        if not edges or place - edges[-1] > NEAR:
            edges.append(place)
    return edges


def _owners(
    lefts: Sequence[float], tops: Sequence[float], rows: Sequence[Rule], columns: Sequence[Rule]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Cells without a rule between them are one."""
    beside = [[rule for rule in columns if abs(rule.at - left) <= NEAR] for left in lefts]
    above = [[rule for rule in rows if abs(rule.at - top) <= NEAR] for top in tops]

    def is_drawn(rules: Sequence[Rule], middle: float) -> bool:
        return any(rule.start <= middle <= rule.stop for rule in rules)

    owner: dict[tuple[int, int], tuple[int, int]] = {}
    for row, (top, bottom) in enumerate(pairwise(tops)):
        for column, (left, right) in enumerate(pairwise(lefts)):
            if column and not is_drawn(beside[column], (top + bottom) / 2):
                owner[row, column] = owner.get((row, column - 1), (row, column - 1))
            elif row and not is_drawn(above[row], (left + right) / 2):
                owner[row, column] = owner.get((row - 1, column), (row - 1, column))
    return owner
