"""Dictionary words that no segmenter sees whole, because their text is cut by script first: T恤, 维生素C, Spring Boot."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from retrieval.characters import LATIN

_WHITE_SPACE = re.compile(r"\s")
# At the last character of a phrase: its word goes on behind it.
_WORD_GOES_ON = re.compile(LATIN * 2)
_LAST_BASIC = "\uffff"


class Phrase(NamedTuple):
    """Where a text holds a phrase: characters from `start` up to `end`."""

    start: int
    end: int
    term: str


class PhraseFinder:
    """Finds phrases wherever they occur, over and inside one another too; Latin ends of one must be ends of words.

    Args:
        phrases: case-folded, of two characters or more, one space between their words.
    """

    def __init__(self, phrases: Collection[str]) -> None:
        lengths = defaultdict(set)
        for phrase in phrases:
            lengths[phrase[:2]].add(len(phrase))
        # A text's many occurrences share one string.
        self._phrases = {phrase: phrase for phrase in phrases}
        self._lengths = {head: sorted(found) for head, found in lengths.items()}
        self._starts = _starts({head[0] for head in lengths})

    def find(self, text: str) -> Iterator[Phrase]:
        """The phrases in a normalised text, by where they start, shorter ones first."""
        if not self._phrases:
            return
        folded, origins = _fold(text)
        for match in self._starts.finditer(folded):
            start = match.start()
            for length in self._lengths.get(folded[start : start + 2], ()):
                end = start + length
                if end > len(folded):
                    break
                term = self._phrases.get(folded[start:end])
                if term and not _WORD_GOES_ON.match(folded, end - 1):
                    yield Phrase(origins[start], origins[end - 1] + 1, term)


def _starts(characters: Collection[str]) -> re.Pattern[str]:
    """Where a phrase can start; beyond the basic plane at any character, whose classes `re` searches one by one."""
    basic = {character for character in characters if character <= _LAST_BASIC}
    latin = {character for character in basic if re.fullmatch(LATIN, character)}
    classes = ((rf"(?<!{LATIN})", latin), ("", basic - latin))
    starts = [f"{before}[{re.escape(''.join(sorted(found)))}]" for before, found in classes if found]
    if len(basic) < len(characters):
        starts.append(rf"(?:(?<!{LATIN})|(?!{LATIN}))[^\0-{_LAST_BASIC}]")
    return re.compile("|".join(starts))


def _fold(text: str) -> tuple[str, Sequence[int]]:
    """The text case-folded, all white space as spaces, and where in `text` each of its characters came from."""
    folded = _WHITE_SPACE.sub(" ", text.casefold())
    if len(folded) == len(text):
        return folded, range(len(text))
    return folded, [index for index, character in enumerate(text) for _ in character.casefold()]
