"""The strategies that cut a parsed document into chunk drafts, by the names that knowledge bases choose them by."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from kb.ingest.chunkers.drafts import MIN_SIZE, ChunkDraft, ChunkSettings, ParentDraft, Strategy, approximate_token_ends
from kb.ingest.parser.parsed import ParsedDocument, Section, SectionKind

SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class Passage:
    """All that stands under one heading, over all of its pages.

    Attributes:
        starts: where the text of each page begins, ascending.
        pages: their numbers.
    """

    text: str
    heading_path: tuple[str, ...]
    starts: tuple[int, ...]
    pages: tuple[int | None, ...]

    def page_at(self, offset: int) -> int | None:
        return self.pages[max(0, bisect_right(self.starts, offset) - 1)]


def by_page(document: ParsedDocument) -> Iterator[Section]:
    """Neighbours under one heading and on one page as one text, so that short ones share a chunk."""
    for group in _neighbours(document, lambda section: (section.page, section.heading_path)):
        yield Section(SEPARATOR.join(section.text for section in group), group[0].page, group[0].heading_path)


def by_heading(document: ParsedDocument) -> Iterator[Passage]:
    """Neighbours under one heading as one text, whatever pages they are on."""
    for group in _neighbours(document, lambda section: section.heading_path):
        yield _joined(group)


def _neighbours(document: ParsedDocument, key: Callable[[Section], object]) -> Iterator[tuple[Section, ...]]:
    """Records and pairs stay by themselves: each is whole."""
    for (kind, _key), group in groupby(document.sections, key=lambda section: (section.kind, key(section))):
        if kind is SectionKind.TEXT:
            yield tuple(group)
        else:
            yield from ((section,) for section in group)


def _joined(sections: tuple[Section, ...]) -> Passage:
    starts, length = [], 0
    for section in sections:
        starts.append(length)
        length += len(section.text) + len(SEPARATOR)
    text = SEPARATOR.join(section.text for section in sections)
    return Passage(text, sections[0].heading_path, tuple(starts), tuple(section.page for section in sections))


def located(text: str, pieces: list[str]) -> Iterator[tuple[int, str]]:
    """Each piece with the place where it begins; pieces stand in the text in their order, side by side or overlapping."""
    start, end = -1, 0
    for piece in pieces:
        place = end
        while place < len(text) and text[place].isspace():
            place += 1
        # Of several places in repeated text the last is the right one: overlaps are short.
        behind = place + len(piece)
        place = text.rfind(piece, start + 1, behind)
        if place < 0:  # one such was taken for a later one
            place = text.rfind(piece, 0, behind)
        start, end = place, place + len(piece)
        yield start, piece


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


def split_recursively(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """No chunk crosses a heading or a page, or is longer than settings.size."""
    drafts: list[ChunkDraft] = []
    for section in by_page(document):
        for text in split_text(section.text, settings):
            drafts.append(
                ChunkDraft(text, len(drafts), section.page, section.heading_path, settings.token_counter(text))
            )
    return drafts


def split_text(text: str, settings: ChunkSettings) -> Iterator[str]:
    """Pieces of a text, none of them blank or longer than settings.size."""
    from langchain_text_splitters import RecursiveCharacterTextSplitter  # noqa: PLC0415 - LangChain is slow to import

    splitter = RecursiveCharacterTextSplitter(
        separators=list(_SEPARATORS),
        is_separator_regex=True,
        keep_separator="end",
        chunk_size=settings.size,
        chunk_overlap=settings.overlap,
        length_function=settings.length,
    )
    for piece in splitter.split_text(text):
        yield from _fitted(piece, settings)


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


def split_by_headings(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """What is too long for one chunk is cut by paragraphs and sentences; a chunk's page is the one it begins on."""
    drafts: list[ChunkDraft] = []
    for passage in by_heading(document):
        for start, text in located(passage.text, list(split_text(passage.text, settings))):
            drafts.append(
                ChunkDraft(
                    text, len(drafts), passage.page_at(start), passage.heading_path, settings.token_counter(text)
                )
            )
    return drafts


