"""The strategies that cut a parsed document into chunk drafts, by the names that knowledge bases choose them by."""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from typing import Final, Literal, NamedTuple, get_args

from kb.ingest.parser.parsed import ParsedDocument, Region, Section, SectionKind

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

    def fingerprint(self, model_id: str, *choices: str) -> str:
        """Tells apart settings that cut differently, and further choices that change what is cut."""
        by_tokens = self.strategy == "tokens" or self.unit == "tokens"
        parts = (
            self.strategy,
            self.size,
            self.overlap,
            "tokens" if by_tokens else self.unit,
            self.parent_size if self.strategy == "parent_child" else "",
            model_id if by_tokens else "",
            *choices,
        )
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ParentDraft:
    """A longer passage that is returned in place of the chunks cut from it; position counts from 0."""

    text: str
    position: int
    heading_path: tuple[str, ...]
    regions: tuple[Region, ...] = ()

    @property
    def page(self) -> int | None:
        return next((each.page for each in self.regions if each.page is not None), None)


# Where a part of a text begins and ends in it, in characters.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ChunkDraft:
    """A chunk before it is stored; position counts from 0 within the document.

    `parent` is returned in its place; `questions` are those of the document itself that it answers. The `regions` are
    those of the document that its own text overlaps, by their places in it: a header that it repeats has none. The
    `parent_spans` are where its text stands in the parent: first the table header that it repeats, which is empty where
    it repeats none, then its own text.
    """

    text: str
    position: int
    heading_path: tuple[str, ...]
    token_count: int
    parent: ParentDraft | None = None
    questions: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    parent_spans: tuple[Span, ...] = ()

    @property
    def page(self) -> int | None:
        return next((each.page for each in self.regions if each.page is not None), None)

    @property
    def seconds(self) -> int | None:
        return next((each.seconds for each in self.regions if each.seconds is not None), None)


SEPARATOR = "\n\n"

# Of a chunk: text, regions, heading path, what is returned in its place with its spans in that, and questions.
Piece = tuple[str, tuple[Region, ...], tuple[str, ...], tuple[ParentDraft, tuple[Span, ...]] | None, tuple[str, ...]]


class Cut(NamedTuple):
    """A piece and where it begins in a text, and the header, with its place, of the table that it goes on with."""

    place: int
    text: str
    header: str = ""
    header_place: int = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """Sections under one heading as one text, where each of them begins in it, and its regions, which cover it."""

    text: str
    heading_path: tuple[str, ...]
    starts: tuple[int, ...]
    regions: tuple[Region, ...]

    @classmethod
    def of(cls, sections: Sequence[Section]) -> "Passage":
        starts = (0, *accumulate(len(section.text) + len(SEPARATOR) for section in sections[:-1]))
        regions: list[Region] = []
        for start, section in zip(starts, sections, strict=True):
            if not section.regions or section.regions[0].start:
                regions.append(Region(start, section.page))
            regions += (
                replace(each, start=start + each.start, page=section.page if each.page is None else each.page)
                for each in section.regions
            )
        text = SEPARATOR.join(section.text for section in sections)
        return cls(text, sections[0].heading_path, starts, tuple(regions))

    def piece(self, cut: Cut) -> Piece:
        regions = regions_within(self.regions, cut.place, cut.place + len(cut.text), len(cut.header))
        return cut.header + cut.text, regions, self.heading_path, None, ()


def regions_within(regions: Sequence[Region], begin: int, end: int, ahead: int = 0) -> tuple[Region, ...]:
    """The regions of a text that a part of it overlaps, for a text in which the part stands after `ahead` characters."""
    first = bisect_left(regions, begin, key=lambda each: each.start)
    if first and (first == len(regions) or regions[first].start > begin):
        first -= 1
    last = max(first + 1, bisect_left(regions, end, key=lambda each: each.start))
    return tuple(
        replace(each, start=each.start - begin + ahead if number and each.start > begin else 0)
        for number, each in enumerate(regions[first:last])
    )


