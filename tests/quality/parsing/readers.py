"""The same files read by Zhiku and by others, each made into text, tables and headings."""

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.quality.parsing.measures import Reading, Rows

_ROW = re.compile(r"^\s*\|(.*)\|\s*$")
_RULE = re.compile(r"^[\s|:-]+$")
_HEADING = re.compile(r"^\s{0,3}(#{1,6})\s+(.*?)\s*#*$")


def ours(file: Path) -> Reading:
    """As a chunk shows it: headings from the paths of sections, tables from the Markdown in their text."""
    from kb.ingest.parser.parse import parse

    document = parse(file.read_bytes(), file.name)
    text = "\n\n".join(section.text for section in document.sections)
    seen: dict[tuple[str, ...], None] = {}
    for section in document.sections:
        for depth in range(1, len(section.heading_path) + 1):
            seen.setdefault(section.heading_path[:depth])
    return Reading(text, tuple(tables_of(text)), tuple((len(path), path[-1]) for path in seen))


def pypdf(file: Path) -> Reading:
    from pypdf import PdfReader

    return Reading("\n".join(page.extract_text() for page in PdfReader(file).pages))


def pdfplumber(file: Path) -> Reading:
    import pdfplumber as library

    with library.open(file) as document:
        text = "\n".join(page.extract_text() or "" for page in document.pages)
        tables = [
            [[cell or "" for cell in row] for row in table]
            for page in document.pages
            for table in page.extract_tables()
        ]
    return Reading(text, tuple(tables))


def markitdown(file: Path) -> Reading:
    from markitdown import MarkItDown

    return of_markdown(MarkItDown().convert(file).text_content)


def docling(file: Path) -> Reading:
    from docling.document_converter import DocumentConverter

    return of_markdown(DocumentConverter().convert(file).document.export_to_markdown())


READERS: dict[str, Callable[[Path], Reading]] = {
    reader.__name__: reader for reader in (ours, pypdf, pdfplumber, markitdown, docling)
}


def installed() -> list[str]:
    return [name for name in READERS if name == "ours" or importlib.util.find_spec(name) is not None]


def of_markdown(text: str) -> Reading:
    headings = [(len(found[1]), found[2]) for line in text.splitlines() if (found := _HEADING.match(line))]
    return Reading(text, tuple(tables_of(text)), tuple(headings))


def tables_of(text: str) -> Iterator[Rows]:
    """The tables of a Markdown text: rows between bars that follow each other, without the rule below the header."""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if found := _ROW.match(line):
            if not _RULE.match(line):
                rows.append(
                    [cell.strip().replace("<br>", " ").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", found[1])]
                )
        elif rows:
            yield rows
            rows = []
