"""Reads a page in the sandbox: its text, and where it leads."""

from io import BytesIO
from typing import Any, BinaryIO

from kb.ingest.formats.decode import decode
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import parse_job
from kb.sources.connectors.markup import read_markup


def page_job(file: BinaryIO, filename: str, url: str) -> dict[str, Any]:
    """The child's side of reading a page of HTML that lies at `url`."""
    data = file.read()
    return {"document": parse_job(BytesIO(data), filename), **links_job(BytesIO(data), url)}


def links_job(file: BinaryIO, url: str) -> dict[str, Any]:
    """Where a page leads, and when it was published; neither where its characters cannot be read."""
    try:
        found = read_markup(decode(file.read()), url)
    except ParseError:
        return {"links": [], "published": None}
    return {"links": list(found.links), "published": found.published and found.published.isoformat()}
