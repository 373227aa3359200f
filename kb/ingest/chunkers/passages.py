"""Sections put together again where a strategy does not mind what divides them."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from kb.ingest.parser.parsed import ParsedDocument, Section, SectionKind

SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class Passage:
    """All that stands under one heading, over all of its pages.

    Attributes:
        starts: where the text of each page begins, ascending.
        pages: their numbers.
    """

    text: str
    heading_path: tuple[str, ...]
    starts: tuple[int, ...]
    pages: tuple[int | None, ...]

    def page_at(self, offset: int) -> int | None:
        return self.pages[max(0, bisect_right(self.starts, offset) - 1)]


def by_page(document: ParsedDocument) -> Iterator[Section]:
    """Neighbours under one heading and on one page as one text, so that short ones share a chunk."""
    for group in _neighbours(document, lambda section: (section.page, section.heading_path)):
        yield Section(SEPARATOR.join(section.text for section in group), group[0].page, group[0].heading_path)


def by_heading(document: ParsedDocument) -> Iterator[Passage]:
    """Neighbours under one heading as one text, whatever pages they are on."""
    for group in _neighbours(document, lambda section: section.heading_path):
        yield _joined(group)


def _neighbours(document: ParsedDocument, key: Callable[[Section], object]) -> Iterator[tuple[Section, ...]]:
    """Records and pairs stay by themselves: each is whole."""
    for (kind, _key), group in groupby(document.sections, key=lambda section: (section.kind, key(section))):
        if kind is SectionKind.TEXT:
            yield tuple(group)
        else:
            yield from ((section,) for section in group)


def _joined(sections: tuple[Section, ...]) -> Passage:
    starts, length = [], 0
    for section in sections:
        starts.append(length)
        length += len(section.text) + len(SEPARATOR)
    text = SEPARATOR.join(section.text for section in sections)
    return Passage(text, sections[0].heading_path, tuple(starts), tuple(section.page for section in sections))


def located(text: str, pieces: list[str]) -> Iterator[tuple[int, str]]:
    """Each piece with the place where it begins; pieces stand in the text in their order, side by side or overlapping."""
    start, end = -1, 0
    for piece in pieces:
        place = end
        while place < len(text) and text[place].isspace():
            place += 1
        # Of several places in repeated text the last is the right one: overlaps are short.
        behind = place + len(piece)
        place = text.rfind(piece, start + 1, behind)
        if place < 0:  # one such was taken for a later one
            place = text.rfind(piece, 0, behind)
        start, end = place, place + len(piece)
        yield start, piece
