"""Reads a file for those who want to see it, and not to search it: pages of HTML and Markdown with all that they show."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, BinaryIO, Final

import msgspec
from lxml import etree

from kb.ingest.formats.html import decoded_page, is_hidden, parse_tree
from kb.ingest.formats.markdown import FRONT_MATTER, parser
from kb.ingest.formats.outline import flow
from kb.ingest.formats.text import decode
from kb.ingest.parser.parse import detect_readable, parse
from kb.ingest.parser.parsed import Reading, clean
from kb.ingest.parser.structure import Block, BlockKind, Run, blocks_of, bounded

# lxml ships no types that mypy reads.
Element = Any

_MARKS: Final = {
    **dict.fromkeys(("b", "strong", "th"), "b"),
    **dict.fromkeys(("i", "em", "cite", "dfn", "var"), "i"),
    **dict.fromkeys(("code", "kbd", "samp", "tt"), "c"),
}
_KINDS: Final = {"li": BlockKind.ITEM, "dd": BlockKind.ITEM, "blockquote": BlockKind.QUOTE, "pre": BlockKind.CODE}
_INLINE: Final = re.compile(
    r"a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|q|s|samp|small|span|strike|strong|sub"
    r"|sup|time|tt|u|var|wbr|rb|rp|rt|ruby"
)
_HEADING: Final = re.compile(r"h([1-6])")
_ADDRESS: Final = re.compile(r"(?:https?://|mailto:)[^\s\x00-\x20]+", re.IGNORECASE)
_MOST_DEPTH: Final = 6


def structure_job(file: BinaryIO, filename: str, reading: Any) -> Any:
    """For the sandbox: what a file holds, as a Structure; raises ParseError as `parse`."""
    data, extension = file.read(), PurePath(filename).suffix.lower()
    kind = detect_readable(data, extension)
    if kind == "html":
        structure = bounded(_of_page(decoded_page(data)))
    elif kind == "markdown":
        text = decode(data)
        front = FRONT_MATTER.match(text)
        structure = bounded(_of_page(parser().render(text[front.end() :] if front else text)))
    else:
        structure = bounded(blocks_of(parse(data, filename, msgspec.convert(reading, Reading))))
    return msgspec.to_builtins(structure)


def _of_page(markup: str) -> Iterator[Block]:
    """The blocks of a page, walked without recursion, as it may nest deeply."""
    tree = parse_tree(markup)
    if tree is None:
        return
    writer = _Writer()
    walker = etree.iterwalk(tree, events=("start", "end"))
    for event, element in walker:
        if is_hidden(element):
            if event == "start":
                walker.skip_subtree()
            else:
                writer.text(element.tail)
        elif event == "start":
            yield from writer.start(element)
            writer.text(element.text)
        else:
            yield from writer.end(element)
            if element is not tree:
                writer.text(element.tail)
    yield from writer.flush()


@dataclass(slots=True)
class _Writer:
    """Collects the runs of the block that is being read; within a table those of the cell."""

    _runs: list[Run] = field(default_factory=list)
    _cells: list[tuple[Run, ...]] = field(default_factory=list)
    _marks: list[str] = field(default_factory=list)
    _links: list[str] = field(default_factory=list)
    _kinds: list[BlockKind] = field(default_factory=list)
    _rows: int = 0
    _header: bool = False
    _level: int = 0

    def text(self, text: str | None) -> None:
        if not text:
            return
        if BlockKind.CODE not in self._kinds:
            text = flow(text)
            if not self._runs or self._runs[-1].text.endswith((" ", "\n")):
                text = text.lstrip()
        if text:
            self._runs.append(self._run(text))

    def _run(self, text: str, extra: str = "") -> Run:
        marks = "".join(sorted({*self._marks, *extra}))
        return Run(text, marks, self._links[-1] if self._links else "")

    def start(self, element: Element) -> Iterator[Block]:
        tag = element.tag
        if tag == "br":
            self._runs.append(Run("\n"))
        elif tag == "img":
            if alternative := " ".join((element.get("alt") or "").split())[:300]:
                self._runs.append(self._run(f"[{alternative}]", "p"))
        elif tag == "tr":
            yield from self.flush() if not self._rows else ()
            self._rows += 1
        elif not _INLINE.fullmatch(tag):
            yield from self._break()
        self._enter(element)

    def _enter(self, element: Element) -> None:
        """What holds until the element's end."""
        tag = element.tag
        if tag == "th":
            self._header = True
        if mark := _MARKS.get(tag):
            self._marks.append(mark)
        if tag == "a":
            address = (element.get("href") or "").strip()
            self._links.append(address if _ADDRESS.fullmatch(address) else "")
        if kind := _KINDS.get(tag):
            self._kinds.append(kind)
        if (heading := _HEADING.fullmatch(tag)) and not self._rows:
            self._level = int(heading[1])

    def end(self, element: Element) -> Iterator[Block]:
        tag = element.tag
        if tag in ("td", "th") and self._rows == 1:
            self._cells.append(self._taken())
        elif tag == "tr":
            if self._rows == 1 and self._cells:
                yield Block(BlockKind.ROW, tuple(self._cells), is_header=self._header)
            if self._rows == 1:
                self._cells, self._header, self._runs = [], False, []
            self._rows -= 1
        elif tag not in ("br", "img") and not _INLINE.fullmatch(tag):
            yield from self._break()
        if tag in _MARKS:
            self._marks.pop()
        if tag == "a":
            self._links.pop()
        if tag in _KINDS:
            self._kinds.pop()
        if _HEADING.fullmatch(tag):
            self._level = 0

    def _break(self) -> Iterator[Block]:
        """A block ends; within a row of a table it becomes a line of the cell."""
        if not self._rows:
            yield from self.flush()
        elif self._runs and not self._runs[-1].text.endswith("\n"):
            self._runs.append(Run("\n"))

    def flush(self) -> Iterator[Block]:
        runs = self._taken()
        if not runs:
            return
        depth = self._kinds.count(BlockKind.ITEM)
        kind = self._kinds[-1] if self._kinds else BlockKind.TEXT
        if self._level:
            yield Block(BlockKind.HEADING, (runs,), self._level)
        else:
            yield Block(kind, (runs,), min(depth, _MOST_DEPTH) if kind is BlockKind.ITEM else 0)

    def _taken(self) -> tuple[Run, ...]:
        runs, self._runs = self._runs, []
        if not any(run.text.strip() for run in runs):
            return ()
        # Nothing that no database holds, but lines and spaces as they are
        cleaned = [replace(run, text=clean(run.text)) if not run.text.isspace() else run for run in runs]
        return tuple(_with_spaces(before, after) for before, after in zip(runs, cleaned, strict=True))


def _with_spaces(before: Run, after: Run) -> Run:
    """Runs meet with the white space that they had: cleaning takes it from their ends."""
    if before.text.isspace():
        return before
    lead = before.text[: len(before.text) - len(before.text.lstrip())]
    trail = before.text[len(before.text.rstrip()) :]
    return replace(after, text=f"{lead}{after.text.strip()}{trail}")
