"""Word documents by python-docx: headings, paragraphs and tables in document order."""

import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import docx
from docx.opc.exceptions import PackageNotFoundError
from docx.oxml.ns import qn
from lxml import etree

from kb.ingest.formats.outline import Outline
from kb.ingest.parse import ErrorCode, ParsedDocument, ParseError

# python-docx's elements have no types that mypy reads.
Element = Any

# Far above real documents (a text of a million characters has about 10 MB of XML), far below the memory limit.
_MAX_ENTRIES = 10_000
_MAX_UNPACKED = 512 * 1024**2
_MAX_XML = 128 * 1024**2
# Deflate cannot pass 1,032; Word's repetitive XML reaches about 100. A blank picture passes it, so small parts may.
_MAX_RATIO = 300
_RATIO_FROM = 16 * 1024**2

# In UTF-8 and in both byte orders of UTF-16.
_DECLARATION = re.compile(rb"<\0?!\0?(?:D\0?O\0?C\0?T\0?Y\0?P\0?E|E\0?N\0?T\0?I\0?T\0?Y)")
_HEADING_STYLE = re.compile(r"^(?:heading|标题)\s*([1-9])$", re.IGNORECASE)
_TITLE_STYLE = re.compile(r"^(?:title|标题)$", re.IGNORECASE)
_MAX_STYLE_CHAIN = 20
# What python-docx, zipfile and lxml raise for packages of another shape than they expect.
_DAMAGE = (
    AttributeError,
    KeyError,
    NotImplementedError,
    OSError,
    PackageNotFoundError,
    RuntimeError,
    ValueError,
    etree.XMLSyntaxError,
    zipfile.BadZipFile,
    zlib.error,
)

_W_P, _W_TBL, _W_TR, _W_TC, _W_SECTPR = (qn(f"w:{name}") for name in ("p", "tbl", "tr", "tc", "sectPr"))
# Text, also of equations and inserted by tracked changes; not of what was moved away, nor a text box's second copy.
_TEXT_NODES = etree.XPath(
    "(.//w:r/w:t | .//w:r/w:tab | .//w:r/w:br | .//w:r/w:cr | .//w:r/w:noBreakHyphen | .//m:t | .//w:p)"
    "[not(ancestor::mc:Fallback) and not(ancestor::w:moveFrom) and not(ancestor::w:del)]",
    namespaces={
        "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
        "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
        "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
    },
)
_CHARACTERS = {
    qn("w:tab"): "\t",
    qn("w:br"): "\n",
    qn("w:cr"): "\n",
    qn("w:p"): "\n",
    qn("w:noBreakHyphen"): "-",
}


def read(data: bytes) -> ParsedDocument:
    _check_archive(data)
    body, styles, title_property = _open(data)
    outline = Outline()
    title = ""
    for block in _blocks(body):
        if block.tag == _W_TBL:
            _add_table(outline, block)
            continue
        text = _text(block)
        if level := styles.heading_level(block):
            outline.heading(level, text)
        else:
            title = title or (text if styles.is_title(block) else "")
            outline.block(text)
    mime = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
    return ParsedDocument(title or title_property or outline.first_heading, mime, outline.sections())


def _open(data: bytes) -> tuple[Element, "_Styles", str]:
    """The body, the styles and the title property."""
    try:
        document = docx.Document(io.BytesIO(data))
        return document.element.body, _Styles(document.styles.element), document.core_properties.title
    except _DAMAGE as error:
        raise ParseError(ErrorCode.DAMAGED_FILE, format="DOCX") from error


def _check_archive(data: bytes) -> None:
    """Judges the archive by its directory, which bounds what is unpacked later.

    Raises:
        ParseError: it would unpack to too much, is damaged, or declares XML entities.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if _is_bomb(entries):
                raise ParseError(ErrorCode.ZIP_BOMB)
            for entry in entries:
                if _is_xml(entry) and _DECLARATION.search(archive.read(entry)):
                    raise ParseError(ErrorCode.UNSAFE_XML)
    except _DAMAGE as error:
        raise ParseError(ErrorCode.DAMAGED_FILE, format="DOCX") from error


def _is_bomb(entries: list[zipfile.ZipInfo]) -> bool:
    return (
        len(entries) > _MAX_ENTRIES
        or sum(entry.file_size for entry in entries) > _MAX_UNPACKED
        or sum(entry.file_size for entry in entries if _is_xml(entry)) > _MAX_XML
        or any(entry.file_size > max(_RATIO_FROM, _MAX_RATIO * entry.compress_size) for entry in entries)
    )


def _is_xml(entry: zipfile.ZipInfo) -> bool:
    return entry.filename.lower().endswith((".xml", ".rels"))


def _blocks(body: Element) -> Iterator[Element]:
    """Paragraphs and outermost tables in order, also inside content controls and tracked insertions."""
    for child in body.iterchildren(etree.Element):
        if child.tag in (_W_P, _W_TBL):
            yield child
        elif child.tag != _W_SECTPR:
            yield from _blocks(child)


def _text(element: Element) -> str:
    return "".join(_CHARACTERS.get(node.tag, node.text or "") for node in _TEXT_NODES(element)).strip()


def _add_table(outline: Outline, table: Element) -> None:
    joined = False
    for row in table.iter(_W_TR):
        if next(row.iterancestors(_W_TBL)) is not table:
            continue  # a row of a nested table, whose text is in its cell
        cells = [_text(cell) for cell in row.iter(_W_TC) if next(cell.iterancestors(_W_TR)) is row]
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
