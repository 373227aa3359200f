"""Which texts of an earlier cut come back in a new one: whole, inside a larger one, or in parts."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Final

_WINDOW: Final = 32_000
"""How far from its place in the order of the texts one is looked for, in characters, so that the work stays linear."""
_BETWEEN: Final = "\0"
_WORD: Final = re.compile(r"\w+\W*|\W+")


def pairs(old: Sequence[Hashable], new: Sequence[Hashable]) -> dict[int, int]:
    """The equal ones of two lists, each at most once: positions in the old list by those in the new one.

    What is there once in both lists is a pair wherever it stands; of repeated ones those belong together whose neighbours
    do, and what is left goes by its order. Linear.

    Source: Heckel, "A technique for isolating differences between files", 1978.
    """
    in_old, in_new = Counter(old), Counter(new)
    place = {key: position for position, key in enumerate(old) if in_old[key] == 1}
    paired = {position: place[key] for position, key in enumerate(new) if in_new[key] == 1 and key in place}
    taken = set(paired.values())
    for step, order in ((1, range(len(new))), (-1, range(len(new) - 1, -1, -1))):
        beyond = -1 if step == 1 else len(old)  # the end of the lists pairs with itself
        for position in order:
            edge = position - step in (-1, len(new))
            before = beyond if edge else paired.get(position - step)
            if position in paired or before is None:
                continue
            other = before + step
            if 0 <= other < len(old) and other not in taken and old[other] == new[position]:
                paired[position] = other
                taken.add(other)
    left: dict[Hashable, list[int]] = {}
    for position in reversed(range(len(old))):
        if position not in taken:
            left.setdefault(old[position], []).append(position)
    for position, key in enumerate(new):
        if position not in paired and left.get(key):
            paired[position] = left[key].pop()
    return paired


def holders(parts: Sequence[str], wholes: Sequence[str]) -> list[int | None]:
    """For each part the position of a text that holds it; both lists follow the order of one document."""
    joined = _BETWEEN.join(wholes)
    starts = [0, *accumulate(len(whole) + len(_BETWEEN) for whole in wholes)]
    cursor, found = 0, list[int | None]()
    for part in parts:
        place = joined.find(part, max(0, cursor - len(part)), cursor + _WINDOW + len(part))
        if place < 0:
            place = joined.find(part, max(0, cursor - _WINDOW), cursor)
        if place < 0:
            cursor += len(part)
            found.append(None)
        else:
            cursor = place + len(part)
            found.append(bisect_right(starts, place) - 1)
    return found


def edited_part(text: str, edited: str, part: str) -> str:
    """What an edit of a text has made of a part of it; the parts that a text is cut into share all of the edited one."""
    start = text.index(part)
    end = start + len(part)
    changes = _changes(text, edited)
    first = 0 if not text[:start].strip() else _moved(changes, start)
    last = len(edited) if not text[end:].strip() else _moved(changes, end)
    return edited[first:last].strip()


def moved_place(text: str, edited: str, place: int) -> int:
    """Where a place in a text is after an edit of it."""
    return _moved(_changes(text, edited), place)


def _changes(text: str, edited: str) -> list[tuple[bool, int, int, int, int]]:
    """Whether equal, and from where to where in both texts, word by word."""
    words, others = _WORD.findall(text), _WORD.findall(edited)
    at, other_at = [0, *accumulate(map(len, words))], [0, *accumulate(map(len, others))]
    return [
        (tag == "equal", at[i1], at[i2], other_at[j1], other_at[j2])
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, words, others).get_opcodes()
    ]


def _moved(changes: Sequence[tuple[bool, int, int, int, int]], place: int) -> int:
    for is_equal, first, last, other_first, other_last in changes:
        if first <= place <= last:
            if is_equal:
                return other_first + place - first
            return other_first if place == first else other_last
    return 0
