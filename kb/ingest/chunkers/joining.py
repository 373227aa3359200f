"""Chunks as one text: what two neighbours have in common is there once, and white space, which cutting changes, is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MIN_SHARED: Final = 8
"""Characters: what the end of a text and the beginning of the next have in common by chance is shorter, as a rule."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Texts after one another, without white space.

    Attributes:
        text: all of them.
        spans: from where to where each of them stands; neighbours that share an overlap share its place.
    """

    text: str
    spans: tuple[tuple[int, int], ...]


def squeezed(text: str) -> str:
    """The text without white space."""
    return "".join(text.split())


def shared_length(first: str, second: str) -> int:
    """How much of the end of a text opens the next, which has more than that; 0 below `MIN_SHARED`."""
    opening = second[:MIN_SHARED]
    if len(opening) < MIN_SHARED:
        return 0
    start = first.find(opening, max(0, len(first) - len(second) + 1))
    while start >= 0:
        if second.startswith(first[start:]):
            return len(first) - start
        start = first.find(opening, start + 1)
    return 0


def joined(first: str, second: str) -> str:
    """Two neighbours as one text, with their overlap once."""
    shared = shared_length(squeezed(first), squeezed(second))
    if not shared:
        return f"{first.rstrip()}\n{second.lstrip()}"
    return first.rstrip() + second[place_of(second, shared) :]


def stream(texts: Sequence[str]) -> Stream:
    parts, spans, previous, end = list[str](), list[tuple[int, int]](), "", 0
    for text in texts:
        letters = squeezed(text)
        shared = shared_length(previous, letters)
        start = end - shared
        parts.append(letters[shared:])
        end = start + len(letters)
        spans.append((start, end))
        previous = letters
    return Stream("".join(parts), tuple(spans))


def place_of(text: str, letters: int) -> int:
    """Where a text has had so many characters other than white space."""
    seen = 0
    for place, character in enumerate(text):
        if seen == letters:
            return place
        seen += not character.isspace()
    return len(text)
