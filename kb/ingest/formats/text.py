"""Plain text: one section, lines as they are."""

from kb.ingest.formats.decode import decode
from kb.ingest.parser.parsed import ParsedDocument, Section


def read(data: bytes) -> ParsedDocument:
    return ParsedDocument("", "text/plain", (Section(decode(data)),))
