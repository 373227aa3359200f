"""Graphs as CSV files: their columns, and how they are read and written."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.graph.models import Concept, Entity, GraphFact
from kb.ingest.formats.decode import decode
from kb.ingest.parser.parsed import ParseError

MAX_BYTES = 2 * 1024**2
MAX_ROWS = 20_000
CELL_CHARACTERS = 20_000
SEPARATOR = "|"
_BETWEEN = re.compile(r"[|;；\uff5c]")


class Table(StrEnum):
    ENTITIES = "entities"
    FACTS = "facts"
    CONCEPTS = "concepts"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a file by its columns; those that it leaves out are blank."""

    line: int
    values: Mapping[str, str]

    def __getitem__(self, column: str) -> str:
        return self.values.get(column, "")

    def listed(self, column: str) -> list[str]:
        """The parts of a cell that holds several names."""
        return [part.strip() for part in _BETWEEN.split(self[column]) if part.strip()]


COLUMNS: Mapping[Table, Sequence[str]] = {
    Table.ENTITIES: ("name", "kind", "description", "aliases"),
    Table.FACTS: ("subject", "predicate", "object", "document", "chunk"),
    Table.CONCEPTS: ("name", "parent", "synonyms"),
}
REQUIRED: Mapping[Table, Sequence[str]] = {
    Table.ENTITIES: ("name",),
    Table.FACTS: ("subject", "predicate", "object"),
    Table.CONCEPTS: ("name",),
}
_CHINESE = {
    "名称": "name",
    "类别": "kind",
    "描述": "description",
    "别名": "aliases",
    "主语": "subject",
    "主体": "subject",
    "谓词": "predicate",
    "关系": "predicate",
    "宾语": "object",
    "客体": "object",
    "文档": "document",
    "块": "chunk",
    "上位概念": "parent",
    "同义词": "synonyms",
}


def read_bytes(data: bytes) -> str:
    """The text of a file in UTF-8, UTF-16 with a mark, or GB18030.

    Raises:
        Rejected: it is too large, or in another encoding.
    """
    if len(data) > MAX_BYTES:
        raise Rejected(
            "too_large", _("The file is larger than %(megabytes)d MB: split it."), megabytes=MAX_BYTES // 1024**2
        )
    try:
        return decode(data)
    except ParseError as error:
        raise Rejected("undecodable", _("The file is neither UTF-8 nor GB18030: save it as UTF-8 CSV.")) from error


def read_table(text: str, table: Table) -> list[Row]:
    """The rows of a file whose first line names the columns, in English or Chinese; commas, semicolons or tabs part them.

    Raises:
        Rejected: a column is missing or not known, there are no rows or too many, or it is no CSV.
    """
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=text.partition("\n")[0].count), strict=True)
    try:
        columns = _columns(next(reader, []), table)
        rows = list(_rows(reader, columns))
    except csv.Error as error:
        raise Rejected(
            "no_csv",
            _("Line %(line)d is no CSV (%(reason)s): check its quotation marks."),
            line=reader.line_num,
            reason=error,
        ) from error
    if not rows:
        raise Rejected("no_rows", _("The file has no rows below its header: add some."))
    return rows


def _columns(header: Sequence[str], table: Table) -> list[str]:
    names = [cell.strip().strip("\ufeff").casefold() for cell in header]
    columns = [_CHINESE.get(name, name) for name in names]
    unknown = [name for name in columns if name and name not in COLUMNS[table]]
    missing = [name for name in REQUIRED[table] if name not in columns]
    if missing or unknown:
        message = _("The first line has to name the columns: %(columns)s. %(wrong)s does not fit.")
        wrong = ", ".join(f"“{name}”" for name in (missing or unknown)[:5])
        raise Rejected("bad_header", message, columns=", ".join(COLUMNS[table]), wrong=wrong)
    return columns


def _rows(reader: Iterator[list[str]], columns: Sequence[str]) -> Iterator[Row]:
    for count, cells in enumerate(reader, start=1):
        if count > MAX_ROWS:
            raise Rejected("too_many_rows", _("The file has more than %(most)d rows: split it."), most=MAX_ROWS)
        texts = [cell.strip() for cell in cells]
        texts = [text[1:] if text.startswith(("'=", "'+", "'-", "'@")) else text for text in texts]
        values = {column: text for column, text in zip(columns, texts, strict=False) if column}
        if any(values.values()):
            yield Row(reader.line_num, values)  # type: ignore[attr-defined]


ROWS_AT_ONCE = 1_000

Cells = Sequence[str | int]


class _Line:
    """A file that returns what is written to it, so that lines can be sent one by one."""

    def write(self, line: str) -> str:
        return line


def graph_export(kb: KnowledgeBase, table: Table) -> Iterator[str]:
    """The lines of a file that `read_table` reads; with a mark, so that spreadsheets take it for UTF-8."""
    writer = csv.writer(_Line())
    yield "\ufeff" + writer.writerow(COLUMNS[table])
    for row in _ROWS[table](kb):
        # Spreadsheets run what begins like a formula.
        cells = [f"'{cell}" if str(cell).startswith(("=", "+", "-", "@", "\t", "\r")) else cell for cell in row]
        yield writer.writerow(cells)


def _entities(kb: KnowledgeBase) -> Iterator[Cells]:
    rows = Entity.objects.filter(knowledge_base=kb).prefetch_related("names").order_by("name", "pk")
    for entity in rows.iterator(ROWS_AT_ONCE):
        yield entity.name, entity.kind, entity.description, SEPARATOR.join(entity.aliases)


def _facts(kb: KnowledgeBase) -> Iterator[Cells]:
    rows = GraphFact.objects.filter(knowledge_base=kb).select_related("source_chunk__document")
    for fact in rows.order_by("subject", "predicate", "object", "pk").iterator(ROWS_AT_ONCE):
        chunk = fact.source_chunk
        source: Cells = (
            ("", "") if chunk is None else (chunk.document.source or chunk.document.title, chunk.position + 1)
        )
        yield fact.subject, fact.predicate, fact.object, *source


def _concepts(kb: KnowledgeBase) -> Iterator[Cells]:
    rows = Concept.objects.filter(knowledge_base=kb).select_related("parent").prefetch_related("terms")
    for concept in rows.order_by("name", "pk").iterator(ROWS_AT_ONCE):
        synonyms = SEPARATOR.join(term.text for term in concept.other_terms)
        yield concept.name, concept.parent.name if concept.parent else "", synonyms


_ROWS: Mapping[Table, Callable[[KnowledgeBase], Iterator[Cells]]] = {
    Table.ENTITIES: _entities,
    Table.FACTS: _facts,
    Table.CONCEPTS: _concepts,
}
