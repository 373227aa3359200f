"""HTML: the main content by trafilatura, or all visible text where it finds too little."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trafilatura
from lxml import etree, html

from kb.ingest.formats.outline import Outline, flow, markdown_table
from kb.ingest.formats.pictures import Gallery, data_of
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section

# lxml ships no types that mypy reads.
Element = Any

_META_CHARSET = re.compile(rb"<meta[^>]+?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_META_WINDOW = 4096
# Below this length trafilatura falls back to text without structure; below this share it missed the article.
_MIN_MAIN = 250
_MIN_MAIN_SHARE = 0.1
# Text without structure is taken only where it rids a page of at least this remainder.
_MAX_BARE_SHARE = 0.7

_HIDDEN = frozenset(["head", "script", "style", "noscript", "template", "iframe", "object", "svg", "math", "textarea"])
_HIDING_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_INLINE = re.compile(
    r"a|abbr|acronym|b|bdi|bdo|big|cite|data|del|dfn|em|font|hi|i|ins|kbd|label|mark|q|rb|ref|rp|rt|ruby|s|samp|small"
    r"|span|strike|strong|sub|sup|time|tt|u|var|wbr"
)
_ROWS = frozenset(["tr", "row"])
_CELLS = frozenset(["td", "th", "cell"])
_LIST_ITEMS = frozenset(["li", "item", "dd", "dt"])
_LINE_BREAKS = frozenset(["br", "lb"])
_UNKNOWN_HEADING_LEVEL = 2
# Longer texts are not repeated in each place that a merged cell covers.
_MAX_REPEATED = 100
_MAX_SPAN = 50
_MAX_COLUMNS = 200
_MAX_COVERED = 2_000


def decoded_page(data: bytes) -> str:
    """A page in the characters that it declares, if any."""
    declared = _META_CHARSET.search(data[:_META_WINDOW])
    return decode(data, declared[1].decode("ascii", errors="ignore") if declared else "")


def read(data: bytes) -> ParsedDocument:
    tree = parse_tree(decoded_page(data))
    if tree is None:
        return ParsedDocument("", ())
    gallery = Gallery()
    mark_pictures(tree, gallery, data_of)
    visible = outline(tree)
    # trafilatura edits the tree that it is given.
    title = _title(tree) or visible.first_heading
    main, sections = _main_content(tree), visible.sections()
    if main is not None and _is_better(found := outline(main, hides=False).sections(), sections):
        sections = found
    return gallery.finished(ParsedDocument(title, sections))


def mark_pictures(tree: Element, gallery: Gallery, bytes_of: Callable[[str], bytes]) -> None:
    """Puts marks in place of the pictures whose bytes are at hand, of which `bytes_of` an address gives none for others."""
    for picture in list(tree.iter("img")):
        source = bytes_of(picture.get("src") or "")
        if not source:
            continue
        mark = gallery.add(source, alternative=picture.get("alt") or "")
        figure = next(picture.iterancestors("figure"), None)
        if figure is not None:
            for caption in figure.iter("figcaption"):
                gallery.caption("".join(caption.itertext()))
                caption.tag = "p"
            figure.tag = "div"  # trafilatura leaves figures out
        if mark:
            tail = picture.tail
            picture.clear()
            picture.tag, picture.text, picture.tail = "span", mark, tail


def parse_tree(text: str) -> Element | None:
    """The document's tree, if any; ParseError where elements nest beyond what the parser would keep."""
    # huge_tree lifts the limit of nesting from 256 to 2,048.
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
    try:
        tree = html.document_fromstring(text.encode(errors="replace"), parser=parser)
    except etree.ParserError:
        return None
    if any(entry.type == etree.ErrorTypes.ERR_RESOURCE_LIMIT for entry in parser.error_log):
        raise ParseError("nested_too_deeply")
    return tree


def visible_text(markup: str, gallery: Gallery | None = None) -> str:
    """The text of a fragment, its blocks on lines of their own, with the marks of its pictures for a gallery."""
    tree = parse_tree(markup)
    if tree is not None and gallery is not None:
        mark_pictures(tree, gallery, data_of)
    return "" if tree is None else "\n".join(section.text for section in outline(tree).sections())


def _main_content(tree: Element) -> Element | None:
    merged = tree.xpath("//*[@colspan or @rowspan]")
    # trafilatura takes time with the square of the places that merged cells cover.
    if sum(_span(cell, "colspan") * _span(cell, "rowspan") for cell in merged) > _MAX_COVERED:
        for cell in merged:
            cell.attrib.pop("colspan", None)
            cell.attrib.pop("rowspan", None)
    try:
        document = trafilatura.bare_extraction(tree, include_comments=False, include_tables=True, with_metadata=False)
    except RecursionError:  # it walks nested lists so; the visible text is walked without
        return None
    return getattr(document, "body", None)


def _is_better(main: tuple[Section, ...], visible: tuple[Section, ...]) -> bool:
    """Main content that lost the headings is no gain on a page that holds little else."""
    share = _length(main) / max(1, _length(visible))
    lost_headings = _has_headings(visible) and not _has_headings(main)
    is_found = _length(main) >= _MIN_MAIN and share >= _MIN_MAIN_SHARE
    return is_found and not (lost_headings and share > _MAX_BARE_SHARE)


def _has_headings(sections: tuple[Section, ...]) -> bool:
    return any(section.heading_path for section in sections)


def _length(sections: tuple[Section, ...]) -> int:
    return sum(len("".join(section.text.split())) for section in sections)


