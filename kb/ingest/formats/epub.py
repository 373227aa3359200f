"""EPUB books: the chapters in reading order, by the reader of HTML; headings from the text, else from the contents."""

import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import unquote, urlsplit

from kb.ingest.formats.html import mark_pictures, outline, parse_tree
from kb.ingest.formats.package import Element, checked_package, parse_xml
from kb.ingest.formats.pictures import Gallery, data_of
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_NAMESPACES: Final = {
    "c": "urn:oasis:names:tc:opendocument:xmlns:container",
    "o": "http://www.idpf.org/2007/opf",
    "dc": "http://purl.org/dc/elements/1.1/",
    "n": "http://www.daisy.org/z3986/2005/ncx/",
    "x": "http://www.w3.org/1999/xhtml",
    "e": "http://www.w3.org/2001/04/xmlenc#",
}
# Embedded fonts may be scrambled in a book that is not protected.
_FONT_SCRAMBLING = frozenset(["http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"])
_PAGES = frozenset(["application/xhtml+xml", "text/html", "application/xml"])
_DOCTYPE = re.compile(rb"<!DOCTYPE[^>\[]*(?:\[[^\]]*\])?[^>]*>", re.IGNORECASE)


def read(data: bytes) -> ParsedDocument:
    with checked_package(data, "EPUB", is_book=True) as archive:
        book = _Book(archive)
        return book.gallery.finished(ParsedDocument(book.title, tuple(book.sections())))


class _Book:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.gallery = Gallery()
        self._archive = archive
        self._names = set(archive.namelist())
        self._refuse_protected()
        self._root = str(self._xml(_CONTAINER).find(".//c:rootfile", _NAMESPACES).get("full-path"))
        self._package = self._xml(self._root)
        self._items = {
            item.get("id"): item
            for item in self._package.iterfind("o:manifest/o:item", _NAMESPACES)
            if item.get("href")
        }
        self._contents = self._read_contents()

    @property
    def title(self) -> str:
        return str(self._package.findtext("o:metadata/dc:title", "", _NAMESPACES))

    def sections(self) -> Iterator[Section]:
        references = self._package.iterfind("o:spine/o:itemref", _NAMESPACES)
        for identifier in dict.fromkeys(reference.get("idref") for reference in references):
            item = self._items[identifier]
            is_contents = "nav" in item.get("properties", "").split()
            if item.get("media-type") in _PAGES and not is_contents:
                yield from self._chapter(_resolved(self._root, item.get("href")))

    def _chapter(self, name: str) -> Iterator[Section]:
        """A chapter without a heading of its own is under the one that the contents name."""
        tree = parse_tree(decode(self._archive.read(name)))
        if tree is not None:
            mark_pictures(tree, self.gallery, partial(self._picture, name))
        written = outline(tree).sections() if tree is not None else ()
        named = self._contents.get(name, "")
        has_headings = any(section.heading_path for section in written)
        for section in written:
            yield section if has_headings or not named else replace(section, heading_path=(named,))

    def _picture(self, page: str, address: str) -> bytes:
        """The bytes of a picture that a page names; none where it lies elsewhere."""
        if found := data_of(address):
            return found
        name = _resolved(page, address)
        return self._archive.read(name) if name in self._names and not urlsplit(address).netloc else b""

    def _refuse_protected(self) -> None:
        if _ENCRYPTION not in self._names:
            return
        methods = self._xml(_ENCRYPTION).iterfind(".//e:EncryptedData/e:EncryptionMethod", _NAMESPACES)
        if not {method.get("Algorithm") for method in methods} <= _FONT_SCRAMBLING:
            raise ParseError("protected", format="EPUB")

    def _read_contents(self) -> Mapping[str, str]:
        """The heading of each file: by the navigation page of EPUB 3, else by the NCX of EPUB 2."""
        for item in self._items.values():
            if "nav" in item.get("properties", "").split():
                path = _resolved(self._root, item.get("href"))
                links = self._xml(path).iterfind(".//x:nav//x:a", _NAMESPACES)
                return _first_of_each((_resolved(path, link.get("href", "")), _words(link)) for link in links)
        for item in self._items.values():
            if item.get("media-type") == "application/x-dtbncx+xml":
                path = _resolved(self._root, item.get("href"))
                points = self._xml(path).iterfind(".//n:navPoint", _NAMESPACES)
                return _first_of_each(
                    (
                        _resolved(path, point.find("n:content", _NAMESPACES).get("src", "")),
                        _words(point.find("n:navLabel", _NAMESPACES)),
                    )
                    for point in points
                )
        return {}

    def _xml(self, name: str) -> Element:
        # Old books name a document type, whose entities nobody may load.
        return parse_xml(_DOCTYPE.sub(b"", self._archive.read(name), count=1))


def _resolved(base: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(urlsplit(href).path)))


def _words(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def _first_of_each(pairs: Iterator[tuple[str, str]]) -> Mapping[str, str]:
    return dict(reversed([*pairs]))
