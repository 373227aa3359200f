"""The text of a document as its readers see it: headings, paragraphs, lists and tables, as values that hold no markup.

A parser's child makes them of a file, and the server writes the page of them, so that nothing in a file is ever taken
for HTML.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, groupby
from typing import Final

from kb.ingest.parser.parsed import ParsedDocument, Region, Section, SectionKind

MOST_CHARACTERS: Final = 3_000_000
_LONGEST: Final = 4_000
_MOST_COLUMNS: Final = 40
_NAME: Final = re.compile(r"([^\n]{1,200}?): ")
_TABLE_LINE: Final = re.compile(r"\|.*\|")
_TABLE_RULE: Final = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")
_CELL_END: Final = re.compile(r"(?<!\\)\|")


class BlockKind(StrEnum):
    HEADING = "heading"
    TEXT = "text"
    ITEM = "item"
    CODE = "code"
    QUOTE = "quote"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Run:
    """Text with the same looks; marks are of the letters b, i, c (code) and p (it stands for a picture)."""

    text: str
    marks: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, or a row of a table, of which alone there may be several cells.

    `level` is that of a heading, from 1, or how deep an item of a list stands. `text` is what chunks are cut from, where
    that reads otherwise than the cells; `is_added` is a block that is in no chunk. Pages count from 1; `seconds` is the
    time at which a recording says it.
    """

    kind: BlockKind
    cells: tuple[tuple[Run, ...], ...]
    level: int = 0
    text: str = ""
    is_header: bool = False
    is_added: bool = False
    page: int | None = None
    seconds: int | None = None

    @property
    def said(self) -> str:
        """The text that may be found again in chunks."""
        if self.is_added:
            return ""
        return self.text or "\n".join("".join(run.text for run in cell if "p" not in run.marks) for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Structure:
    """The blocks of a document; `is_cut`: it holds more than is shown."""

    blocks: tuple[Block, ...]
    is_cut: bool = False


def bounded(blocks: Iterable[Block]) -> Structure:
    """The first blocks, up to MOST_CHARACTERS of text, of which long paragraphs are several."""
    kept, left = list[Block](), MOST_CHARACTERS
    for block in chain.from_iterable(map(_pieces, blocks)):
        left -= sum(len(run.text) for cell in block.cells for run in cell) + len(block.text)
        if left < 0:
            return Structure(tuple(kept), is_cut=True)
        kept.append(block)
    return Structure(tuple(kept))


def _pieces(block: Block) -> Iterator[Block]:
    if len(block.cells) > 1 or block.text or sum(len(run.text) for run in block.cells[0]) <= _LONGEST:
        yield block
        return
    runs, left = list[Run](), _LONGEST
    for run in block.cells[0]:
        text = run.text
        while text:
            part, text = text[:left], text[left:]
            runs.append(replace(run, text=part))
            left -= len(part)
            if not left:
                yield replace(block, cells=(tuple(runs),))
                runs, left = [], _LONGEST
    if runs:
        yield replace(block, cells=(tuple(runs),))


def blocks_of(document: ParsedDocument) -> Iterator[Block]:
    """What a reader made of a file, with its headings, and its records as rows of tables."""
    path: tuple[str, ...] = ()
    records = groupby(document.sections, key=lambda each: (each.kind, each.heading_path, each.page))
    for (kind, above, page), group in records:
        if kind is SectionKind.RECORD:
            yield from _headings(path, above, page, "")
            yield from _table([section.text for section in group])
        else:
            before = path
            for section in group:
                yield from _section(section, before)
                before = above
        path = above


def _headings(before: Sequence[str], path: Sequence[str], page: int | None, first: str) -> Iterator[Block]:
    """The headings that are new, but for the last where the text begins with it."""
    shared = 0
    while shared < min(len(before), len(path)) and before[shared] == path[shared]:
        shared += 1
    for level, heading in enumerate(path[shared:], start=shared + 1):
        if level < len(path) or heading != " ".join(first.split()):
            yield Block(BlockKind.HEADING, ((Run(heading),),), level, is_added=True, page=page)


def _section(section: Section, before: Sequence[str]) -> Iterator[Block]:
    place = 0
    first = section.text.partition("\n\n")[0]
    yield from _headings(before, section.heading_path, section.page, first)
    for number, paragraph in enumerate(section.text.split("\n\n")):
        region = _region_at(section.regions, place)
        page = section.page if region is None or region.page is None else region.page
        seconds = None if region is None else region.seconds
        is_heading = not number and section.heading_path and section.heading_path[-1] == " ".join(paragraph.split())
        if section.kind is SectionKind.QA and section.question and not number:
            question, _, rest = paragraph.partition("\n")
            yield Block(BlockKind.TEXT, ((Run(question, "b"),),), page=page)
            paragraph = rest  # noqa: PLW2901 - what is left of it
        if is_heading:
            yield Block(BlockKind.HEADING, ((Run(paragraph),),), len(section.heading_path), page=page)
        elif paragraph.strip():
            yield from (replace(each, page=page, seconds=seconds) for each in _paragraph(paragraph))
        place += len(paragraph) + 2


def _region_at(regions: Sequence[Region], place: int) -> Region | None:
    found = None
    for each in regions:
        if each.start > place:
            break
        found = each
    return found


def _paragraph(text: str) -> Iterator[Block]:
    lines = text.split("\n")
    if len(lines) > 1 and all(map(_TABLE_LINE.fullmatch, lines)) and _TABLE_RULE.fullmatch(lines[1]):
        for number, line in enumerate(lines):
            if number != 1:
                cells = [cell.strip().replace("\\|", "|") for cell in _CELL_END.split(line[1:-1])]
                yield Block(BlockKind.ROW, tuple((Run(cell),) for cell in cells), is_header=not number)
    elif all(line.startswith("- ") for line in lines):
        yield from (Block(BlockKind.ITEM, ((Run(line[2:]),),)) for line in lines)
    else:
        yield Block(BlockKind.TEXT, ((Run(text),),))


def _table(records: Sequence[str]) -> Iterator[Block]:
    """Records as rows below the names of their values; as lines of text where they have none, or too many."""
    values = [_values(record) for record in records]
    names = list(dict.fromkeys(name for each in values for name in each))
    if not names or len(names) > _MOST_COLUMNS:
        yield from (Block(BlockKind.TEXT, ((Run(record),),)) for record in records)
        return
    if any(names):
        yield Block(BlockKind.ROW, tuple((Run(name),) for name in names), is_header=True, is_added=True)
    for record, each in zip(records, values, strict=True):
        yield Block(BlockKind.ROW, tuple((Run(each.get(name, "")),) for name in names), text=record)


def _values(record: str) -> dict[str, str]:
    """The values of a record by their names; lines without a name belong to the value before them."""
    found: dict[str, str] = {}
    last = ""
    for line in record.split("\n"):
        named = _NAME.match(line)
        if named and named[1] not in found:
            last = named[1]
            found[last] = line[named.end() :]
        else:
            found[last] = f"{found[last]}\n{line}" if last in found else line
    return found
