"""The text of a document's file in parts, each with the chunks that were cut from it."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from kb.content.models import Chunk, Document
from kb.ingest.chunkers.places import Place, letters, places
from kb.ingest.parser.structure import Block, BlockKind, Structure
from kb.ingest.services.previews import structure_of

PART_LETTERS: Final = 12_000
PART_BLOCKS: Final = 200
# Before a passage and after it
AROUND_LETTERS: Final = 1_500
AROUND_BLOCKS: Final = 30


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """A chunk and its place in the letters of the whole text; `position` counts from 0, None: nothing leads to it."""

    chunk_id: int
    position: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block, where its letters begin in the whole text, and the chunks that have some of them."""

    block: Block
    start: int
    chunks: tuple[ChunkPlace, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The blocks of one of `count` parts, which count from 0; `is_cut`: the file holds more than all of them."""

    number: int
    count: int
    blocks: tuple[PlacedBlock, ...]
    is_cut: bool


def part_of(document: Document, *, number: int = 0, chunk_id: int | None = None) -> Part:
    """A part of a document's text: that of a number, or the one in which a chunk begins; raises as `structure_of`."""
    structure = structure_of(document)
    said, starts = _lettered(structure)
    chunks = _placed("".join(said), document)
    bounds = _bounds(structure.blocks, said)
    if chunk_id is not None:
        place = next((each.place for each in chunks if each.chunk_id == chunk_id), None)
        if place is not None:
            block = bisect_right(starts, place.start, hi=len(said)) - 1
            number = bisect_right(bounds, block) - 1
        else:
            number = _part_of_page(structure.blocks, bounds, document, chunk_id)
    number = min(max(number, 0), max(0, len(bounds) - 2))
    first, last = (bounds[number], bounds[number + 1]) if len(bounds) > 1 else (0, 0)
    blocks = tuple(
        PlacedBlock(structure.blocks[each], starts[each], tuple(_within(chunks, starts[each], starts[each + 1])))
        for each in range(first, last)
    )
    if (header := _header_above(structure.blocks, first)) is not None:
        blocks = (PlacedBlock(header, starts[first], ()), *blocks)
    return Part(number, max(1, len(bounds) - 1), blocks, structure.is_cut)


def blocks_around(chunk: Chunk) -> tuple[PlacedBlock, ...]:
    """The blocks from which a chunk was cut, and some before and after them, with no other chunk.

    None where it is not found in the text of its document's file; raises as `structure_of`.
    """
    structure = structure_of(chunk.document)
    blocks = structure.blocks
    said, starts = _lettered(structure)
    placed = next((each for each in _placed("".join(said), chunk.document) if each.chunk_id == chunk.pk), None)
    if placed is None:
        return ()
    begin, end = (bisect_right(starts, place, hi=len(said)) - 1 for place in (placed.place.start, placed.place.end - 1))
    first = max(bisect_right(starts, placed.place.start - AROUND_LETTERS) - 1, begin - AROUND_BLOCKS, 0)
    last = min(bisect_right(starts, placed.place.end + AROUND_LETTERS, hi=len(said)), end + AROUND_BLOCKS)
    alone = replace(placed, position=None)
    around = tuple(
        PlacedBlock(blocks[each], starts[each], tuple(_within([alone], starts[each], starts[each + 1])))
        for each in range(first, max(last, end + 1))
    )
    header = _header_above(blocks, first)
    return around if header is None else (PlacedBlock(header, starts[first], ()), *around)


def _lettered(structure: Structure) -> tuple[list[str], list[int]]:
    """The letters of each block, and where they begin in those of all; the last is where they end."""
    said = [letters(block.said) for block in structure.blocks]
    return said, [0, *accumulate(map(len, said))]


def _placed(stream: str, document: Document) -> list[ChunkPlace]:
    """The chunks of a document whose places are found, in its order."""
    rows = list(
        Chunk.objects.filter(document=document).order_by("position").values_list("pk", "position", "text", "cut_text")
    )
    found = places(stream, [cut or text for _pk, _position, text, cut in rows])
    return [
        ChunkPlace(pk, position, place)
        for (pk, position, _text, _cut), place in zip(rows, found, strict=True)
        if place is not None
    ]


def _within(chunks: Sequence[ChunkPlace], start: int, end: int) -> Iterator[ChunkPlace]:
    return (each for each in chunks if each.place.start < end and each.place.end > start)


def _bounds(blocks: Sequence[Block], said: Sequence[str]) -> list[int]:
    """Where the parts begin, by the number of their first block, and the end of the last."""
    bounds, size = [0], 0
    for number in range(len(blocks)):
        if (size and size + len(said[number]) > PART_LETTERS) or number - bounds[-1] == PART_BLOCKS:
            bounds.append(number)
            size = 0
        size += len(said[number])
    return [*bounds, len(blocks)]


def _header_above(blocks: Sequence[Block], first: int) -> Block | None:
    """The header of the table in the middle of which a part begins."""
    top = first
    while 0 < top < len(blocks) and blocks[top - 1].kind is BlockKind.ROW and not blocks[top].is_header:
        top -= 1
    is_within = top < first and blocks[top].is_header
    return replace(blocks[top], is_added=True) if is_within else None


def _part_of_page(blocks: Sequence[Block], bounds: Sequence[int], document: Document, chunk_id: int) -> int:
    """The part with the page of a chunk whose place is not found."""
    page = Chunk.objects.filter(document=document, pk=chunk_id).values_list("page", flat=True).first()
    block = next((number for number, each in enumerate(blocks) if page is not None and each.page == page), 0)
    return bisect_right(bounds, block) - 1
