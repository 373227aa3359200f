"""Splits a parsed document into chunks that end where sentences end, in Chinese and in English."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from langchain_text_splitters import RecursiveCharacterTextSplitter

from kb.ingest.parse import ParsedDocument, Section

Unit = Literal["characters", "tokens"]

MIN_SIZE: Final = 20
_UNITS: Final = ("characters", "tokens")
# From the strongest boundary to none. Each swallows the white space after it, so that no piece is blank; groups are
# non-capturing, because the splitter adds one of its own; the lookbehind keeps a long row of dots linear.
_SEPARATORS: Final = (
    r"\n[^\S\n]*\n\s*",
    r"\n\s*",
    r"(?:[。！？…]+[”’」』）》]*\s*|(?<![.!?])[.!?]+[\"'”’)\]]*\s+)",
    r"(?:；\s*|;\s+)",
    r"(?:[，、：]\s*|[,:]\s+)",
    r"\s+",
    "",
)
_CJK = "\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[^\W{_CJK}]+|\S")
_CHARACTERS_PER_TOKEN = 4


def approximate_tokens(text: str) -> int:
    """Estimates a model's token count without a model.

    A Chinese, Japanese or Korean character and a punctuation mark count as 1, a word of another script as a quarter
    of its characters, rounded up; white space counts nothing. That is close to BERT's and to most BPE vocabularies.
    """
    return sum(-(-len(token) // _CHARACTERS_PER_TOKEN) for token in _TOKEN.findall(text))


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """How long chunks are.

    Attributes:
        size: the longest chunk, in units.
        overlap: how much of the end of a chunk may open the next, in units; only whole sentences are repeated.
        unit: what size and overlap count.
        count_tokens: a tokenizer's count; without one tokens are approximated.
    """

    size: int = 500
    overlap: int = 50
    unit: Unit = "characters"
    count_tokens: Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        if self.size < MIN_SIZE:
            raise ValueError(f"Chunk size {self.size} is too small: set it to {MIN_SIZE} or more.")
        if not 0 <= self.overlap < self.size:
            raise ValueError(
                f"Chunk overlap {self.overlap} does not fit chunk size {self.size}: set it between 0 and {self.size - 1}."
            )
        if self.unit not in _UNITS:
            raise ValueError(f"Unknown chunk unit {self.unit!r}: use one of {', '.join(_UNITS)}.")

    @property
    def token_counter(self) -> Callable[[str], int]:
        return self.count_tokens or approximate_tokens

    @property
    def length(self) -> Callable[[str], int]:
        return len if self.unit == "characters" else self.token_counter


@dataclass(frozen=True, slots=True)
class ChunkDraft:
    """A chunk before it is stored; position counts from 0 within the document."""

    text: str
    position: int
    page: int | None
    heading_path: tuple[str, ...]
    token_count: int


def split(document: ParsedDocument, *, settings: ChunkSettings) -> list[ChunkDraft]:
    """Splits a document; no chunk crosses a heading or a page, or is longer than settings.size."""
    splitter = RecursiveCharacterTextSplitter(
        separators=list(_SEPARATORS),
        is_separator_regex=True,
        keep_separator="end",
        chunk_size=settings.size,
        chunk_overlap=settings.overlap,
        length_function=settings.length,
    )
    drafts: list[ChunkDraft] = []
    for section in _joined(document.sections):
        for piece in splitter.split_text(section.text):
            for text in _fitted(piece, settings):
                tokens = settings.token_counter(text)
                drafts.append(ChunkDraft(text, len(drafts), section.page, section.heading_path, tokens))
    return drafts


def _joined(sections: tuple[Section, ...]) -> Iterator[Section]:
    """Neighbours under one heading and on one page are one text, so that short ones share a chunk."""
    for (page, path), group in groupby(sections, key=lambda section: (section.page, section.heading_path)):
        yield Section("\n\n".join(section.text for section in group), page, path)


def _fitted(text: str, settings: ChunkSettings) -> Iterator[str]:
    """Halves what is still too long: a tokenizer may count more for a whole than for its parts."""
    text = text.strip()
    if not text:
        return
    if settings.length(text) <= settings.size or len(text) == 1:
        yield text
        return
    middle = len(text) // 2
    yield from _fitted(text[:middle], settings)
    yield from _fitted(text[middle:], settings)


def hash_content(text: str) -> str:
    """SHA-256 of the text in NFC with white space collapsed, in hexadecimal: equal for what reads the same."""
    return hashlib.sha256(" ".join(unicodedata.normalize("NFC", text).split()).encode()).hexdigest()
