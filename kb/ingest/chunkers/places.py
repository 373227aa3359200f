"""Where chunks stand in a text that is read otherwise than they were cut, such as a page with its menu and links."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_NOT_LETTERS: Final = re.compile(r"[\W_]+")
_AHEAD: Final = 100_000  # Letters after the chunk before in which a chunk is looked for first
_MOST_SEARCHES: Final = 50  # of the whole text, so that the work stays linear
_MOST_LETTERS: Final = 1_000_000_000  # in which pieces are looked for in vain, a few seconds' work at worst
_PIECE: Final = 16
_PIECES: Final = 12
_LEAST: Final = 4  # Letters: what is shorter stands anywhere


class Place(NamedTuple):
    """Letters and digits of a text, from the first and before the last, that a chunk was cut from."""

    start: int
    end: int


def letters(text: str) -> str:
    """The letters and digits of a text: what is the same in all the ways to write it."""
    return _NOT_LETTERS.sub("", text)


def places(stream: str, texts: Sequence[str]) -> list[Place | None]:
    """The place of each text, in the order of their document, in the letters of that; None: it is not found.

    One that is not there as it stands is found by pieces of it, and then reaches from the first to the last.
    """
    found, cursor, left, room = list[Place | None](), 0, _MOST_SEARCHES, _MOST_LETTERS
    for text in texts:
        wanted = letters(text)
        begin, end = max(0, cursor - len(wanted)), min(len(stream), cursor + _AHEAD + len(wanted))
        place = _place(stream, wanted, begin, end, in_pieces=room > 0)
        room -= _PIECES * (end - begin) if place is None else 0
        if place is None and left and len(wanted) >= _PIECE:
            left -= 1
            place = _place(stream, wanted, 0, len(stream), in_pieces=room > 0)
            room -= _PIECES * len(stream) if place is None else 0
        if place is not None:
            cursor = place.start
        found.append(place)
    return found


def _place(stream: str, wanted: str, begin: int, end: int, *, in_pieces: bool) -> Place | None:
    if len(wanted) < _LEAST:
        return None
    at = stream.find(wanted, begin, end)
    if at >= 0:
        return Place(at, at + len(wanted))
    hits = list(_hits(stream, wanted, begin, end)) if in_pieces else []
    if not hits:
        return None
    (first, offset), (last, ending) = hits[0], hits[-1]
    if len(hits) == 1 and len(wanted) > 4 * _PIECE:  # by chance
        return None
    return Place(max(0, first - offset), min(len(stream), last + len(wanted) - ending))


def _hits(stream: str, wanted: str, begin: int, end: int) -> Iterable[tuple[int, int]]:
    """Where pieces of a text stand, in ascending order, each with its offset in the text."""
    step = max(_PIECE, len(wanted) // _PIECES)
    cursor = begin
    for offset in range(0, max(1, len(wanted) - _PIECE + 1), step):
        at = stream.find(wanted[offset : offset + _PIECE], cursor, end)
        # Pieces that stand far from each other belong to different places
        if at >= 0 and (cursor == begin or at - cursor <= 4 * len(wanted)):
            yield at, offset
            cursor = at + 1
