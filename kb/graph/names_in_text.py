"""Finds in a text the names that the database holds, by their keys."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kb.base.text import PREFIX_CHARACTERS, normalized_key
from retrieval.scripts import LATIN
from retrieval.tokenize import normalize

_IS_LATIN = re.compile(LATIN)
_WHITE_SPACE = re.compile(r"\s+")
# What combines is composed with the character before it.
_CHARACTERS = re.compile(r"\s+|\S[\u0300-\u036f\u3099\u309a\u1160-\u11ff]*")


@dataclass(frozen=True, slots=True)
class Span:
    """Where a name stands, in characters of the folded text."""

    start: int
    end: int
    key: str

    def overlaps(self, other: "Span") -> bool:
        return self.start < other.end and other.start < self.end


class SearchedText:
    """A text as names are looked for in it.

    Attributes:
        folded: the text in the form of the names' keys.
    """

    def __init__(self, text: str) -> None:
        self._pieces = _CHARACTERS.findall(text)
        folded = ""
        self._ends: list[int] = []
        for piece in self._pieces:
            part = _WHITE_SPACE.sub(" ", normalize(piece).casefold())
            folded += part.lstrip(" ") if folded.endswith(" ") else part
            self._ends.append(len(folded))
        self.folded = folded
        self._latin = [_IS_LATIN.match(character) is not None for character in self.folded]

    def prefixes(self) -> list[str]:
        """The first characters that a name in this text can have, each once; shorter ones are whole names."""
        found: dict[str, None] = {}
        for start, character in enumerate(self.folded):
            if character == " " or not self._is_boundary(start):
                continue
            for size in range(1, PREFIX_CHARACTERS + 1):
                if size == PREFIX_CHARACTERS or self._is_boundary(start + size):
                    found[self.folded[start : start + size]] = None
        return list(found)

    def spans(self, keys: Iterable[str]) -> list[Span]:
        """Where the keys stand, in order; in scripts with words only as whole words."""
        found = []
        for key in keys:
            at = self.folded.find(key) if key else -1
            while at >= 0:
                if self._is_boundary(at) and self._is_boundary(at + len(key)):
                    found.append(Span(at, at + len(key), key))
                at = self.folded.find(key, at + 1)
        return sorted(found, key=lambda span: (span.start, span.end))

    def written(self, span: Span) -> str:
        """The name as the text writes it."""
        first = bisect_right(self._ends, span.start)
        last = bisect_right(self._ends, span.end - 1)
        return "".join(self._pieces[first : last + 1])

    def _is_boundary(self, at: int) -> bool:
        return not (0 < at < len(self._latin) and self._latin[at - 1] and self._latin[at])


def longest(spans: Sequence[Span]) -> list[Span]:
    """The spans without those that overlap a longer one, or one as long before them; in order."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        if not any(span.overlaps(other) for other in kept):
            kept.append(span)
    return sorted(kept, key=lambda span: span.start)


def keys_of(names: Iterable[str]) -> list[str]:
    return [key for key in map(normalized_key, names) if key]
