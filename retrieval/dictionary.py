"""User dictionaries and stop words as people write them, one word a line, and how words of several scripts are found."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Literal, NamedTuple

from retrieval.characters import CJK, LATIN
from retrieval.errors import RetrievalError

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

    Phrases are case-folded, of two characters or more, with one space between their words.
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


# Of a text before it is read.
MAX_TEXT_CHARACTERS = 1_000_000
MAX_LINES = 50_000
# Before normalisation, whose time grows with the square of a row of combining marks.
MAX_LINE_CHARACTERS = 1_000
MAX_WORD_CHARACTERS = 50
# Of all words together: jieba stores every beginning of a word.
MAX_CHARACTERS = 500_000
MAX_FREQUENCY = 1_000_000_000

_NUMBER = re.compile(r"[-+]?\d[\d.,]*")
_PART_OF_SPEECH = re.compile(r"[a-z]+")
_CHINESE_END = re.compile(rf"[{CJK}]\Z")


DictionaryProblem = Literal[
    "empty_word", "no_letters", "word_too_long", "bad_frequency", "too_many_lines", "too_many_characters"
]


@dataclass(frozen=True, slots=True)
class DictionaryWord:
    """A word that the tokenizer is to keep whole.

    Its frequency is from 1 to `MAX_FREQUENCY`; the higher, the more a word of Chinese characters prevails over its
    neighbours. None: as high as the word needs to stay whole where it stands alone.
    """

    word: str  # as it was written, in NFKC
    frequency: int | None = None


def parse_dictionary(text: str) -> tuple[DictionaryWord, ...]:
    """Reads jieba's format: `word [frequency] [part of speech]`, fields separated by spaces or tabs.

    Blank lines and lines that begin with # are skipped, the part of speech is read over, as it changes no cut, and of
    two lines with one word the last counts, as in jieba. A word may hold spaces; one that ends in a number
    (`iPhone 15`) needs a frequency behind it. Raises DictionaryError for a line that cannot be used.
    """
    entries = ((number, *_split(line.split())) for number, line in _lines(text))
    words = {word: DictionaryWord(word, _frequency(field, number)) for number, word, field in _checked(entries)}
    return tuple(words.values())


def parse_stop_words(text: str) -> frozenset[str]:
    """Reads one word a line; blank lines, lines that begin with # and lines of punctuation are skipped.

    Raises DictionaryError for a line that cannot be used.
    """
    entries = ((number, " ".join(line.split()), None) for number, line in _lines(text) if _has_letters(line))
    return frozenset(word for _number, word, _field in _checked(entries))


class DictionaryError(RetrievalError):
    """A user dictionary or a list of stop words cannot be used, for a problem in a line, numbered from 1."""

    def __init__(self, line: int, problem: DictionaryProblem, message: str) -> None:
        super().__init__(f"Line {line}: {message}")
        self.line = line
        self.problem = problem


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbers and contents, in NFKC, of the lines that are neither blank nor comments."""
    for number, line in enumerate(StringIO(text.removeprefix("\ufeff"), newline=None), 1):
        if number > MAX_LINES:
            raise DictionaryError(
                number, "too_many_lines", f"there are more than {MAX_LINES:,} lines: leave out words that seldom occur"
            )
        plain = unicodedata.normalize("NFKC", line[:MAX_LINE_CHARACTERS]).strip()
        if plain and not plain.startswith("#"):
            if len(line) > MAX_LINE_CHARACTERS:
                raise DictionaryError(
                    number,
                    "word_too_long",
                    f"the line has more than {MAX_LINE_CHARACTERS:,} characters: write one word a line",
                )
            yield number, plain


def _split(fields: list[str]) -> tuple[str, str | None]:
    """The word, and the field that is its frequency.

    A part of speech stands after a frequency or after Chinese: in `spring boot` there is none.
    """
    *word, last = fields
    if _NUMBER.fullmatch(last) and word:
        return " ".join(word), last
    if _PART_OF_SPEECH.fullmatch(last) and word:
        if _NUMBER.fullmatch(word[-1]):
            return " ".join(word[:-1]), word[-1]
        if _CHINESE_END.search(word[-1]):
            return " ".join(word), None
    return " ".join(fields), None


_Entry = tuple[int, str, str | None]


def _checked(entries: Iterable[_Entry]) -> Iterator[_Entry]:
    """The entries (line, word, frequency) as they come, up to one whose word cannot be used or is one too many."""
    seen: set[str] = set()
    characters = 0
    for line, word, frequency in entries:
        if not word:
            raise DictionaryError(line, "empty_word", "there is no word before the frequency: write one")
        if len(word) > MAX_WORD_CHARACTERS:
            raise DictionaryError(
                line,
                "word_too_long",
                f"the word has {len(word)} characters: write one of at most {MAX_WORD_CHARACTERS}",
            )
        if not _has_letters(word):
            raise DictionaryError(
                line, "no_letters", f"{word!r} has no letter and no digit, so it is never searched: take it out"
            )
        characters += 0 if word in seen else len(word)
        if characters > MAX_CHARACTERS:
            message = (
                f"the words have more than {MAX_CHARACTERS:,} characters in all: leave out words that seldom occur"
            )
            raise DictionaryError(line, "too_many_characters", message)
        seen.add(word)
        yield line, word, frequency


def _frequency(field: str | None, line: int) -> int | None:
    if field is None:
        return None
    if not (field.isdecimal() and len(field) <= len(str(MAX_FREQUENCY)) and 1 <= int(field) <= MAX_FREQUENCY):
        raise DictionaryError(
            line,
            "bad_frequency",
            f"the frequency {field} is not a whole number from 1 to {MAX_FREQUENCY:,}: correct it, "
            "or add a frequency if the word ends in this number",
        )
    return int(field)


def _has_letters(word: str) -> bool:
    return any(map(str.isalnum, word))