def spans_within(spans: Sequence[Span], begin: int, end: int) -> tuple[Span, ...]:
    """The `ChunkDraft.parent_spans` of a part of a chunk's text."""
    found, before = list[Span](), 0
    for first, last in spans:
        start = min(max(first, first + begin - before), last)
        found.append((start, max(start, min(last, first + end - before))))
        before += last - first
    return (*found[:1], *(span for span in found[1:] if span[0] < span[1]))


def by_heading(document: ParsedDocument) -> Iterator[Passage]:
    """Neighbours under one heading as one text, whatever pages they are on."""
    return map(Passage.of, _neighbours(document, lambda section: section.heading_path))


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
    cut: Callable[[str, ChunkSettings], Iterator[Cut]], document: ParsedDocument, settings: ChunkSettings
) -> Iterator[Piece]:
    """No chunk crosses a heading or a page, or is longer than `cut` makes it; short neighbours share one."""
    for passage in map(Passage.of, _neighbours(document, lambda section: (section.page, section.heading_path))):
        yield from map(passage.piece, cut(passage.text, settings))


# A table in Markdown: its header with the rule below it, and its rows.
_TABLE: Final = re.compile(r"^(\|.*\|\n\|(?:[ ]?:?-{3,}:?[ ]?\|)+\n)((?:\|.*\|(?:\n|\Z))+)", re.MULTILINE)


def split_text(text: str, settings: ChunkSettings) -> Iterator[str]:
    """Pieces of a text, none of them blank or longer than settings.size; each part of a table has the table's header."""
    return (cut.header + cut.text for cut in cut_text(text, settings))


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
    shared: Cut | None = None
    for piece in pieces:
        if shared and not piece.header and text[shared.place + len(shared.text) : piece.place] == SEPARATOR:
            longer = shared._replace(text=text[shared.place : piece.place + len(piece.text)])
            if settings.length(longer.header + longer.text) <= settings.size:
                shared = longer
                continue
        if shared:
            yield shared
        shared = piece
    if shared:
        yield shared


