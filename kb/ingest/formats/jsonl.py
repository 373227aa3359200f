"""JSON Lines of question and answer pairs."""

import json
from contextlib import suppress

from kb.ingest.formats.decode import decode
from kb.ingest.formats.qa import pair_of
from kb.ingest.parser.parsed import ErrorCode, ParsedDocument, ParseError, Section


def read(data: bytes) -> ParsedDocument:
    # Not splitlines: a string of JSON may hold the other line ends as they are.
    lines = enumerate(decode(data).split("\n"), start=1)
    sections = tuple(_section(line, number) for number, line in lines if line.strip())
    return ParsedDocument("", "application/jsonl", sections)


def _section(line: str, number: int) -> Section:
    """One bad line fails the file: the curator would not notice that a pair is missing."""
    with suppress(ValueError, RecursionError):
        if pair := pair_of(json.loads(line)):
            (question, *others), answer = pair
            return Section.pair(question, answer, alternatives=tuple(others))
    raise ParseError(ErrorCode.NOT_A_PAIR, line=number)
