"""Which lines of a PDF are headings, by size, weight and numbering, where it has no bookmarks that say so."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kb.ingest.formats.outline import Line, join_lines
from kb.ingest.formats.pdf.items import Item, usual_size

# A heading is larger than text by this much, and not longer than this.
_LARGER = 1.08
_MOST_LENGTH = 120
_MOST_LINES = 3
# A step between its lines, in line heights; a line that ends early, as a share of a full one.
_STEP = 1.9
_SHORT = 0.6
_MOST_LEVELS = 6
# A number alone, without a point, may be a date or a quantity.
_NUMBER = re.compile(
    r"(?:第[一二三四五六七八九十百零〇\d]{1,5}[编篇章节]|(?:chapter|part|section|appendix)\s+[\dIVXA-Z]+\b"
    r"|(?P<number>\d{1,3}(?:\.\d{1,3}){1,4}|\d{1,3}(?=[.、]))[.、]?(?=\s|[^\W\d]))",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[。！？；，：.!?:;,…]$")
_DIGITS = re.compile(r"\d+")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True)
class _Look:
    """What tells a heading from text."""

    size: float
    is_bold: bool
    depth: int  # of its number, 0 without one


def headings(pages: Sequence[Sequence[Item]]) -> Mapping[int, tuple[int, Sequence[Line]]]:
    """Levels, 1 the highest, and the lines of each heading, by the id of its first line."""
    lines = [item for page in pages for item in page if isinstance(item, Line) and item.size]
    if not lines:
        return {}
    usual, length = usual_size(pages), sum(len(line.text) for line in lines)
    bold = sum(len(line.text) for line in lines if line.is_bold)
    full = sorted(line.width for line in lines)[9 * len(lines) // 10]
    groups = [group for page in pages for group in _groups(page, full)]
    found = [
        (look, group)
        for place, group in enumerate(groups)
        if (look := _look(group, usual, full, tells_weight=bold < length / 3)) is not None
        and (look.size > usual or look.is_bold or _stands_alone(groups, place))
    ]
    if found and all(look.size == usual and not look.is_bold for look, _ in found):
        # Where numbers alone tell headings, the short line that all begins with is the title.
        title = lines[0]
        if id(title) != id(found[0][1][0]) and title.width < _SHORT * full and not _SENTENCE_END.search(title.text):
            found.insert(0, (_Look(usual, is_bold=True, depth=0), [title]))
    return _levels(found, usual)


def _groups(page: Sequence[Item], full: float) -> Iterator[list[Line]]:
    """Lines of one size and weight that follow each other; a short line that begins with a number is one of its own."""
    group: list[Line] = []
    for item in page:
        if not isinstance(item, Line):
            if group:
                yield group
            group = []
            continue
        if group and not (
            (group[-1].size, group[-1].is_bold) == (item.size, item.is_bold)
            and 0 < group[-1].baseline - item.baseline <= _STEP * max(group[-1].height, item.height)
            and not _is_numbered(item, full)
            and not _is_numbered(group[-1], full)
        ):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _is_numbered(line: Line, full: float) -> bool:
    return line.width < _SHORT * full and _NUMBER.match(line.text) is not None


def _look(group: Sequence[Line], usual: float, full: float, *, tells_weight: bool) -> _Look | None:
    """None for what cannot be a heading."""
    text = join_lines(line.text for line in group)
    if (
        len(group) > _MOST_LINES
        or len(text) > _MOST_LENGTH
        or len(_LETTER.findall(text)) < 2
        or any(each.cells for each in group)
    ):
        return None
    depth = len(_number(text))
    size, is_bold = group[0].size, group[0].is_bold and tells_weight
    if size >= _LARGER * usual:
        return _Look(size, is_bold, depth)
    if (
        size < usual
        or _SENTENCE_END.search(text)
        or not (is_bold or (len(group) == 1 and _is_numbered(group[0], full)))
    ):
        return None
    return _Look(usual, is_bold, depth)


def _stands_alone(groups: Sequence[Sequence[Line]], place: int) -> bool:
    """Whether a numbered line is no item of a list: the next number of its kind stands neither right after nor right before."""
    if place + 1 == len(groups) or groups[place + 1][0].text[0].islower():
        return False
    before, own, after = (_number(groups[each][0].text) if each >= 0 else () for each in (place - 1, place, place + 1))
    return not _is_next_number(own, after) and not _is_next_number(before, own)


def _is_next_number(number: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return bool(number) and other == (*number[:-1], number[-1] + 1)


def _number(text: str) -> tuple[int, ...]:
    """The number that a heading or an item begins with, by its parts; (0,) for one of another kind, () without any."""
    found = _NUMBER.match(text)
    if found is None:
        return ()
    return tuple(map(int, found["number"].split("."))) if found["number"] else (0,)


def _levels(found: Sequence[tuple[_Look, Sequence[Line]]], usual: float) -> dict[int, tuple[int, Sequence[Line]]]:
    """By size first, then by weight; of the size of text by the depth of their numbers.

    Where all look alike the first one is the title.
    """
    looks = sorted({(-look.size, not look.is_bold) for look, _ in found})
    words = [_DIGITS.sub("", join_lines(line.text for line in lines)) for _, lines in found]
    has_title = len(looks) == 1 and not found[0][0].depth and words[0] not in words[1:]
    levels: dict[int, tuple[int, Sequence[Line]]] = {}
    for place, (look, lines) in enumerate(found):
        level = looks.index((-look.size, not look.is_bold)) + 1
        if look.size == usual and look.depth:
            level += look.depth - 1
        if has_title and place:
            level += 1
        levels[id(lines[0])] = min(level, _MOST_LEVELS), lines
    return levels
