"""What stands in a document of the test bed: blocks in reading order, of which files and the truth are made alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Heading:
    """`level` 1 is the highest; the text holds its number, where it has one."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list; the text of an item stands without its mark."""

    texts: tuple[str, ...]
    is_numbered: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with as many header rows as given; all rows are of one length.

    A merged cell stands in each place that it covers, so that each value is read with the header of its column. A line
    end within a cell is a line end on the page.
    """

    rows: tuple[tuple[str, ...], ...]
    header_rows: int = 1
    is_ruled: bool = True
    caption: str = ""
    # (row, column) of the first place of a merged cell: rows and columns that it covers.
    merged: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Note:
    """A footnote of the page that it is referred to on; it is read after the block that refers to it."""

    mark: str
    text: str


@dataclass(frozen=True, slots=True)
class Aside:
    """A box beside the text, which is read after the block that it stands beside."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    caption: str


@dataclass(frozen=True, slots=True)
class Form:
    """Fields of a form with what was filled in."""

    fields: tuple[tuple[str, str], ...]


Block = Heading | Paragraph | Items | Table | Note | Aside | Picture | Form


@dataclass(frozen=True, slots=True)
class Document:
    """Blocks, and what is printed on every page beside them: `header` and `footer` are no part of the text.

    `{page}` in either stands for the number of the page.
    """

    language: str  # "zh", "en" or "mixed"
    blocks: tuple[Block, ...]
    header: str = ""
    footer: str = ""

    @property
    def headings(self) -> list[tuple[int, str]]:
        return [(block.level, block.text) for block in self.blocks if isinstance(block, Heading)]

    @property
    def tables(self) -> list[Table]:
        return [block for block in self.blocks if isinstance(block, Table)]

    @property
    def text(self) -> str:
        """All that is to be read, a line a block, an item or a row."""
        return "\n".join(line for block in self.blocks for line in lines_of(block))


def lines_of(block: Block) -> Iterator[str]:
    match block:
        case Heading() | Paragraph() | Note():
            yield block.text
        case Items() | Aside():
            yield from block.texts
        case Table():
            if block.caption:
                yield block.caption
            yield from map(" ".join, _once(block))
        case Picture():
            yield block.caption
        case Form():
            yield from map(" ".join, block.fields)


def _once(table: Table) -> Iterator[Sequence[str]]:
    """The rows with each merged cell in its first place only, as it is printed."""
    covered = {
        (row + down, column + across)
        for (row, column), (height, width) in table.merged.items()
        for down in range(height)
        for across in range(width)
        if down or across
    }
    for number, row in enumerate(table.rows):
        yield [text for column, text in enumerate(row) if (number, column) not in covered]
