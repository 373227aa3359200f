"""The documents of the test bed: what each is put together of, how it is set, and which program makes its file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

from tests.quality.parsing.content import EN, ZH
from tests.quality.parsing.documents import (
    Aside,
    Block,
    Document,
    Form,
    Heading,
    Items,
    Note,
    Paragraph,
    Picture,
    Table,
)
from tests.quality.parsing.html import Style

Program = Literal["chromium", "docx", "odt", "pptx", "xlsx"]
Scan = Literal["", "clean", "noisy", "layered"]


@dataclass(frozen=True, slots=True)
class Case:
    """`scan` makes pictures of the pages: clean, noisy and askew, or noisy with the text below them, as scanners write it."""

    name: str
    document: Document
    style: Style = field(default_factory=Style)
    program: Program = "chromium"
    scan: Scan = ""
    tags: frozenset[str] = frozenset()


Words = Mapping[str, Any]
WORDS: Mapping[str, Words] = {"zh": ZH, "en": EN}
_DIGITS = "一二三四五六七八九十"


class _Writer:
    """Puts blocks together; each call takes the next of its kind, from a place that differs from case to case."""

    def __init__(self, language: str, start: int) -> None:
        self.language, self._start = language, start
        self._words = [ZH, EN] if language == "mixed" else [WORDS[language]]
        self._taken: dict[str, Iterator[int]] = {}
        self._numbers = [0, 0, 0]

    def _next(self, kind: str) -> Any:
        turn = self._start + next(self._taken.setdefault(kind, count()))
        words = self._words[turn % len(self._words)]
        return words[kind][turn // len(self._words) % len(words[kind])]

    def title(self) -> Heading:
        return Heading(1, self._next("titles"))

    def heading(self, level: int, numbering: str = "") -> Heading:
        """Level 2 is a chapter, 3 a section; numbered as "1.2" or as "第一章" and "1.2"."""
        text = self._next("chapters" if level == 2 else "sections")
        self._numbers[level - 1] += 1
        self._numbers[level:] = [0] * (3 - level)
        chapter, section = self._numbers[1:]
        if numbering == "chinese" and level == 2:
            return Heading(level, f"第{_DIGITS[chapter - 1]}章 {text}")
        if numbering:
            return Heading(level, f"{chapter}.{section} {text}" if level == 3 else f"{chapter}. {text}")
        return Heading(level, text)

    def paragraph(self) -> Paragraph:
        return Paragraph(self._next("paragraphs"))

    def items(self, *, is_numbered: bool = False) -> Items:
        return Items(self._next("lists"), is_numbered)

    def table(self, **options: Any) -> Table:
        caption, rows = self._next("tables")
        return Table(rows, caption=caption, **options)

    def note(self, mark: str) -> tuple[Paragraph, Note]:
        """A paragraph that refers to a note, and the note."""
        text = self._next("paragraphs")
        return Paragraph(f"{text}[{mark}]"), Note(mark, self._next("notes"))

    def aside(self) -> Aside:
        return Aside(self._next("asides"))

    def picture(self) -> Picture:
        return Picture(self._next("captions"))

    def form(self) -> Form:
        return Form(self._next_words()["form"])

    def _next_words(self) -> Words:
        return self._words[self._start % len(self._words)]

    def document(self, blocks: Sequence[Block], *, has_edges: bool = False) -> Document:
        words = self._next_words()
        edges = {"header": words["header"], "footer": words["footer"]} if has_edges else {}
        return Document(self.language, tuple(blocks), **edges)


def _article(w: _Writer, numbering: str = "") -> list[Block]:
    """A title, and three chapters of two sections, with lists."""
    blocks: list[Block] = [w.title(), w.paragraph()]
    for chapter in range(3):
        blocks += [w.heading(2, numbering), w.paragraph()]
        for section in range(2):
            blocks += [w.heading(3, numbering), w.paragraph(), w.paragraph()]
            if section:
                blocks.append(w.items(is_numbered=bool(chapter % 2)))
    return blocks


def _slides(w: _Writer) -> list[Block]:
    """An article whose headings are titles of slides, all of one level."""
    return [Heading(1, block.text) if isinstance(block, Heading) else block for block in _article(w)]


def _with_tables(w: _Writer, **options: Any) -> list[Block]:
    return [
        *(w.title(), w.paragraph(), w.heading(2), w.paragraph(), w.table(**options), w.paragraph()),
        *(w.heading(2), w.table(**options), w.paragraph(), w.items(), w.table(**options), w.paragraph()),
    ]


def _long_table(w: _Writer, rows: int) -> Table:
    """A table over several pages, whose header is printed again on each."""
    table = w.table()
    header, *body = table.rows
    numbered = tuple(
        (f"{row[0]}/{number:03d}", *row[1:]) for number in range(rows) for row in [body[number % len(body)]]
    )
    return replace(table, rows=(header, *numbered))


def _merged_table(w: _Writer) -> Table:
    """Two header rows with a cell over two columns, and a first column with a cell over two rows."""
    table = w.table()
    header, *body = table.rows
    above = (header[0], header[1], *[header[2]] * (len(header) - 2))
    body = [body[0], (body[0][0], *body[1][1:]), *body[2:]]
    merged = {(1, 0): (2, 1)} if len(header) < 4 else {(0, 2): (1, 2), (2, 0): (2, 1)}
    if len(header) < 4:
        return replace(table, rows=(header, *map(tuple, body)), merged=merged)
    return replace(table, rows=(above, header, *map(tuple, body)), header_rows=2, merged=merged)


def _lined_table(w: _Writer) -> Table:
    """Cells of several lines."""
    table = w.table()
    header, *body = table.rows
    lined = [(*row[:-1], f"{row[-1]}\n{row[1]}") for row in body]
    return replace(table, rows=(header, *lined))


def cases() -> list[Case]:
    """All documents of the bed, at least sixty, each in Chinese, English or both."""
    made: list[Case] = []

    def add(name: str, language: str, blocks: Any, *, has_edges: bool = False, **how: Any) -> None:
        writer = _Writer(language, len(made))
        document = writer.document(blocks(writer), has_edges=has_edges)
        made.append(Case(f"{len(made):02d}-{name}-{language}", document, tags=frozenset({name}), **how))

    for language in ("zh", "en"):
        numbering = "chinese" if language == "zh" else "decimal"
        add("article", language, _article)
        add("edges", language, _article, has_edges=True)
        add("two columns", language, _article, style=Style(columns=2), has_edges=True)
        add("three columns", language, _article, style=Style(columns=3, is_landscape=True, size_pt=9))
        add("by weight", language, _article, style=Style(headings="weight"))
        add("by number", language, lambda w, n=numbering: _article(w, n), style=Style(headings="number"))
        add("numbered", language, lambda w, n=numbering: _article(w, n), has_edges=True)
        add("ruled", language, _with_tables)
        add("unruled", language, lambda w: _with_tables(w, is_ruled=False))
        add("merged", language, lambda w: [w.title(), w.paragraph(), _merged_table(w), w.paragraph(), _merged_table(w)])
        add("lined", language, lambda w: [w.title(), w.paragraph(), _lined_table(w), w.paragraph(), _lined_table(w)])
        add(
            "long table",
            language,
            lambda w: [w.title(), w.paragraph(), _long_table(w, 90), w.paragraph()],
            has_edges=True,
        )
        add("notes", language, lambda w: [w.title(), *w.note("1"), w.paragraph(), *w.note("2"), w.paragraph()])
        add(
            "aside",
            language,
            lambda w: [w.title(), w.aside(), w.paragraph(), w.paragraph(), w.aside(), w.paragraph(), w.paragraph()],
        )
        add(
            "pictures",
            language,
            lambda w: [w.title(), w.paragraph(), w.picture(), w.paragraph(), w.picture(), w.paragraph()],
        )
        add(
            "lists",
            language,
            lambda w: [w.title(), w.items(), w.paragraph(), w.items(is_numbered=True), w.paragraph(), w.items()],
        )
        add("form", language, lambda w: [w.title(), w.paragraph(), w.form(), w.paragraph()])
        add("landscape", language, _with_tables, style=Style(is_landscape=True), has_edges=True)
        for program in ("docx", "odt"):
            add(f"{program} article", language, _article, program=program, has_edges=True)
            add(f"{program} tables", language, _with_tables, program=program)
        add("pptx", language, _slides, program="pptx")
        add("xlsx", language, lambda w: [w.table(), w.table()], program="xlsx")
        add("scan", language, _article, scan="clean")
        add("noisy scan", language, _article, scan="noisy")
        add("layered scan", language, _article, scan="layered")
        add("scanned table", language, _with_tables, scan="clean")
    for name, blocks, how in (
        ("article", _article, {}),
        ("two columns", _article, {"style": Style(columns=2)}),
        ("ruled", _with_tables, {}),
        ("unruled", lambda w: _with_tables(w, is_ruled=False), {}),
        ("docx", _with_tables, {"program": "docx"}),
        ("scan", _article, {"scan": "noisy"}),
    ):
        add(f"mixed {name}", "mixed", blocks, **how)
    add(
        "vertical",
        "zh",
        lambda w: [w.title(), w.paragraph(), w.heading(2), w.paragraph(), w.paragraph()],
        style=Style(is_vertical=True),
    )
    return made