def split_with_parents(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """Parents cross page breaks, but no heading; one that a single chunk fills is left out: the chunk is enough."""
    large = replace(settings, strategy="recursive", size=settings.parent_size, overlap=0)
    drafts: list[ChunkDraft] = []
    parents = 0
    for passage in by_heading(document):
        for begin, text in located(passage.text, list(split_text(passage.text, large))):
            children = list(located(text, list(split_text(text, settings))))
            parent = None
            if len(children) > 1:
                parent = ParentDraft(text, parents, passage.page_at(begin), passage.heading_path)
                parents += 1
            for start, child in children:
                page = passage.page_at(begin + start)
                drafts.append(
                    ChunkDraft(child, len(drafts), page, passage.heading_path, settings.token_counter(child), parent)
                )
    return drafts


# A tokenizer keeps much more of a text than the text itself, so a long one is read in pieces.
_READ_AT_ONCE = 50_000
# Scripts without spaces between words: a boundary between two of their characters divides no word that is marked as one.
_FIRST_CJK = "\u2e80"


def split_by_tokens(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """No chunk crosses a heading or a page, or has more than settings.size tokens; words stay whole."""
    drafts: list[ChunkDraft] = []
    for section in by_page(document):
        for text in _windows(section.text, settings):
            drafts.append(
                ChunkDraft(text, len(drafts), section.page, section.heading_path, settings.token_counter(text))
            )
    return drafts


def _windows(text: str, settings: ChunkSettings) -> Iterator[str]:
    token_ends = settings.token_ends or approximate_token_ends
    begin = 0
    while begin < len(text):
        piece = text[begin : begin + _READ_AT_ONCE]
        is_last = begin + len(piece) == len(text)
        ends = list(token_ends(piece))
        first = 0
        while first < len(ends):
            last = min(first + settings.size, len(ends))
            if last == len(ends) and not is_last and first:
                break  # read on from here, so that the window is filled
            start = ends[first - 1] if first else 0
            last = _last_token(piece, ends, first, last, settings)
            if window := piece[start : ends[last - 1] if last < len(ends) else len(piece)].strip():
                yield window
            if last == len(ends):
                first = last
                break
            first = _first_token(piece, ends, max(first + 1, last - settings.overlap), last)
        # Where a piece was read to its end there is nothing left to read again.
        begin += ends[first - 1] if 0 < first < len(ends) else len(piece)


def _last_token(text: str, ends: list[int], first: int, last: int, settings: ChunkSettings) -> int:
    """The end of a window: before a word that it would divide, and by the count that its text has by itself."""
    start = ends[first - 1] if first else 0
    if last < len(ends):
        whole = last
        while whole > first + settings.size // 2 and _divides_word(text, ends[whole - 1]):
            whole -= 1
        last = last if _divides_word(text, ends[whole - 1]) else whole
    while last > first + 1 and settings.token_counter(text[start : ends[last - 1]].strip()) > settings.size:
        last -= 1
    return last


def _first_token(text: str, ends: list[int], first: int, last: int) -> int:
    """The beginning of an overlap: behind a word that it would divide."""
    while first < last and _divides_word(text, ends[first - 1]):
        first += 1
    return first


def _divides_word(text: str, place: int) -> bool:
    around = text[place - 1 : place + 1]
    return len(around) == 2 and all(each.isalnum() and each < _FIRST_CJK for each in around)


_MARK = r"^[*_#> \t\u3000-]*(?:{words})[*_ \t\u3000\d]*[:：][*_]*[^\S\n]*"
_QUESTION = re.compile(_MARK.format(words="Q|Question|问|问题"), re.MULTILINE | re.IGNORECASE)
_ANSWER = re.compile(_MARK.format(words="A|Answer|答|回答|答案"), re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A part of a document; one without questions is any other text, else the text is their answer."""

    text: str
    page: int | None
    questions: tuple[str, ...] = ()


def split_by_questions(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """A pair too long for one chunk repeats its question in each; text between the pairs is cut by sentences."""
    drafts: list[ChunkDraft] = []
    for path, pairs in _pairs(document):
        for pair in pairs:
            for text in _pieces(pair, settings):
                drafts.append(
                    ChunkDraft(text, len(drafts), pair.page, path, settings.token_counter(text), None, pair.questions)
                )
    return drafts


def _pairs(document: ParsedDocument) -> Iterator[tuple[tuple[str, ...], Iterator[_Pair]]]:
    """The pairs that a format tells of, and those that are marked in the text."""
    for has_question, group in groupby(document.sections, key=lambda section: bool(section.question)):
        sections = tuple(group)
        if has_question:
            for each in sections:
                questions = tuple(" ".join(question.split()) for question in (each.question, *each.alternatives))
                yield each.heading_path, iter([_Pair(each.answer, each.page, questions)])
        else:
            for passage in by_heading(replace(document, sections=sections)):
                yield passage.heading_path, _marked(passage)


def _marked(passage: Passage) -> Iterator[_Pair]:
    """The text before the first question, then question by question, each with all that follows up to the next."""
    marks = list(_QUESTION.finditer(passage.text))
    starts = [mark.start() for mark in marks] + [len(passage.text)]
    yield from _plain(passage, 0, starts[0])
    for mark, end in zip(marks, starts[1:], strict=True):
        answer = _ANSWER.search(passage.text, mark.end(), end)
        question = " ".join(passage.text[mark.end() : answer.start()].split()) if answer else ""
        if answer and question and passage.text[answer.end() : end].strip():
            yield _Pair(passage.text[answer.end() : end].strip(), passage.page_at(mark.start()), (question,))
        else:
            yield from _plain(passage, mark.start(), end)


def _plain(passage: Passage, start: int, end: int) -> Iterator[_Pair]:
    """Other text, page by page."""
    for page, first, after in zip(passage.pages, passage.starts, (*passage.starts[1:], len(passage.text)), strict=True):
        if text := passage.text[max(start, first) : min(end, after)].strip():
            yield _Pair(text, page)


def _pieces(pair: _Pair, settings: ChunkSettings) -> Iterator[str]:
    if not pair.questions:
        yield from split_text(pair.text, settings)
        return
    opening = f"{pair.questions[0]}\n"
    left = settings.size - settings.length(opening)
    if settings.length(opening + pair.text) <= settings.size:
        yield opening + pair.text
    elif left < max(MIN_SIZE, settings.size // 2):
        # A question of which little of a chunk would be left for the answer opens only the first.
        yield from split_text(opening + pair.text, settings)
    else:
        for text in split_text(pair.text, replace(settings, size=left, overlap=min(settings.overlap, left - 1))):
            yield opening + text


Chunker = Callable[[ParsedDocument, ChunkSettings], list[ChunkDraft]]

CHUNKERS: Final[Mapping[Strategy, Chunker]] = {
    "recursive": split_recursively,
    "headings": split_by_headings,
    "questions": split_by_questions,
    "parent_child": split_with_parents,
    "tokens": split_by_tokens,
}


def split(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """Cuts a document by the strategy that its settings name."""
    return CHUNKERS[settings.strategy](document, settings)