def _title(tree: Element) -> str:
    found = [*tree.xpath("//meta[@property='og:title']/@content"), *tree.xpath("//head/title/text()")]
    return next(filter(None, (str(each).strip() for each in found)), "")


def _heading_level(element: Element) -> int:
    """Of HTML's h1 to h6, and of trafilatura's head; 0 for any other element."""
    if element.tag == "head":
        level = element.get("rend", "")[-1:]
        return int(level) if level in tuple("123456") else _UNKNOWN_HEADING_LEVEL
    return int(element.tag[1]) if re.fullmatch("h[1-6]", element.tag) else 0


def outline(tree: Element, *, hides: bool = True) -> Outline:
    """Walks the tree without recursion, as a page may nest 2,048 deep.

    With `hides`, as in a page, some elements hold no visible text; in content that trafilatura has found none does.
    """
    writer = _Writer()
    walker = etree.iterwalk(tree, events=("start", "end"))
    for event, element in walker:
        skipped = hides and is_hidden(element)
        if event == "end":
            if not skipped:
                writer.end(element)
            writer.text(element.tail if element is not tree else None)
        elif skipped:
            walker.skip_subtree()
        else:
            writer.start(element)
            writer.text(element.text)
    writer.flush()
    writer.end_table()
    return writer.outline


def is_hidden(element: Element) -> bool:
    """Whether a page shows nothing of an element."""
    return (
        element.tag in _HIDDEN
        or element.get("hidden") is not None
        or bool(_HIDING_STYLE.search(element.get("style", "")))
    )


@dataclass(slots=True)
class _Writer:
    outline: Outline = field(default_factory=Outline)
    _buffer: list[str] = field(default_factory=list)
    _rows: int = 0
    _cells: list[tuple[str, int, int]] = field(
        default_factory=list
    )  # of the row: text, columns and rows that it covers
    _table: list[list[str]] = field(default_factory=list)
    _from_above: dict[int, tuple[str, int]] = field(default_factory=dict)  # by column: text, and for how many rows more
    _preformatted: int = 0
    _joined: bool = False

    def text(self, text: str | None) -> None:
        if text and not self._preformatted:
            text = flow(text)
            if not self._buffer or self._buffer[-1].endswith((" ", "\n")):
                text = text.lstrip()
        if text:
            self._buffer.append(text)

    def start(self, element: Element) -> None:
        if element.tag in _LINE_BREAKS:
            self._buffer.append("\n")
        elif _is_block(element):
            self._break()
        self._joined = self._joined or element.tag in _LIST_ITEMS
        self._rows += element.tag in _ROWS
        self._preformatted += _is_preformatted(element)

    def end(self, element: Element) -> None:
        self._preformatted -= _is_preformatted(element)
        if (level := _heading_level(element)) and not self._rows:
            text = self._take()
            self.end_table()
            self.outline.heading(level, text)
        elif element.tag in _CELLS and self._rows == 1:
            self._cells.append((self._take(), _span(element, "colspan"), _span(element, "rowspan")))
        elif element.tag in _ROWS and self._rows == 1:
            self._end_row()
        elif element.tag == "table" and not self._rows:
            self.flush()
            self.end_table()
        elif _is_block(element):
            self._break()
        self._rows -= element.tag in _ROWS

    def flush(self) -> None:
        if text := self._take():
            self.end_table()
            self.outline.block(text, joined=self._joined)
            self._joined = False

    def _break(self) -> None:
        """A block ends; inside a table row it becomes a line of the cell."""
        if not self._rows:
            self.flush()
        elif self._buffer and not self._buffer[-1].endswith("\n"):
            self._buffer.append("\n")

    def _end_row(self) -> None:
        if text := self._take():
            self._cells.append((text, 1, 1))
        row: list[str] = []

        def fill() -> None:
            while len(row) in self._from_above:
                text, left = self._from_above.pop(len(row))
                if left > 1:
                    self._from_above[len(row)] = text, left - 1
                row.append(text)

        for text, columns, rows in self._cells:
            fill()
            repeated = text if len(text) <= _MAX_REPEATED else ""
            for place in range(max(1, min(columns, _MAX_COLUMNS - len(row)))):
                if rows > 1:
                    self._from_above[len(row)] = repeated, rows - 1
                row.append(repeated if place else text)
        fill()
        self._table.append(row)
        self._cells = []

    def end_table(self) -> None:
        rows, self._table, self._from_above = self._table, [], {}
        if rows:
            self.outline.block(markdown_table(rows))

    def _take(self) -> str:
        text = "".join(self._buffer).rstrip(" \n")
        self._buffer = []
        # Flowing text begins with one space at most; more is the indent of preformatted text
        lines = (line.rstrip() if line[1:] and line[:2].isspace() else line.strip() for line in text.split("\n"))
        return "\n".join(lines).strip("\n")


def _span(element: Element, name: str) -> int:
    value = element.get(name, "")[:3]
    return min(int(value), _MAX_SPAN) or 1 if value.isdecimal() else 1


def _is_preformatted(element: Element) -> bool:
    """True also for a block of code as trafilatura writes it: code that holds lines."""
    return element.tag == "pre" or (element.tag == "code" and "\n" in (element.text or ""))


def _is_block(element: Element) -> bool:
    if element.tag == "code":
        return _is_preformatted(element)
    return element.tag not in _LINE_BREAKS and not _INLINE.fullmatch(element.tag)
