"""Word documents by python-docx: headings, paragraphs and tables in document order."""

import io
import re
from collections.abc import Iterator
from typing import Any

import docx
from docx.opc.exceptions import PackageNotFoundError
from docx.oxml.ns import qn
from lxml import etree

from kb.ingest.formats.docx_parts import Notes, margin_sections, text_of
from kb.ingest.formats.outline import Outline
from kb.ingest.formats.package import DAMAGE, Rules, check_package
from kb.ingest.parser.parsed import ErrorCode, ParsedDocument, ParseError

# python-docx's elements have no types that mypy reads.
Element = Any

_HEADING_STYLE = re.compile(r"^(?:heading|标题)\s*([1-9])$", re.IGNORECASE)
_TITLE_STYLE = re.compile(r"^(?:title|标题)$", re.IGNORECASE)
_MAX_STYLE_CHAIN = 20
_W_P, _W_TBL, _W_TR, _W_TC, _W_SECTPR = (qn(f"w:{name}") for name in ("p", "tbl", "tr", "tc", "sectPr"))
_MIME = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


def read(data: bytes) -> ParsedDocument:
    check_package(data, Rules("DOCX"))
    try:
        return _read(docx.Document(io.BytesIO(data)))
    except (PackageNotFoundError, *DAMAGE) as error:
        raise ParseError(ErrorCode.DAMAGED_FILE, format="DOCX") from error


def _read(document: Any) -> ParsedDocument:
    styles = _Styles(document.styles.element)
    notes = Notes(document.part)
    outline = Outline()
    title = ""
    for block in _blocks(document.element.body):
        if block.tag == _W_TBL:
            _add_table(outline, block)
        elif level := styles.heading_level(block):
            outline.heading(level, text_of(block))
        else:
            text = text_of(block)
            title = title or (text if styles.is_title(block) else "")
            outline.block(text)
        for note in notes.referred_to(block):
            outline.block(note, joined=True)
    title = title or document.core_properties.title or outline.first_heading
    return ParsedDocument(title, _MIME, (*margin_sections(document), *outline.sections()))


def _blocks(body: Element) -> Iterator[Element]:
    """Paragraphs and outermost tables in order, also inside content controls and tracked insertions."""
    for child in body.iterchildren(etree.Element):
        if child.tag in (_W_P, _W_TBL):
            yield child
        elif child.tag != _W_SECTPR:
            yield from _blocks(child)


def _add_table(outline: Outline, table: Element) -> None:
    joined = False
    for row in table.iter(_W_TR):
        if next(row.iterancestors(_W_TBL)) is not table:
            continue  # a row of a nested table, whose text is in its cell
        cells = [text_of(cell) for cell in row.iter(_W_TC) if next(cell.iterancestors(_W_TR)) is row]
        if any(cells):
            outline.block(" | ".join(cells), joined=joined)
            joined = True


class _Styles:
    """Heading levels by outline level or by name, through the styles that a style is based on."""

    def __init__(self, styles: Element) -> None:
        self._styles = {style.get(qn("w:styleId")): style for style in styles.iter(qn("w:style"))}

    def heading_level(self, paragraph: Element) -> int:
        """1 to 9, or 0 for a paragraph that is no heading."""
        if own := _outline_level(paragraph):
            return own
        for style in self._chain(paragraph):
            named = _HEADING_STYLE.match(_style_name(style))
            if level := int(named[1]) if named else _outline_level(style):
                return level
        return 0

    def is_title(self, paragraph: Element) -> bool:
        return any(_TITLE_STYLE.match(_style_name(style)) for style in self._chain(paragraph))

    def _chain(self, paragraph: Element) -> Iterator[Element]:
        reference = paragraph.find(f"{qn('w:pPr')}/{qn('w:pStyle')}")
        for _ in range(_MAX_STYLE_CHAIN):
            style = self._styles.get(_value(reference)) if reference is not None else None
            if style is None:
                return
            yield style
            reference = style.find(qn("w:basedOn"))


def _value(element: Element) -> str:
    return str(element.get(qn("w:val"), ""))


def _style_name(style: Element) -> str:
    name = style.find(qn("w:name"))
    return "" if name is None else _value(name).strip()


def _outline_level(element: Element) -> int:
    """Counts from 1; Word counts from 0, and 9 is body text."""
    found = element.find(f"{qn('w:pPr')}/{qn('w:outlineLvl')}")
    level = _value(found) if found is not None else ""
    return int(level) + 1 if level.isdigit() and int(level) < 9 else 0
