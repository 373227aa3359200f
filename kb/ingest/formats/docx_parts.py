"""The text of Word's elements, and what stands beside the body: notes, headers and footers."""

from collections.abc import Iterator
from typing import Any, Final

from docx.oxml.ns import qn
from lxml import etree

from kb.ingest.formats.package import parse_xml
from kb.ingest.parser.parsed import Section

# python-docx's elements have no types that mypy reads.

_W: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
# Text, also of equations and inserted by tracked changes; not of what was moved away, nor a text box's second copy.
_TEXT_NODES = etree.XPath(
    "(.//w:r/w:t | .//w:r/w:tab | .//w:r/w:br | .//w:r/w:cr | .//w:r/w:noBreakHyphen | .//m:t | .//w:p)"
    "[not(ancestor::mc:Fallback) and not(ancestor::w:moveFrom) and not(ancestor::w:del)]",
    namespaces={
        "w": _W,
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
_NOTE_PARTS: Final = {"footnote": "/footnotes", "endnote": "/endnotes"}
_REFERENCES = etree.XPath(".//w:footnoteReference | .//w:endnoteReference", namespaces={"w": _W})
_MARGINS: Final = ("header", "first_page_header", "even_page_header", "footer", "first_page_footer", "even_page_footer")


def text_of(element: Element) -> str:
    return "".join(_CHARACTERS.get(node.tag, node.text or "") for node in _TEXT_NODES(element)).strip()


class Notes:
    """Footnotes and endnotes, for the paragraphs that refer to them."""

    def __init__(self, part: Any) -> None:
        self._texts: dict[tuple[str, str], str] = {}
        for relation in part.rels.values():
            for kind, ending in _NOTE_PARTS.items():
                if relation.reltype.endswith(ending) and not relation.is_external:
                    for note in parse_xml(relation.target_part.blob).iterfind(qn(f"w:{kind}")):
                        self._texts[kind, note.get(qn("w:id"))] = text_of(note)

    def referred_to(self, block: Element) -> Iterator[str]:
        """Each where it is first referred to."""
        for reference in _REFERENCES(block):
            kind = etree.QName(reference).localname.removesuffix("Reference")
            if text := self._texts.pop((kind, reference.get(qn("w:id"))), ""):
                yield text


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
