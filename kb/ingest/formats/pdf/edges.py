"""Headers, footers and page numbers: what stands at the edge of a page, apart from its text, and is no part of it."""

import re
from collections import defaultdict
from collections.abc import Sequence

from kb.ingest.formats.outline import Line
from kb.ingest.formats.pdf.lines import Item, usual_size

# Shares of the height of a page, at its top and at its bottom.
_EDGE = 0.12
_OUTER_EDGE = 0.075
# Between an edge and the text, in line heights.
_GAP = 1.6
# An edge stands on this many pages at least, and on this share of them: left and right pages may have different ones.
_LEAST_PAGES = 2
_LEAST_SHARE = 0.4
_NUMBER = re.compile(r"\d+|[ivxlc]+(?=\s*$)", re.IGNORECASE)
_PAGE_NUMBER = re.compile(
    r"\W*(?:第|page|p\.)?\s*\d{1,4}\s*(?:页)?\s*(?:(?:[/\uff0f]|of|共)\s*\d{1,4}\s*页?)?\W*", re.IGNORECASE
)
_SMALLER = 0.85


def without_edges(pages: Sequence[Sequence[Item]], heights: Sequence[float]) -> list[list[Item]]:
    """The pages without what is repeated at their edges, numbers apart, and without bare page numbers."""
    edges = [_edges_of(page, height) for page, height in zip(pages, heights, strict=True)]
    seen: dict[tuple[bool, str], set[int]] = defaultdict(set)
    for number, (lines, height) in enumerate(zip(edges, heights, strict=True)):
        for line in lines:
            seen[_key(line, height)].add(number)
    least = max(_LEAST_PAGES, _LEAST_SHARE * len(pages))
    repeated = {key for key, numbers in seen.items() if len(numbers) >= least}
    usual = usual_size(pages)
    kept = []
    for page, lines, height in zip(pages, edges, heights, strict=True):
        left_out = {id(line) for line in lines if _key(line, height) in repeated or _is_bare(line, height, usual)}
        kept.append([item for item in page if id(item) not in left_out])
    return kept


def _edges_of(page: Sequence[Item], height: float) -> list[Line]:
    """The lines at the top and at the bottom of a page up to the first gap, if the page has others."""
    lines = sorted((item for item in page if isinstance(item, Line)), key=lambda line: line.baseline)
    found: list[Line] = []
    for ordered in (lines, lines[::-1]):
        block: list[Line] = []
        for line in ordered:
            if block and abs(line.baseline - block[-1].baseline) > _GAP * max(line.height, block[-1].height):
                break
            block.append(line)
        if all(not _EDGE * height < line.baseline < (1 - _EDGE) * height for line in block) and len(block) < len(page):
            found += block
    return found


def _key(line: Line, height: float) -> tuple[bool, str]:
    return line.baseline > height / 2, _NUMBER.sub("#", "".join(line.text.split()))


def _is_bare(line: Line, height: float, usual: float) -> bool:
    is_outer = not _OUTER_EDGE * height < line.baseline < (1 - _OUTER_EDGE) * height
    return is_outer and (bool(_PAGE_NUMBER.fullmatch(line.text)) or 0 < line.size < _SMALLER * usual)
