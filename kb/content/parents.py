"""The longer passage that is returned in place of its chunks, put together from those that are on."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_SHOWN = re.compile(rb"#+")


class Child(NamedTuple):
    """A chunk of a longer passage.

    The `spans` are where the text that was cut from the document stands in the passage, as begin, end, begin, end and
    so on, in characters: first the table header that it repeats, which is empty where it repeats none, then its own
    text. None: not known, as of a chunk of an earlier release.
    """

    text: str
    spans: Sequence[int] | None
    is_edited: bool
    enabled: bool

    @property
    def pairs(self) -> list[tuple[int, int]]:
        spans = self.spans or ()
        return [*zip(spans[::2], spans[1::2], strict=True)]


def shown_text(whole: str, children: Sequence[Child]) -> str:
    """The text of a passage, of which `whole` was cut into chunks, without what no chunk that is on has.

    An edited text stands in place of what it was. Where a place is not known, the texts of the chunks that are on follow
    one another as soon as one is edited or off.
    """
    enabled = [child for child in children if child.enabled]
    if any(child.spans is None for child in children):
        is_whole = len(enabled) == len(children) and not any(child.is_edited for child in children)
        return whole if is_whole else "\n".join(child.text for child in enabled)
    shown = bytearray(len(whole))
    for child in enabled:
        for first, last in child.pairs[: 1 if child.is_edited else None]:
            shown[first:last] = b"#" * len(shown[first:last])
    edited: list[tuple[int, int, str]] = []
    for child in enabled:
        (top, bottom), *own = child.pairs
        if child.is_edited and own:
            for first, last in own:
                shown[first:last] = bytes(len(shown[first:last]))
            edited.append((own[0][0], own[-1][1], child.text.removeprefix(whole[top:bottom])))
    runs = [(run.start(), whole[slice(*run.span())].rstrip()) for run in _SHOWN.finditer(shown)]
    kept = [(first, first + len(part), part) for first, part in runs]
    text, end = "", 0
    for first, last, part in sorted([*kept, *edited]):
        text += (_gap(whole[end:first]) if text else "") + part
        end = last
    return text


def _gap(between: str) -> str:
    """The white space where a part of a text is left out: that before it or after it, whichever parts more."""
    if not between.strip():
        return between
    before, after = between[: -len(between.lstrip())], between[len(between.rstrip()) :]
    return max(before, after, key=len)
