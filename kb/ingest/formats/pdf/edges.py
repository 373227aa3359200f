"""Headers, footers and page numbers: what stands at the edge of a page and is no part of its text."""

import re
from collections import defaultdict
from collections.abc import Sequence

from kb.ingest.formats.outline import Line
from kb.ingest.formats.pdf.lines import Item

# Shares of the height of a page, at its top and at its bottom.
_EDGE = 0.12
_OUTER_EDGE = 0.075
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
    seen: dict[tuple[bool, str], set[int]] = defaultdict(set)
    for number, (page, height) in enumerate(zip(pages, heights, strict=True)):
        for line in _at_edge(page, height):
            seen[_key(line, height)].add(number)
    repeated = {key for key, numbers in seen.items() if len(numbers) >= max(_LEAST_PAGES, _LEAST_SHARE * len(pages))}
    usual = max((line.size for page in pages for line in page if isinstance(line, Line)), default=0.0)
    kept = []
    for page, height in zip(pages, heights, strict=True):
        edges = {
            id(line)
            for line in _at_edge(page, height)
            if _key(line, height) in repeated or _is_bare(line, height, usual)
        }
        kept.append([item for item in page if id(item) not in edges])
    return kept


def _at_edge(page: Sequence[Item], height: float) -> list[Line]:
    return [
        item for item in page if isinstance(item, Line) and not _EDGE * height < item.baseline < (1 - _EDGE) * height
    ]


def _key(line: Line, height: float) -> tuple[bool, str]:
    return line.baseline > height / 2, _NUMBER.sub("#", "".join(line.text.split()))


def _is_bare(line: Line, height: float, usual: float) -> bool:
    is_outer = not _OUTER_EDGE * height < line.baseline < (1 - _OUTER_EDGE) * height
    return is_outer and (bool(_PAGE_NUMBER.fullmatch(line.text)) or 0 < line.size < _SMALLER * usual)
