"""The bookmarks of a PDF as the headings of what follows them."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import pypdfium2

from kb.ingest.formats.pdf.lines import Item

Path = tuple[str, ...]
_MAX_BOOKMARKS = 20_000
_MAX_DEPTH = 9
# A heading may be set over this many lines.
_HEADING_LINES = 3


class Bookmarks:
    """Where each bookmark leads; without any, pages have no headings."""

    def __init__(self, document: pypdfium2.PdfDocument) -> None:
        self._on_page: dict[int, list[Path]] = defaultdict(list)
        above: list[str] = []
        for bookmark in islice(document.get_toc(max_depth=_MAX_DEPTH), _MAX_BOOKMARKS):
            destination = bookmark.get_dest()
            index = destination.get_index() if destination else None
            title = " ".join(bookmark.get_title().split())
            above = [*above[: bookmark.level], title]
            if title and index is not None:
                self._on_page[index + 1].append(tuple(filter(None, above)))
        self._pages = sorted(self._on_page)

    def __bool__(self) -> bool:
        return bool(self._pages)

    def split(self, lines: Sequence[Item], page: int) -> Iterator[tuple[Path, Sequence[Item], Sequence[Item]]]:
        """The lines of a page under each heading: a bookmark begins where its words stand, else with the page.

        Yields the path, the lines of its heading if they are on the page, and the lines below.
        """
        earlier = bisect_left(self._pages, page)
        path, heading, start = (self._on_page[self._pages[earlier - 1]][-1] if earlier else ()), range(0), 0
        for own in self._on_page.get(page, ()):
            found = _find(lines, own[-1], start)
            if found:
                yield path, lines[heading.start : heading.stop], lines[start : found.start]
                heading, start = found, found.stop
            path = own
        yield path, lines[heading.start : heading.stop], lines[start:]


def _find(lines: Sequence[Item], title: str, start: int) -> range:
    """The lines, from start on, that are the title; an empty range if none are."""
    wanted = "".join(title.split())
    for first in range(start, len(lines)):
        joined = ""
        for last in range(first, min(first + _HEADING_LINES, len(lines))):
            joined += "".join(lines[last].text.split())
            if joined == wanted:
                return range(first, last + 1)
            if not wanted.startswith(joined):
                break
    return range(0)
