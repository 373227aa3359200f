"""The strategies that cut a parsed document into chunk drafts, by the names that knowledge bases choose them by."""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from typing import Final, Literal, get_args

from kb.ingest.parser.parsed import ParsedDocument, Section, SectionKind

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
    """How a document is cut; sizes are in units, and the strategy "tokens" counts tokens whatever the unit is.

    The end of a chunk opens the next by at most `overlap`, in whole sentences, but for "tokens". Unless a tokenizer
    counts them and says where each ends, tokens are approximated. `parent_size` bounds the passage returned in place of
    its chunks.
    """

    size: int = 500
    overlap: int = 50
    unit: Unit = "characters"
    count_tokens: Callable[[str], int] = approximate_tokens
    token_ends: Callable[[str], Sequence[int]] = approximate_token_ends
    strategy: Strategy = "recursive"
    parent_size: int = 2_000

    def __post_init__(self) -> None:
        refusals = {
            f"Chunk size {self.size} is too small: set it to {MIN_SIZE} or more.": self.size < MIN_SIZE,
            f"Chunk overlap {self.overlap} does not fit chunk size {self.size}: set it between 0 and {self.size - 1}.": (
                not 0 <= self.overlap < self.size
            ),
            f"Unknown chunk unit {self.unit!r}: use one of {', '.join(get_args(Unit))}.": (
                self.unit not in get_args(Unit)
            ),
            f"Unknown chunking strategy {self.strategy!r}: use one of {', '.join(get_args(Strategy))}.": (
                self.strategy not in get_args(Strategy)
            ),
            f"Parent size {self.parent_size} does not fit chunk size {self.size}: set it to more than {self.size}.": (
                self.strategy == "parent_child" and self.parent_size <= self.size
            ),
        }
        for message, is_refused in refusals.items():
            if is_refused:
                raise ValueError(message)

    @property
    def length(self) -> Callable[[str], int]:
        return len if self.unit == "characters" else self.count_tokens

    def fingerprint(self, model_id: str, parser: str = "") -> str:
        """Tells apart settings that cut differently, and files that another parser reads; blank: the built-in one."""
        by_tokens = self.strategy == "tokens" or self.unit == "tokens"
        parts = (
            self.strategy,
            self.size,
            self.overlap,
            "tokens" if by_tokens else self.unit,
            self.parent_size if self.strategy == "parent_child" else "",
            model_id if by_tokens else "",
            *([parser] if parser else []),
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

    `parent` is returned in its place; `questions` are those of the document itself that it answers.
    """

    text: str
    position: int
    page: int | None
    heading_path: tuple[str, ...]
    token_count: int
    parent: ParentDraft | None = None
    questions: tuple[str, ...] = ()


SEPARATOR = "\n\n"

# Of a chunk: text, page, heading path, what is returned in its place, and questions.
Piece = tuple[str, int | None, tuple[str, ...], ParentDraft | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Passage:
    """All that stands under one heading, and where the text of each of its pages begins, ascending."""

    text: str
    heading_path: tuple[str, ...]
    starts: tuple[int, ...]
    pages: tuple[int | None, ...]

    def page_at(self, offset: int) -> int | None:
        return self.pages[max(0, bisect_right(self.starts, offset) - 1)]


def by_heading(document: ParsedDocument) -> Iterator[Passage]:
    """Neighbours under one heading as one text, whatever pages they are on."""
    for group in _neighbours(document, lambda section: section.heading_path):
        starts = accumulate((len(section.text) + len(SEPARATOR) for section in group[:-1]), initial=0)
        text, pages = SEPARATOR.join(section.text for section in group), (section.page for section in group)
        yield Passage(text, group[0].heading_path, tuple(starts), tuple(pages))


def _neighbours(document: ParsedDocument, key: Callable[[Section], object]) -> Iterator[tuple[Section, ...]]:
    """Records and pairs stay by themselves: each is whole."""
    for (kind, _key), group in groupby(document.sections, key=lambda section: (section.kind, key(section))):
        if kind is SectionKind.TEXT:
            yield tuple(group)
        else:
            yield from ((section,) for section in group)


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


def split_pages(
    cut: Callable[[str, ChunkSettings], Iterator[str]], document: ParsedDocument, settings: ChunkSettings
) -> Iterator[Piece]:
    """No chunk crosses a heading or a page, or is longer than `cut` makes it; short neighbours share one."""
    for group in _neighbours(document, lambda section: (section.page, section.heading_path)):
        for text in cut(SEPARATOR.join(section.text for section in group), settings):
            yield text, group[0].page, group[0].heading_path, None, ()


# A table in Markdown: its header with the rule below it, and its rows.
_TABLE: Final = re.compile(r"^(\|.*\|\n\|(?:[ ]?:?-{3,}:?[ ]?\|)+\n)((?:\|.*\|(?:\n|\Z))+)", re.MULTILINE)


def split_text(text: str, settings: ChunkSettings) -> Iterator[str]:
    """Pieces of a text, none of them blank or longer than settings.size; each part of a table has the table's header."""
    return (header + piece for _, piece, header in cut_text(text, settings))


# Where a piece begins in a text, the piece, and the header that it repeats of the table that it goes on with.
Cut = tuple[int, str, str]


def cut_text(text: str, settings: ChunkSettings) -> Iterator[Cut]:
    """Pieces as they stand in the text, none of them blank, nor longer than settings.size with the header of its table.

    Rows of a table are cut only where one is longer than that.
    """
    tables = list(_TABLE.finditer(text)) if settings.length(text) > settings.size else []
    if not tables:
        yield from _by_separators(text, 0, settings)
        return
    pieces: list[Cut] = []
    begin = 0
    for table in tables:
        pieces += _by_separators(text[begin : table.start()], begin, settings)
        pieces += _by_rows(table, settings)
        begin = table.end()
    pieces += _by_separators(text[begin:], begin, settings)
    yield from _shared(pieces, text, settings)


def _shared(pieces: Sequence[Cut], text: str, settings: ChunkSettings) -> Iterator[Cut]:
    """What fits into one piece with what stands before it shares one."""
    begin, end, header = 0, 0, ""
    for place, piece, repeated in pieces:
        is_next = end > begin and not repeated and text[end:place] == SEPARATOR
        if is_next and settings.length(header + text[begin : place + len(piece)]) <= settings.size:
            end = place + len(piece)
            continue
        if end > begin:
            yield begin, text[begin:end], header
        begin, end, header = place, place + len(piece), repeated
    if end > begin:
        yield begin, text[begin:end], header


def _by_rows(table: re.Match[str], settings: ChunkSettings) -> Iterator[Cut]:
    """As many whole rows a piece as fit below the header; one that takes half of a piece or more is not repeated."""
    header, rows = table.groups()
    left = settings.size - settings.length(header)
    if left < max(MIN_SIZE, settings.size // 2):
        yield from _by_separators(table[0], table.start(), settings)
        return
    begin, piece, above = table.start(), header, ""
    for line in rows.rstrip("\n").split("\n"):
        if settings.length(above + piece + line) <= settings.size:
            piece += f"{line}\n"
            continue
        if piece != header:
            yield begin, piece.strip(), above
        begin, piece, above = begin + len(piece), f"{line}\n", header
        if settings.length(above + line) > settings.size:
            cut = _by_separators(piece, begin, replace(settings, size=left, overlap=0))
            yield from ((place, part, above) for place, part, _ in cut)
            begin, piece = begin + len(piece), ""
    if piece:
        yield begin, piece.strip(), above


def _by_separators(text: str, begin: int, settings: ChunkSettings) -> Iterator[Cut]:
    """The pieces of a part that begins at a place of the whole text, cut at the strongest boundaries."""
    return ((begin + place, piece, "") for place, piece in located(text, list(_recursively(text, settings))))


def _recursively(text: str, settings: ChunkSettings) -> Iterator[str]:
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


def split_by_headings(document: ParsedDocument, settings: ChunkSettings) -> Iterator[Piece]:
    """What is too long for one chunk is cut by paragraphs and sentences; a chunk's page is the one it begins on."""
    for passage in by_heading(document):
        for start, text, header in cut_text(passage.text, settings):
            yield header + text, passage.page_at(start), passage.heading_path, None, ()


def split_with_parents(document: ParsedDocument, settings: ChunkSettings) -> Iterator[Piece]:
    """Parents cross page breaks, but no heading; one that a single chunk fills is left out: the chunk is enough."""
    large = replace(settings, strategy="recursive", size=settings.parent_size, overlap=0)
    parents = 0
    for passage in by_heading(document):
        for begin, text, header in cut_text(passage.text, large):
            whole = header + text
            children = list(cut_text(whole, settings))
            parent = None
            if len(children) > 1:
                parent = ParentDraft(whole, parents, passage.page_at(begin), passage.heading_path)
                parents += 1
            for start, child, repeated in children:
                page = passage.page_at(begin + max(0, start - len(header)))
                yield repeated + child, page, passage.heading_path, parent, ()


# A tokenizer keeps much more of a text than the text itself, so a long one is read in pieces.
_READ_AT_ONCE = 50_000
# Scripts without spaces between words: a boundary between two of their characters divides no word that is marked as one.
_FIRST_CJK = "\u2e80"


def split_tokens(text: str, settings: ChunkSettings) -> Iterator[str]:
    """Pieces of a text of at most settings.size tokens, in which words stay whole."""
    begin = 0
    while begin < len(text):
        piece = text[begin : begin + _READ_AT_ONCE]
        is_last = begin + len(piece) == len(text)
        ends = list(settings.token_ends(piece))
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
            first = max(first + 1, last - settings.overlap)
            # An overlap begins behind a word that it divides.
            while first < last and _divides_word(piece, ends[first - 1]):
                first += 1
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
    while last > first + 1 and settings.count_tokens(text[start : ends[last - 1]].strip()) > settings.size:
        last -= 1
    return last


def _divides_word(text: str, place: int) -> bool:
    around = text[place - 1 : place + 1]
    return len(around) == 2 and all(each.isalnum() and each < _FIRST_CJK for each in around)


_MARK = r"^[*_#> \t\u3000-]*(?:{words})[*_ \t\u3000\d]*[:：][*_]*[^\S\n]*"
_QUESTION = re.compile(_MARK.format(words="Q|Question|问|问题"), re.MULTILINE | re.IGNORECASE)
_ANSWER = re.compile(_MARK.format(words="A|Answer|答|回答|答案"), re.MULTILINE | re.IGNORECASE)


def split_by_questions(document: ParsedDocument, settings: ChunkSettings) -> Iterator[Piece]:
    """A pair too long for one chunk repeats its question in each; text between the pairs is cut by sentences."""
    for text, page, path, parent, questions in _pairs(document):
        for piece in _pieces(text, questions, settings):
            yield piece, page, path, parent, questions


def _pairs(document: ParsedDocument) -> Iterator[Piece]:
    """The pairs that a format tells of, and those that are marked in the text; of a pair the text is the answer."""
    for has_question, group in groupby(document.sections, key=lambda section: bool(section.question)):
        sections = tuple(group)
        if has_question:
            for each in sections:
                questions = tuple(" ".join(question.split()) for question in (each.question, *each.alternatives))
                yield each.answer, each.page, each.heading_path, None, questions
        else:
            for passage in by_heading(replace(document, sections=sections)):
                yield from _marked(passage)


def _marked(passage: Passage) -> Iterator[Piece]:
    """The text before the first question, then question by question, each with all that follows up to the next."""
    marks = list(_QUESTION.finditer(passage.text))
    starts = [mark.start() for mark in marks] + [len(passage.text)]
    yield from _plain(passage, 0, starts[0])
    for mark, end in zip(marks, starts[1:], strict=True):
        answer = _ANSWER.search(passage.text, mark.end(), end)
        question = " ".join(passage.text[mark.end() : answer.start()].split()) if answer else ""
        if answer and question and (text := passage.text[answer.end() : end].strip()):
            yield text, passage.page_at(mark.start()), passage.heading_path, None, (question,)
        else:
            yield from _plain(passage, mark.start(), end)


def _plain(passage: Passage, start: int, end: int) -> Iterator[Piece]:
    for page, first, after in zip(passage.pages, passage.starts, (*passage.starts[1:], len(passage.text)), strict=True):
        if text := passage.text[max(start, first) : min(end, after)].strip():
            yield text, page, passage.heading_path, None, ()


def _pieces(text: str, questions: tuple[str, ...], settings: ChunkSettings) -> Iterator[str]:
    opening = f"{questions[0]}\n" if questions else ""
    left = settings.size - settings.length(opening)
    if questions and settings.length(opening + text) <= settings.size:
        yield opening + text
    elif not questions or left < max(MIN_SIZE, settings.size // 2):
        # A question of which little of a chunk would be left for the answer opens only the first.
        yield from split_text(opening + text, settings)
    else:
        for piece in split_text(text, replace(settings, size=left, overlap=min(settings.overlap, left - 1))):
            yield opening + piece


CHUNKERS: Final[Mapping[Strategy, Callable[[ParsedDocument, ChunkSettings], Iterator[Piece]]]] = {
    "recursive": partial(split_pages, split_text),
    "headings": split_by_headings,
    "questions": split_by_questions,
    "parent_child": split_with_parents,
    "tokens": partial(split_pages, split_tokens),
}


def split(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    pieces = CHUNKERS[settings.strategy](document, settings)
    return [
        ChunkDraft(text, position, page, path, settings.count_tokens(text), parent, questions)
        for position, (text, page, path, parent, questions) in enumerate(pieces)
    ]
