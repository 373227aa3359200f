"""Headers, footers and page numbers: what stands at the edge of a page, apart from its text, and is no part of it."""

import re
from collections import defaultdict
from collections.abc import Sequence

from kb.ingest.formats.outline import Line
from kb.ingest.formats.pdf.grids import NEAR
from kb.ingest.formats.pdf.items import Item, Ruled, place_of, usual_size

# Shares of the height of a page, at its top and at its bottom; that of bare page numbers.
_EDGE = 0.12
_NUMBERED_EDGE = 0.075
# Between an edge and the text, in line heights.
_GAP = 1.6
# An edge stands on two of the pages around it: left and right ones may have different edges, and each chapter its own.
_AROUND = (-2, -1, 1, 2)
_LEAST = 2
_NUMBER = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"\W*(?:第|page|p\.)?\s*\d{1,4}\s*(?:页)?\s*(?:(?:[/\uff0f]|of|共)\s*\d{1,4}\s*页?)?\W*", re.IGNORECASE
)


def without_edges(pages: Sequence[Sequence[Item]], heights: Sequence[float]) -> list[list[Item]]:
    """The pages without what is repeated at their edges, numbers apart, and without bare page numbers.

    A larger or bold line whose number differs from page to page is a heading.
    """
    usual = usual_size(pages)
    edges = [_edges_of(page, height) for page, height in zip(pages, heights, strict=True)]
    places: dict[str, dict[int, float]] = defaultdict(dict)
    for number, items in enumerate(edges):
        for item in items:
            places[_key(item, usual)][number] = place_of(item)
    kept = []
    for number, (page, items, height) in enumerate(zip(pages, edges, heights, strict=True)):
        left_out = set()
        for item in items:
            others = places[_key(item, usual)]
            same = [each for each in _AROUND if abs(others.get(number + each, height * 2) - place_of(item)) <= NEAR]
            if len(same) >= min(_LEAST, len(pages) - 1) > 0 or _is_page_number(item, height):
                left_out.add(id(item))
        kept.append([item for item in page if id(item) not in left_out])
    return kept


def _edges_of(page: Sequence[Item], height: float) -> list[Item]:
    """What stands at the top and at the bottom of a page up to the first gap, if the page has more than that."""
    found: list[Item] = []
    ordered = sorted(page, key=place_of)
    for items in (ordered, ordered[::-1]):
        block: list[Item] = []
        for item in items:
            if block and abs(place_of(item) - place_of(block[-1])) > _GAP * max(_height(item), _height(block[-1])):
                break
            block.append(item)
        if len(block) < len(page) and all(not _EDGE * height < place_of(item) < (1 - _EDGE) * height for item in block):
            found += block
    return found


def _height(item: Item) -> float:
    return max((line.height for line in item.lines), default=0.0) if isinstance(item, Ruled) else item.height


def _key(item: Item, usual: float) -> str:
    text = "".join(item.text.split())
    is_prominent = isinstance(item, Line) and (item.size, item.is_bold) > (usual, False)
    return text if is_prominent else _NUMBER.sub("#", text)


def _is_page_number(item: Item, height: float) -> bool:
    is_outer = not _NUMBERED_EDGE * height < place_of(item) < (1 - _NUMBERED_EDGE) * height
    return is_outer and isinstance(item, Line) and _PAGE_NUMBER.fullmatch(item.text) is not None
