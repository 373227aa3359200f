"""Tables and JSON Lines: each row is a record with the names of its columns, or a pair of question and answer."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, zip_longest
from typing import Any, Final

from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section, SectionKind

QUESTION_NAMES: Final = ("question", "questions", "q", "query", "instruction", "prompt", "问题", "标准问题", "问")
ANSWER_NAMES: Final = ("answer", "answers", "a", "response", "output", "completion", "答案", "回答", "答")
ALTERNATIVE_NAMES: Final = ("alternatives", "similar_questions", "similar questions", "相似问题", "相似问", "扩展问题")
MAX_COLUMNS: Final = 2_000
# A title and some notes may stand above the header.
_HEADER_WITHIN = 10
_NUMBER = re.compile(r"[-+]?[\d.,\s]+%?|\d{1,4}[-/.年]\d{1,2}([-/.月]\d{1,4}日?)?.*")
_BLANK_LINES = re.compile(r"\s*\n\s*")
_DELIMITERS = ",;\t|"
_SAMPLE_LINES = 20
_MAX_FIELD = 1024**2

Row = Sequence[str]


def read_csv(data: bytes) -> ParsedDocument:
    return ParsedDocument("", tuple(sections(_csv_rows(decode(data)))))


def _csv_rows(text: str) -> Iterator[Row]:
    csv.field_size_limit(_MAX_FIELD)
    # The one that cuts the most of the first rows into as many cells as the first; a comma where none does
    delimiter = max(_DELIMITERS, key=lambda each: _agreement(text, each))
    try:
        yield from csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    except csv.Error as error:  # a field without end, mostly a quotation mark that is never closed
        raise ParseError("damaged_file", format="CSV") from error


def _agreement(text: str, delimiter: str) -> int:
    sample = "\n".join(text.split("\n", _SAMPLE_LINES)[:_SAMPLE_LINES])
    try:
        widths = [len(row) for row in csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter) if row]
    except csv.Error:
        return 0
    return widths.count(widths[0]) * (widths[0] - 1) if widths else 0


def read_jsonl(data: bytes) -> ParsedDocument:
    # Not splitlines: a string of JSON may hold the other line ends as they are.
    lines = enumerate(decode(data).split("\n"), start=1)
    return ParsedDocument("", tuple(_line(line, number) for number, line in lines if line.strip()))


def _line(line: str, number: int) -> Section:
    """One bad line fails the file: the curator would not notice that a pair is missing."""
    with suppress(ValueError, RecursionError):
        if pair := pair_of(json.loads(line)):
            return pair
    raise ParseError("not_a_pair", line=number)


def sections(rows: Iterable[Row], heading_path: tuple[str, ...] = ()) -> Iterator[Section]:
    """A section a record; a table whose header names questions and answers gives pairs. Rows without text are left out.

    Raises ParseError where a row has more values than MAX_COLUMNS.
    """
    filled = filter(any, map(cleaned_cells, rows))
    first = list(islice(filled, _HEADER_WITHIN))
    start = header_at(first)
    for row in first[: 0 if start is None else start]:
        yield Section(" | ".join(filter(None, row)), None, heading_path)
    if start is None:
        for row in chain(first, filled):
            yield Section(" | ".join(filter(None, row)), None, heading_path, SectionKind.RECORD)
        return
    yield from record_sections(first[start], chain(first[start + 1 :], filled), heading_path)


def record_sections(header: Row, rows: Iterable[Row], heading_path: tuple[str, ...] = ()) -> Iterator[Section]:
    """A record for each row below a header, or a pair where the header names questions and answers."""
    columns = pair_columns(header)
    for row in rows:
        pair = columns and _pair(header, row, columns, heading_path)
        yield pair or Section(_record(header, row), None, heading_path, SectionKind.RECORD)


def cleaned_cells(row: Row) -> list[str]:
    """Values on lines without blank ones between, which separate records; empty cells at the end are cut off."""
    cells = [_BLANK_LINES.sub("\n", cell.strip()) for cell in row]
    while cells and not cells[-1]:
        cells.pop()
    if _filled(cells) > MAX_COLUMNS:
        raise ParseError("too_many_columns", columns=MAX_COLUMNS)
    return cells


def header_at(rows: Sequence[Row]) -> int | None:
    """The first row as wide as the table, if it reads like names: texts, each once, and something below it.

    A single column is a list, whose first entry names nothing.
    """
    width = max(map(_filled, rows), default=0)
    for index, row in enumerate(rows[:-1]):
        if _filled(row) > 1 and 2 * _filled(row) >= width:
            return index if looks_like_names(row) else None
    return None


def looks_like_names(row: Row) -> bool:
    names = [cell for cell in row if cell]
    return len(set(names)) == len(names) and not any(map(_NUMBER.fullmatch, names))


def _filled(row: Row) -> int:
    return sum(1 for cell in row if cell)


def _record(header: Row, row: Row) -> str:
    pairs = zip_longest(header, row, fillvalue="")
    return "\n".join(f"{name}: {value}" if name else value for name, value in pairs if value)


def _pair(header: Row, row: Row, columns: tuple[int, int], heading_path: tuple[str, ...]) -> Section | None:
    question, answer = (row[column] if column < len(row) else "" for column in columns)
    if not question or not answer:
        return None
    others = tuple(
        line
        for name, value in zip(header, row, strict=False)
        if name.strip().lower() in ALTERNATIVE_NAMES
        for line in value.split("\n")
        if line
    )
    return Section.pair(question, answer, alternatives=others, heading_path=heading_path)


def pair_of(value: Any) -> Section | None:
    """The pair that a decoded JSON object holds; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    fields = {str(name).strip().lower(): content for name, content in value.items()}
    questions, answers, others = (
        _texts(_first(fields, names)) for names in (QUESTION_NAMES, ANSWER_NAMES, ALTERNATIVE_NAMES)
    )
    if not questions or not answers:
        return None
    # With instruction, input and output, as models are trained with
    question = "\n".join((questions[0], *_texts(fields.get("input"))[:1]))
    return Section.pair(question, "\n".join(answers), alternatives=(*questions[1:], *others))


def pair_columns(header: Sequence[str]) -> tuple[int, int] | None:
    names = [name.strip().lower() for name in header]
    question = next((names.index(name) for name in QUESTION_NAMES if name in names), None)
    answer = next((names.index(name) for name in ANSWER_NAMES if name in names), None)
    return None if question is None or answer is None else (question, answer)


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name)), None)


def _texts(value: Any) -> tuple[str, ...]:
    """One text or a list of them; numbers, objects and blank texts are none."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in values):
        return ()
    return tuple(each.strip() for each in values if each.strip())
