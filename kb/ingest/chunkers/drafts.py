"""What every strategy takes and returns, and how the texts of neighbouring chunks overlap."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

Unit = Literal["characters", "tokens"]
Strategy = Literal["recursive", "headings", "questions", "parent_child", "tokens"]

MIN_SIZE: Final = 20
CJK: Final = "\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[^\W{CJK}]+|\S")
_CHARACTERS_PER_TOKEN = 4


def approximate_tokens(text: str) -> int:
    """Estimates a model's token count without a model.

    A Chinese, Japanese or Korean character and a punctuation mark count as 1, a word of another script as a quarter
    of its characters, rounded up; white space counts nothing. That is close to BERT's and to most BPE vocabularies.
    """
    return sum(-(-len(token) // _CHARACTERS_PER_TOKEN) for token in _TOKEN.findall(text))


def approximate_token_ends(text: str) -> list[int]:
    """Where each of the tokens that `approximate_tokens` counts ends."""
    return [
        min(start + _CHARACTERS_PER_TOKEN, match.end())
        for match in _TOKEN.finditer(text)
        for start in range(match.start(), match.end(), _CHARACTERS_PER_TOKEN)
    ]


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """How a document is cut.

    Attributes:
        size: the longest chunk, in units.
        overlap: how much of the end of a chunk may open the next, in units; only whole sentences are repeated, except by
            the strategy "tokens".
        unit: what the sizes count; "tokens" cuts by tokens whatever it says.
        count_tokens: a tokenizer's count; without one tokens are approximated.
        token_ends: where each token of a text ends, by the same tokenizer.
        strategy: a key of `kb.ingest.chunkers.strategies.CHUNKERS`.
        parent_size: the longest passage that is returned in place of its chunks, in units.
    """

    size: int = 500
    overlap: int = 50
    unit: Unit = "characters"
    count_tokens: Callable[[str], int] | None = None
    token_ends: Callable[[str], Sequence[int]] | None = None
    strategy: Strategy = "recursive"
    parent_size: int = 2_000

    def __post_init__(self) -> None:
        if self.size < MIN_SIZE:
            raise ValueError(f"Chunk size {self.size} is too small: set it to {MIN_SIZE} or more.")
        if not 0 <= self.overlap < self.size:
            raise ValueError(
                f"Chunk overlap {self.overlap} does not fit chunk size {self.size}: set it between 0 and {self.size - 1}."
            )
        if self.unit not in get_args(Unit):
            raise ValueError(f"Unknown chunk unit {self.unit!r}: use one of {', '.join(get_args(Unit))}.")
        if self.strategy not in get_args(Strategy):
            known = ", ".join(get_args(Strategy))
            raise ValueError(f"Unknown chunking strategy {self.strategy!r}: use one of {known}.")
        if self.strategy == "parent_child" and self.parent_size <= self.size:
            raise ValueError(
                f"Parent size {self.parent_size} does not fit chunk size {self.size}: set it to more than {self.size}."
            )

    @property
    def token_counter(self) -> Callable[[str], int]:
        return self.count_tokens or approximate_tokens

    @property
    def length(self) -> Callable[[str], int]:
        return len if self.unit == "characters" else self.token_counter

    def fingerprint(self, model_id: str) -> str:
        """Tells apart settings that cut differently.

        Args:
            model_id: of the embedding model, which matters where its tokens are counted.
        """
        by_tokens = self.strategy == "tokens" or self.unit == "tokens"
        parts = (
            self.strategy,
            self.size,
            self.overlap,
            "tokens" if by_tokens else self.unit,
            self.parent_size if self.strategy == "parent_child" else "",
            model_id if by_tokens else "",
        )
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ParentDraft:
    """A longer passage that is returned in place of the chunks cut from it; position counts from 0."""

    text: str
    position: int
    page: int | None
    heading_path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChunkDraft:
    """A chunk before it is stored; position counts from 0 within the document.

    Attributes:
        parent: what is returned in its place; None: itself.
        questions: that the document itself asks, and this chunk answers.
    """

    text: str
    position: int
    page: int | None
    heading_path: tuple[str, ...]
    token_count: int
    parent: ParentDraft | None = None
    questions: tuple[str, ...] = ()


def hash_content(text: str) -> str:
    """SHA-256 of the text in NFC with white space collapsed, in hexadecimal: equal for what reads the same."""
    return hashlib.sha256(" ".join(unicodedata.normalize("NFC", text).split()).encode()).hexdigest()


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
