"""Word documents by python-docx: headings, paragraphs and tables in document order."""

import io
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

import docx
from docx.opc.exceptions import PackageNotFoundError
from docx.oxml.ns import qn
from lxml import etree

from kb.ingest.formats.outline import CJK, Outline, markdown_table
from kb.ingest.formats.package import Element, checked_package, parse_xml
from kb.ingest.formats.pictures import Gallery
from kb.ingest.parser.parsed import DEFAULT_READING, ParsedDocument, Reading, Section, WordPart

_W: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
# Text, also of equations and inserted by tracked changes; not of what was moved away, nor a text box's second copy.
_TEXT_NODES = etree.XPath(
    "(.//pic:pic | .//v:imagedata | .//w:r/w:t | .//w:r/w:tab | .//w:r/w:br | .//w:r/w:cr | .//w:r/w:noBreakHyphen | .//m:t | .//w:p)"
    "[not(ancestor::mc:Fallback) and not(ancestor::w:moveFrom) and not(ancestor::w:del)]",
    namespaces={
        "w": _W,
        "pic": "http://schemas.openxmlformats.org/drawingml/2006/picture",
        "v": "urn:schemas-microsoft-com:vml",
        "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
        "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
    },
)
_CHARACTERS = {qn("w:tab"): "\t", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:p"): "\n", qn("w:noBreakHyphen"): "-"}
_NOTE_PARTS: Final = {"footnote": "/footnotes", "endnote": "/endnotes"}
_COMMENT_PARTS: Final = {"comment": "/comments"}
_REFERENCES = etree.XPath(
    "(.//w:footnoteReference | .//w:endnoteReference | .//w:commentReference)"
    "[not(ancestor::mc:Fallback) and not(ancestor::w:moveFrom) and not(ancestor::w:del)]",
    namespaces={"w": _W, "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006"},
)
_CJK = re.compile(f"[{CJK}]")
_MARGINS: Final = ("header", "first_page_header", "even_page_header", "footer", "first_page_footer", "even_page_footer")


_PICTURES: Final = frozenset((qn("pic:pic"), "{urn:schemas-microsoft-com:vml}imagedata"))


def text_of(element: Element, pictures: "Pictures | None" = None) -> str:
    """The text of an element, with the marks of its pictures where these are wanted."""
    return "".join(
        (pictures.mark(node) if pictures else "")
        if node.tag in _PICTURES
        else _CHARACTERS.get(node.tag, node.text or "")
        for node in _TEXT_NODES(element)
    ).strip()


class Pictures:
    """The pictures that a part of a document shows."""

    def __init__(self, part: Any, gallery: Gallery) -> None:
        self._part, self._gallery = part, gallery

    def mark(self, node: Element) -> str:
        """The mark of a picture, by its element; blank where it is not kept, or lies outside of the file."""
        blip = node.find(f".//{qn('a:blip')}")
        relation = self._part.rels.get(node.get(qn("r:id")) if blip is None else blip.get(qn("r:embed")))
        if relation is None or relation.is_external:
            return ""
        return self._gallery.add(relation.target_part.blob, alternative=_alternative(node))


def _alternative(node: Element) -> str:
    """What the author has written for those who do not see a picture; Word keeps it with the frame."""
    frame = next(node.iterancestors(qn("wp:inline"), qn("wp:anchor")), None)
    named = None if frame is None else frame.find(qn("wp:docPr"))
    of_shape = node.getparent().get("alt", "") if node.getparent() is not None else ""
    return str(of_shape if named is None else named.get("descr", ""))


class Notes:
    """Footnotes, endnotes and comments, as many of them as are chosen."""

    def __init__(self, part: Any, chosen: Collection[WordPart]) -> None:
        self._texts: dict[tuple[str, str], str] = {}
        parts = {
            **(_NOTE_PARTS if WordPart.NOTES in chosen else {}),
            **(_COMMENT_PARTS if WordPart.COMMENTS in chosen else {}),
        }
        for relation in part.rels.values():
            for kind, ending in parts.items():
                if relation.reltype.endswith(ending) and not relation.is_external:
                    for note in parse_xml(relation.target_part.blob).iterfind(qn(f"w:{kind}")):
                        text = text_of(note)
                        self._texts[kind, note.get(qn("w:id"))] = _comment(note, text) if kind == "comment" else text

    def referred_to(self, block: Element) -> Iterator[str]:
        """Each where it is first referred to."""
        for reference in _REFERENCES(block):
            kind = etree.QName(reference).localname.removesuffix("Reference")
            if text := self._texts.pop((kind, reference.get(qn("w:id"))), ""):
                yield text


def _comment(comment: Element, text: str) -> str:
    """A comment with its author, in the language that it is written in."""
    author = str(comment.get(qn("w:author"), "")).strip()
    if not text or _CJK.search(text):
        return text and (f"批注（{author}）：{text}" if author else f"批注：{text}")
    return f"Comment ({author}): {text}" if author else f"Comment: {text}"


def margin_sections(document: Any) -> tuple[Section, ...]:
    """All headers and footers as one section, each text once; a bare page number is none."""
    texts: dict[str, None] = {}
    for section in document.sections:
        for name in _MARGINS:
            margin = getattr(section, name)
            if not margin.is_linked_to_previous:
                text = "\n".join(filter(None, map(text_of, margin._element)))
                if not text.replace("/", "").strip().isdigit():
                    texts[text] = None
    text = "\n".join(filter(None, texts))
    return (Section(text),) if text else ()


_HEADING_STYLE = re.compile(r"^(?:heading|标题)\s*([1-9])$", re.IGNORECASE)
_CAPTION_STYLE = re.compile(r"^(?:caption|题注|圖表標題)$", re.IGNORECASE)
_TITLE_STYLE = re.compile(r"^(?:title|标题)$", re.IGNORECASE)
_MAX_STYLE_CHAIN = 20
_MAX_COLUMNS = 100
_W_P, _W_TBL, _W_TR, _W_TC, _W_SECTPR = (qn(f"w:{name}") for name in ("p", "tbl", "tr", "tc", "sectPr"))


def read(data: bytes, reading: Reading = DEFAULT_READING) -> ParsedDocument:
    """The notes that a paragraph or a table refers to follow it, and headers and footers come first."""
    with checked_package(data, "DOCX", PackageNotFoundError):
        return _read(docx.Document(io.BytesIO(data)), reading.word_parts)


def _read(document: Any, parts: Collection[WordPart]) -> ParsedDocument:
    styles = _Styles(document.styles.element)
    notes = Notes(document.part, parts)
    outline, gallery = Outline(), Gallery()
    pictures = Pictures(document.part, gallery)
    title = ""
    for block in _blocks(document.element.body):
        if block.tag == _W_TBL:
            outline.block(markdown_table(_rows(block, pictures)))
        elif level := styles.heading_level(block):
            outline.heading(level, text_of(block))
        else:
            text = text_of(block, pictures)
            title = title or (text_of(block) if styles.is_title(block) else "")
            if styles.is_caption(block):
                gallery.caption(text_of(block))
            outline.block(text)
        for note in notes.referred_to(block):
            outline.block(note, joined=True)
    title = title or document.core_properties.title or outline.first_heading
    margins = margin_sections(document) if WordPart.MARGINS in parts else ()
    return gallery.finished(ParsedDocument(title, (*margins, *outline.sections())))


def _rows(table: Element, pictures: Pictures) -> list[list[str]]:
    """The texts of the cells, that of a merged one in each place that it covers; a nested table is text of its cell."""
    rows: list[list[str]] = []
    for row in table.iter(_W_TR):
        if next(row.iterancestors(_W_TBL)) is not table:
            continue
        before = row.find(f"{qn('w:trPr')}/{qn('w:gridBefore')}")
        cells = [""] * _count(before, 0)
        for cell in row.iter(_W_TC):
            if next(cell.iterancestors(_W_TR)) is not row:
                continue
            span, merge = (cell.find(f"{qn('w:tcPr')}/{qn(name)}") for name in ("w:gridSpan", "w:vMerge"))
            text = text_of(cell, pictures)
            if merge is not None and _value(merge) != "restart" and rows and len(cells) < len(rows[-1]):
                text = rows[-1][len(cells)]
            cells += [text] * _count(span, 1)
        rows.append(cells)
    return rows


def _count(element: Element | None, otherwise: int) -> int:
    value = "" if element is None else _value(element)[:4]
    return min(int(value), _MAX_COLUMNS) if value.isdecimal() and int(value) else otherwise


def _blocks(body: Element) -> Iterator[Element]:
    """Paragraphs and outermost tables in order, also inside content controls and tracked insertions."""
    for child in body.iterchildren(etree.Element):
        if child.tag in (_W_P, _W_TBL):
            yield child
        elif child.tag != _W_SECTPR:
            yield from _blocks(child)


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

    def is_caption(self, paragraph: Element) -> bool:
        return any(_CAPTION_STYLE.match(_style_name(style)) for style in self._chain(paragraph))

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
