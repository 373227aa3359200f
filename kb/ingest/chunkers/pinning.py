"""Passages that no strategy may cut: those that a curator cut, and those of whose changes a new cut would leave nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kb.ingest.chunkers.drafts import ChunkDraft, Stream, place_of, squeezed, stream

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pin:
    """A passage that is to stay one.

    Attributes:
        text: as it was cut from the document.
        start: where in the former stream of chunks.
        always: whether it stays one wherever new chunks begin and end; else only where one of them would divide it.
    """

    text: str
    start: int
    always: bool


def pin_texts(
    drafts: Sequence[ChunkDraft], pins: Sequence[Pin], count_tokens: Callable[[str], int]
) -> tuple[ChunkDraft, ...]:
    """Drafts in which pinned passages are drafts of their own; what is left of those that they divide follows or precedes.

    A passage whose text is no longer there, or that another one has taken, is left out.

    Args:
        drafts: in their order.
        pins: in their order.
        count_tokens: of the embedding model.
    """
    now = stream([draft.text for draft in drafts])
    placed = [(span, pin) for span, pin in _placed(now, pins) if pin.always or _is_divided(span, now.spans)]
    if not placed:
        return tuple(drafts)
    taken = [span for span, _ in placed]
    pieces = [each for position in range(len(drafts)) for each in _left(drafts, now.spans, position, taken)]
    pieces += [(span[0], _pinned(pin.text, _covered(drafts, now.spans, span))) for span, pin in placed]
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
        text = draft.text[place_of(draft.text, first - start) : place_of(draft.text, last - start)].strip()
        if not is_before and first < following and any(map(str.isalnum, text)):
            yield first, replace(draft, text=text)


def _covered(drafts: Sequence[ChunkDraft], spans: Sequence[Span], span: Span) -> list[ChunkDraft]:
    """The drafts that a passage takes something of which no draft before holds."""
    ends = [0, *(end for _, end in spans)]
    return [
        draft
        for draft, (first, last), before in zip(drafts, spans, ends, strict=False)
        if max(first, before, span[0]) < min(last, span[1])
    ]


def _pinned(text: str, covered: Sequence[ChunkDraft]) -> ChunkDraft:
    """It stands where the first of them does; where they belong to several longer passages, it is returned itself."""
    first = covered[0]
    parent = first.parent if all(draft.parent == first.parent for draft in covered) else None
    questions = tuple(dict.fromkeys(question for draft in covered for question in draft.questions))
    return replace(first, text=text, parent=parent, questions=questions)
