"""Which texts of an earlier cut come back in a new one: whole, in a larger one, in parts or pinned."""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate

from kb.ingest.chunkers.strategies import ChunkDraft, Span, regions_within, spans_within
from kb.ingest.parser.parsed import Region

_WINDOW = 32_000  # Characters around its place in which a text is looked for, so that the work stays linear
_BETWEEN = "\0"
_WORD = re.compile(r"\w+\W*|\W+")


MIN_SHARED = 8  # Characters: what neighbours have in common by chance is shorter, as a rule


@dataclass(frozen=True, slots=True)
class Stream:
    """Texts after one another, without white space; neighbours that share an overlap share its place in `spans`."""

    text: str
    spans: tuple[tuple[int, int], ...]


def squeezed(text: str) -> str:
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


def held_parts(parts: Sequence[str], wholes: Sequence[str]) -> dict[int, dict[int, int]]:
    """Which parts each text holds, and where they begin in it, by positions; both lists follow the order of one document.

    A part is looked for from the end of the one before it, less what the two have in common: the same words may stand
    in that one too.
    """
    joined = _BETWEEN.join(wholes)
    starts = [0, *accumulate(len(whole) + len(_BETWEEN) for whole in wholes)]
    cursor, held = 0, defaultdict[int, dict[int, int]](dict)
    for position, part in enumerate(parts):
        shared = shared_length(parts[position - 1], part) if position else 0
        last = cursor + _WINDOW + len(part)
        begins = (cursor - shared, last), (cursor - len(part), last), (cursor - _WINDOW, cursor)
        places = (joined.find(part, max(0, begin), end) for begin, end in begins)
        place = next((each for each in places if each >= 0), -1)
        if place < 0:
            cursor += len(part)
        else:
            cursor = place + len(part)
            text = bisect_right(starts, place) - 1
            held[text][position] = place - starts[text]
    return dict(held)


def edited_part(text: str, edited: str, start: int, end: int) -> str:
    """What an edit of a text has made of a part of it; the parts that a text is cut into share all of the edited one."""
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


@dataclass(frozen=True, slots=True)
class Pin:
    """A passage that is to stay one: its text, as it was cut, and where it began in the former stream of chunks.

    With `always` it stays one wherever new chunks begin and end; else only where one of them would divide it.
    """

    text: str
    start: int
    always: bool


def pin_texts(
    drafts: Sequence[ChunkDraft], pins: Sequence[Pin], count_tokens: Callable[[str], int]
) -> tuple[ChunkDraft, ...]:
    """Drafts in which pinned passages are drafts of their own; what is left of those that they divide follows or precedes.

    A passage whose text is no longer there, or that another one has taken, is left out.
    """
    now = stream([draft.text for draft in drafts])
    placed = [(span, pin) for span, pin in _placed(now, pins) if pin.always or _is_divided(span, now.spans)]
    if not placed:
        return tuple(drafts)
    taken = [span for span, _ in placed]
    pieces = [each for position in range(len(drafts)) for each in _left(drafts, now.spans, position, taken)]
    pieces += [(span[0], _pinned(pin.text, span, _covered(drafts, now.spans, span))) for span, pin in placed]
    pieces.sort(key=lambda piece: piece[0])
    present = {draft.text: draft.token_count for draft in drafts}
    return tuple(
        replace(draft, position=position, token_count=present.get(draft.text) or count_tokens(draft.text))
        for position, (_, draft) in enumerate(pieces)
    )


def _placed(now: Stream, pins: Sequence[Pin]) -> Iterator[tuple[Span, Pin]]:
    """Where each passage stands: after the one before it, and nearest to where that one's place lets expect it."""
    first, drift = 0, 0
    for pin in pins:
        letters = squeezed(pin.text)
        expected = max(first, pin.start + drift)
        before = now.text.rfind(letters, first, expected + len(letters))
        after = now.text.find(letters, expected)
        found = [place for place in (before, after) if place >= 0 and letters]
        if not found:
            continue
        start = min(found, key=lambda place: abs(place - expected))
        first, drift = start + 1, start - pin.start
        yield (start, start + len(letters)), pin


def _is_divided(span: Span, drafts: Sequence[Span]) -> bool:
    """Whether it is neither within a draft nor made of whole ones."""
    start, end = span
    if any(first <= start and end <= last for first, last in drafts):
        return False
    return start not in {first for first, _ in drafts} or end not in {last for _, last in drafts}


def _left(
    drafts: Sequence[ChunkDraft], spans: Sequence[Span], position: int, taken: Sequence[Span]
) -> Iterator[tuple[int, ChunkDraft]]:
    """A draft, or what the pinned passages leave of it, without what its neighbours hold too."""
    draft, (start, end) = drafts[position], spans[position]
    fresh = max(start, spans[position - 1][1]) if position else start
    following = spans[position + 1][0] if position + 1 < len(spans) else end + 1
    cuts = [(max(first, start), min(last, end)) for first, last in taken if first < end and last > start]
    if not any(first < max(following, fresh + 1) and last > fresh for first, last in cuts):
        yield start, draft
        return
    # What two drafts share is left to the first where its own part reaches into it, and else to the second.
    places = [start, *(place for cut in cuts for place in cut), end]
    for first, last in zip(places[::2], places[1::2], strict=True):
        is_before = last <= fresh and first == start and all(end != start for _, end in taken)
        begin, after = place_of(draft.text, first - start), place_of(draft.text, last - start)
        part = draft.text[begin:after].rstrip()
        text = part.lstrip()
        if not is_before and first < following and any(map(str.isalnum, text)):
            begin += len(part) - len(text)
            after = begin + len(text)
            regions, own = regions_within(draft.regions, begin, after), spans_within(draft.parent_spans, begin, after)
            yield first, replace(draft, text=text, regions=regions, parent_spans=own)


def _covered(drafts: Sequence[ChunkDraft], spans: Sequence[Span], span: Span) -> list[tuple[ChunkDraft, int, Span]]:
    """The drafts that a passage takes something of which no draft before holds, with where each begins, and that part."""
    ends = [0, *(end for _, end in spans)]
    return [
        (draft, first, part)
        for draft, (first, last), before in zip(drafts, spans, ends, strict=False)
        if (part := (max(first, before, span[0]), min(last, span[1])))[0] < part[1]
    ]


def _pinned(text: str, span: Span, covered: Sequence[tuple[ChunkDraft, int, Span]]) -> ChunkDraft:
    """It stands where the first of them does; where they belong to several longer passages, it is returned itself."""
    first = covered[0][0]
    parent = first.parent if all(draft.parent == first.parent for draft, _, _ in covered) else None
    questions = tuple(dict.fromkeys(question for draft, _, _ in covered for question in draft.questions))
    regions: list[Region] = []
    spans: list[Span] = []
    for draft, start, (begin, end) in covered:
        ahead = place_of(text, begin - span[0] + 1) - 1  # behind the white space before it
        places = [place_of(draft.text, each - start) for each in (begin, end)]
        own = regions_within(draft.regions, *places)
        letter = place_of(draft.text, begin - start + 1) - 1  # behind the white space before it
        spans += spans_within(draft.parent_spans, letter, places[1])[bool(spans) :]  # one header
        regions += (replace(each, start=each.start + ahead) for each in own)
    draft = replace(first, text=text, parent=parent, questions=questions)
    return replace(draft, regions=tuple(regions), parent_spans=tuple(spans))
