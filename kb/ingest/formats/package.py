"""What Office documents and EPUB books have in common: a ZIP archive of parts, judged before a part is parsed."""

import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from lxml import etree

from kb.ingest.parser.parsed import ParseError

# lxml ships no types that mypy reads.
Element = Any

# Far above real documents (a text of a million characters has about 10 MB of XML), far below the memory limit.
_MAX_ENTRIES = 10_000
_MAX_UNPACKED = 512 * 1024**2
_MAX_XML = 128 * 1024**2
# Deflate cannot pass 1,032; Word's repetitive XML reaches about 100. A blank picture passes it, so small parts may.
_MAX_RATIO = 300
_RATIO_FROM = 16 * 1024**2

_XML: Final = (".xml", ".rels", ".opf", ".ncx", ".xhtml", ".html", ".htm")
# In UTF-8, and in both byte orders of UTF-16 and UTF-32.
_Z = rb"\0{0,3}"
ENTITY = re.compile(_Z.join([b"<", b"!", b"E", b"N", b"T", b"I", b"T", b"Y"]))
_DOCTYPE_OR_ENTITY = re.compile(_Z.join([b"<", b"!", b"D", b"O", b"C", b"T", b"Y", b"P", b"E"]) + b"|" + ENTITY.pattern)
_MACROS: Final = ("/vbaproject.bin", "/vbadata.xml")
# What the libraries, zipfile and lxml raise for packages of another shape than they expect.
DAMAGE: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    etree.LxmlError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def checked_package(
    data: bytes, name: str, *failures: type[Exception], is_book: bool = False
) -> Iterator[zipfile.ZipFile]:
    """Judges the archive by its directory, which bounds what is unpacked later, and each XML part by its bytes.

    `failures` are what the format's library raises for a damaged file, beside `DAMAGE`. Parts of a book may name a
    document type, as pages do, and none of them is a program of Office.

    Raises:
        ParseError: it would unpack to too much, is damaged or protected, holds programs, or declares XML entities.
    """
    forbidden = ENTITY if is_book else _DOCTYPE_OR_ENTITY
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if is_bomb(entries):
                raise ParseError("zip_bomb", format=name)
            if any(entry.flag_bits & 1 for entry in entries):
                raise ParseError("protected", format=name)
            if not is_book and any(f"/{entry.filename.lower()}".endswith(_MACROS) for entry in entries):
                raise ParseError("macros", format=name)
            for entry in entries:
                if is_xml(entry) and forbidden.search(archive.read(entry)):
                    raise ParseError("unsafe_xml", format=name)
            yield archive
    except (*failures, *DAMAGE) as error:
        raise ParseError("damaged_file", format=name) from error


def is_bomb(entries: list[zipfile.ZipInfo]) -> bool:
    return (
        len(entries) > _MAX_ENTRIES
        or sum(entry.file_size for entry in entries) > _MAX_UNPACKED
        or sum(entry.file_size for entry in entries if is_xml(entry)) > _MAX_XML
        or any(entry.file_size > max(_RATIO_FROM, _MAX_RATIO * entry.compress_size) for entry in entries)
    )


def is_xml(entry: zipfile.ZipInfo) -> bool:
    return entry.filename.lower().endswith(_XML)


def parse_xml(data: bytes) -> Element:
    """The root of a small part; no entity is expanded and nothing is fetched. XMLSyntaxError: it is not XML."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
    return etree.fromstring(data, parser=parser)
