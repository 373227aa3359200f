"""What stands on a page: lines, and tables that are drawn."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kb.ingest.formats.outline import Line, markdown_table
from kb.ingest.formats.pdf.grids import NEAR


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
