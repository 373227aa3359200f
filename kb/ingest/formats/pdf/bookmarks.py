"""The bookmarks of a PDF as the headings of what follows them."""

import re
import unicodedata
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import pypdfium2
import pypdfium2.raw as pdfium

from kb.ingest.formats.pdf.items import Item, place_of

Path = tuple[str, ...]
_MAX_BOOKMARKS = 20_000
_MAX_DEPTH = 9
# A heading may be set over this many lines.
_HEADING_LINES = 3
_MOST_COMPARED = 300
_NUMBER = re.compile(
    r"^(?:第.{1,5}[编篇章节]|(?:chapter|appendix)?\s*[\dIVX]+(?:\.\d+)*[.、:]?(?=\s|[^\W\d]))\s*", re.IGNORECASE
)


class Bookmarks:
    """Where each bookmark leads; without any, pages have no headings."""

    def __init__(self, document: pypdfium2.PdfDocument) -> None:
        self._on_page: dict[int, list[tuple[Path, float | None]]] = defaultdict(list)
        above: list[str] = []
        for bookmark in islice(document.get_toc(max_depth=_MAX_DEPTH), _MAX_BOOKMARKS):
            destination = bookmark.get_dest()
            index = destination.get_index() if destination else None
            title = " ".join(bookmark.get_title().split())
            above = [*above[: bookmark.level], title]
            if title and index is not None:
                self._on_page[index + 1].append((tuple(filter(None, above)), _height(destination)))
        self._pages = sorted(self._on_page)

    def __bool__(self) -> bool:
        return bool(self._pages)

    def split(self, lines: Sequence[Item], page: int) -> Iterator[tuple[Path, Sequence[Item], Sequence[Item]]]:
        """The lines of a page under each heading: a bookmark begins where its words stand, else where it leads to.

        Yields the path, the lines of its heading if they are on the page, and the lines below.
        """
        earlier = bisect_left(self._pages, page)
        path, heading, start = (self._on_page[self._pages[earlier - 1]][-1][0] if earlier else ()), range(0), 0
        for own, height in self._on_page.get(page, ()):
            found = _find(lines, own[-1], start)
            if not found and height is not None:
                below = (number for number in range(start, len(lines)) if place_of(lines[number]) < height)
                found = range(first := next(below, len(lines)), first)
            if found.stop:
                yield path, lines[heading.start : heading.stop], lines[start : found.start]
                heading, start = found, found.stop
                path = own
            elif not start:  # where it leads to is not known either: it begins with the page
                path = own
        yield path, lines[heading.start : heading.stop], lines[start:]


def _height(destination: pypdfium2.PdfDest) -> float | None:
    """Where on its page a bookmark leads to, in points from below."""
    mode, view = destination.get_view()
    values = {pdfium.PDFDEST_VIEW_XYZ: view[1:2], pdfium.PDFDEST_VIEW_FITH: view[:1]}.get(mode, [])
    return next((float(value) for value in values if value), None)


def _find(lines: Sequence[Item], title: str, start: int) -> range:
    """The lines, from start on, that are the title, with a number or without; an empty range if none are."""
    wanted = {_folded(title), _without_number(title)} - {""}
    for first in range(start, len(lines)):
        for opening in (_folded(lines[first].text), _without_number(lines[first].text)):
            joined = opening
            for last in range(first, min(first + _HEADING_LINES, len(lines))):
                joined += _folded(lines[last].text) if last > first else ""
                if joined in wanted:
                    return range(first, last + 1)
                if not any(each.startswith(joined) for each in wanted):
                    break
    return range(0)


def _folded(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text[:_MOST_COMPARED]).casefold().split())


def _without_number(text: str) -> str:
    return _folded(_NUMBER.sub("", text.strip(), count=1))