def _by_rows(table: re.Match[str], settings: ChunkSettings) -> Iterator[Cut]:
    """As many whole rows a piece as fit below the header; one that takes half of a piece or more is not repeated."""
    header, rows = table.groups()
    left = settings.size - settings.length(header)
    if left < max(MIN_SIZE, settings.size // 2):
        yield from _by_separators(table[0], table.start(), settings)
        return
    top, begin, piece, above = table.start(), table.start(), header, ""
    for line in rows.rstrip("\n").split("\n"):
        if settings.length(above + piece + line) <= settings.size:
            piece += f"{line}\n"
            continue
        if piece != header:
            yield Cut(begin, piece.strip(), above, top)
        begin, piece, above = begin + len(piece), f"{line}\n", header
        if settings.length(above + line) > settings.size:
            cut = _by_separators(piece, begin, replace(settings, size=left, overlap=0))
            yield from (each._replace(header=above, header_place=top) for each in cut)
            begin, piece = begin + len(piece), ""
    if piece:
        yield Cut(begin, piece.strip(), above, top)


def _by_separators(text: str, begin: int, settings: ChunkSettings) -> Iterator[Cut]:
    """The pieces of a part that begins at a place of the whole text, cut at the strongest boundaries."""
    return (Cut(begin + place, piece) for place, piece in located(text, list(_recursively(text, settings))))


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
        yield from map(passage.piece, cut_text(passage.text, settings))


def split_with_parents(document: ParsedDocument, settings: ChunkSettings) -> Iterator[Piece]:
    """Parents cross page breaks, but no heading; one that a single chunk fills is left out: the chunk is enough."""
    large = replace(settings, strategy="recursive", size=settings.parent_size, overlap=0)
    parents = 0
    for passage in by_heading(document):
        for longer in cut_text(passage.text, large):
            whole, regions, path, *_ = passage.piece(longer)
            children = list(cut_text(whole, settings))
            parent = None
            if len(children) > 1:
                parent = ParentDraft(whole, parents, path, regions)
                parents += 1
            for place, child, repeated, top in children:
                end = place + len(child)
                spans = (top, top + len(repeated)), (place, end)
                own = regions_within(regions, place, end, len(repeated))
                yield repeated + child, own, path, (parent, spans) if parent else None, ()


# A tokenizer keeps much more of a text than the text itself, so a long one is read in pieces.
_READ_AT_ONCE = 50_000
# Scripts without spaces between words: a boundary between two of their characters divides no word that is marked as one.
_FIRST_CJK = "\u2e80"


def cut_tokens(text: str, settings: ChunkSettings) -> Iterator[Cut]:
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
            window = piece[start : ends[last - 1] if last < len(ends) else len(piece)].rstrip()
            if own := window.lstrip():
                yield Cut(begin + start + len(window) - len(own), own)
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
    for text, regions, path, parent, questions in _pairs(document):
        for piece, own in _pieces(text, regions, _opening(questions), settings):
            yield piece, own, path, parent, questions


def _pairs(document: ParsedDocument) -> Iterator[Piece]:
    """The pairs that a format tells of, and those that are marked in the text; of a pair the text is the answer.

    The regions are those of the text as its opening makes it.
    """
    for has_question, group in groupby(document.sections, key=lambda section: bool(section.question)):
        sections = tuple(group)
        if has_question:
            for each in sections:
                questions = tuple(" ".join(question.split()) for question in (each.question, *each.alternatives))
                begins = len(each.text) - len(each.answer)
                regions = _of_pair(Passage.of((each,)), 0, begins, len(each.text), questions)
                yield each.answer, regions, each.heading_path, None, questions
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
            begins = passage.text.index(text, answer.end())
            regions = _of_pair(passage, mark.start(), begins, begins + len(text), (question,))
            yield text, regions, passage.heading_path, None, (question,)
        else:
            yield from _plain(passage, mark.start(), end)


def _opening(questions: tuple[str, ...]) -> str:
    return f"{questions[0]}\n" if questions else ""


def _of_pair(passage: Passage, start: int, answer: int, end: int, questions: tuple[str, ...]) -> tuple[Region, ...]:
    """The regions of a pair, whose question may be shorter where it opens a chunk than in the passage."""
    opening, asked = len(_opening(questions)), answer - start
    return tuple(
        replace(each, start=each.start - asked + opening if each.start > asked else min(each.start, opening))
        for each in regions_within(passage.regions, start, end)
    )


def _plain(passage: Passage, start: int, end: int) -> Iterator[Piece]:
    for first, after in zip(passage.starts, (*passage.starts[1:], len(passage.text)), strict=True):
        begin = max(start, first)
        if text := passage.text[begin : min(end, after)].strip():
            yield passage.piece(Cut(passage.text.index(text, begin), text))


def _pieces(
    text: str, regions: tuple[Region, ...], opening: str, settings: ChunkSettings
) -> Iterator[tuple[str, tuple[Region, ...]]]:
    """Of the regions of the opening with the text, each piece has its own; only the first those of the opening."""
    left = settings.size - settings.length(opening)
    if opening and settings.length(opening + text) <= settings.size:
        yield opening + text, regions
    elif not opening or left < max(MIN_SIZE, settings.size // 2):
        # A question of which little of a chunk would be left for the answer opens only the first.
        for place, piece, header, _ in cut_text(opening + text, settings):
            yield header + piece, regions_within(regions, place, place + len(piece), len(header))
    else:
        for place, piece, header, _ in cut_text(
            text, replace(settings, size=left, overlap=min(settings.overlap, left - 1))
        ):
            begin, end = len(opening) + place, len(opening) + place + len(piece)
            own = (
                regions_within(regions, begin, end, len(opening + header)) if place else regions_within(regions, 0, end)
            )
            yield opening + header + piece, own


CHUNKERS: Final[Mapping[Strategy, Callable[[ParsedDocument, ChunkSettings], Iterator[Piece]]]] = {
    "recursive": partial(split_pages, cut_text),
    "headings": split_by_headings,
    "questions": split_by_questions,
    "parent_child": split_with_parents,
    "tokens": partial(split_pages, cut_tokens),
}


def split(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    pieces = CHUNKERS[settings.strategy](document, settings)
    return [
        ChunkDraft(text, position, path, settings.count_tokens(text), parent, questions, regions, spans)
        for position, (text, regions, path, place, questions) in enumerate(pieces)
        for parent, spans in [place or (None, ())]
    ]
