"""CSV: each row is a record with the names of the header."""

import csv
import io
from collections.abc import Iterator

from kb.ingest.formats import records
from kb.ingest.formats.decode import decode
from kb.ingest.parser.parsed import ErrorCode, ParsedDocument, ParseError

_DELIMITERS = ",;\t|"
_SAMPLE_LINES = 20
_MAX_FIELD = 1024**2


def read(data: bytes) -> ParsedDocument:
    return ParsedDocument("", "text/csv", tuple(records.sections(_rows(decode(data)))))


def _rows(text: str) -> Iterator[list[str]]:
    csv.field_size_limit(_MAX_FIELD)
    # The one that cuts the most of the first rows into as many cells as the first; a comma where none does
    delimiter = max(_DELIMITERS, key=lambda each: _agreement(text, each))
    try:
        yield from csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    except csv.Error as error:  # a field without end, mostly a quotation mark that is never closed
        raise ParseError(ErrorCode.DAMAGED_FILE, format="CSV") from error


def _agreement(text: str, delimiter: str) -> int:
    sample = "\n".join(text.split("\n", _SAMPLE_LINES)[:_SAMPLE_LINES])
    try:
        widths = [len(row) for row in csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter) if row]
    except csv.Error:
        return 0
    return sum(width == widths[0] for width in widths) * (widths[0] - 1) if widths else 0
