"""Markdown by markdown-it's tokens: headings become paths, code and tables keep their text."""

import re
from collections.abc import Iterator
from itertools import takewhile

from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.token import Token
from markdown_it.utils import EnvType

from kb.ingest.formats.outline import Outline, flow, markdown_table
from kb.ingest.formats.pictures import Gallery, data_of
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParsedDocument

# The first line must be a key, as a document may also begin with a rule.
FRONT_MATTER = re.compile(
    r"\A---[ \t]*\r?\n(?=[A-Za-z_][\w.-]*[ \t]*:)(.*?)^(?:---|\.\.\.)[ \t]*\r?$", re.DOTALL | re.MULTILINE
)
_FRONT_TITLE = re.compile(r"^title\s*:\s*[\"']?(.*?)[\"']?\s*$", re.MULTILINE | re.IGNORECASE)
_LINE_BREAK_TAG = re.compile(r"<br\b", re.IGNORECASE)
# The preset's limit of 20 would drop what is nested deeper.
_MAX_NESTING = 100
# Of pictures in the text of links in the text of pictures: each `![` or `[` that is not closed is looked for so often.
_MAX_INLINE_NESTING = 5


def read(data: bytes) -> ParsedDocument:
    text = decode(data)
    title = ""
    if front := FRONT_MATTER.match(text):
        found = _FRONT_TITLE.search(front[1])
        title = found[1] if found else ""
        text = text[front.end() :]
    outline, gallery = Outline(), Gallery()
    _fill(outline, parser().parse(text), gallery)
    return gallery.finished(ParsedDocument(title or outline.first_heading, outline.sections()))


class _Inline(ParserInline):
    """The rules for the text of a paragraph, with a limit of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._markdown = MarkdownIt("commonmark", {"maxNesting": _MAX_INLINE_NESTING})

    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:  # noqa: ARG002
        return self._markdown.inline.parse(src, self._markdown, env, tokens)


def parser() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING}).enable("table")
    markdown.inline = _Inline()
    return markdown


def _fill(outline: Outline, tokens: list[Token], gallery: Gallery) -> None:
    stream = iter(tokens)
    list_depth = 0
    joined = False
    mark = ""
    for token in stream:
        if token.type == "heading_open":
            outline.heading(int(token.tag[1]), _inline_text(next(stream), None))
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            list_depth += 1
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            list_depth -= 1
            joined = joined and list_depth > 0
        elif token.type == "list_item_open":
            mark = f"{token.info}{token.markup} " if token.info else "- "
        elif (
            text := markdown_table(_rows(stream, gallery))
            if token.type == "table_open"
            else _block_text(token, gallery)
        ):
            outline.block(mark + text, joined=joined)
            mark = ""
            joined = list_depth > 0


def _rows(stream: Iterator[Token], gallery: Gallery) -> list[list[str]]:
    rows: list[list[str]] = []
    for token in takewhile(lambda token: token.type != "table_close", stream):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(_inline_text(token, gallery))
    return rows


def _block_text(token: Token, gallery: Gallery) -> str:
    if token.type == "inline":
        return _inline_text(token, gallery)
    if token.type in ("fence", "code_block"):
        return token.content.rstrip("\n")
    if token.type == "html_block":
        from kb.ingest.formats.html import visible_text  # noqa: PLC0415 - few documents need the HTML parser

        return visible_text(token.content, gallery)
    return ""


def _inline_text(token: Token, gallery: Gallery | None) -> str:
    """The words of a paragraph or a cell, with the marks of its pictures; of a heading, without a gallery, words only."""
    lines = [""]
    for child in token.children or []:
        if child.type == "hardbreak" or (child.type == "html_inline" and _LINE_BREAK_TAG.match(child.content)):
            lines.append("")
        elif child.type == "softbreak":
            lines[-1] += "\n"
        elif gallery and child.type == "image" and (source := data_of(str(child.attrs.get("src", "")))):
            lines[-1] += gallery.add(source, alternative=child.content)
        elif child.type != "html_inline":
            lines[-1] += child.content
    return "\n".join(flow(line).strip() for line in lines)
