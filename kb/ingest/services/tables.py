"""A table of titles, tags and metadata for the files of an upload, matched by their names."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from kb.base.errors import NotVisible, Rejected
from kb.base.text import is_storable, validate_metadata
from kb.content.models import Document, FileDetails, IngestBatch
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParseError
from kb.ingest.services.batches import details_of
from kb.ingest.services.documents import document_held, document_update

MOST_ROWS: Final = 50_000
MOST_COLUMNS: Final = 200
MOST_BYTES: Final = 10 * 1024**2
NAME, TITLE, TAGS, METADATA = "filename", "title", "tags", "metadata"
TAG_CHARACTERS: Final = 60
_PLAIN_NUMBER: Final = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")
PIECE = 500


def read_table(data: bytes) -> list[FileDetails]:
    """Reads CSV with columns `filename` and any of `title`, `tags` (between semicolons) and `metadata` (a JSON object).

    Every further column is an entry of the metadata under its own name: as numbers where each of its cells is one, else
    as texts. An empty cell says nothing. Returns rows that are not saved and of no upload yet. Raises Rejected where it
    is too large, has no column `filename`, or a row, which is named, cannot be taken.
    """
    if len(data) > MOST_BYTES:
        raise Rejected("table_invalid", _("The table is larger than %(megabytes)s MB: split it."), megabytes=10)
    try:
        reader = csv.DictReader(io.StringIO(decode(data), newline=""), strict=True)
        header = [(name or "").strip() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        if NAME not in header:
            raise Rejected("table_invalid", _("The table needs a column “filename”: add it as the first row says."))
        if len(header) > MOST_COLUMNS:
            message = _("The table has more than %(columns)s columns: leave out those that are not needed.")
            raise Rejected("table_invalid", message, columns=MOST_COLUMNS)
        named = ((line, row) for line, row in enumerate(reader, start=2) if (row[NAME] or "").strip())
        rows = [_described(line, row) for line, row in islice(named, MOST_ROWS + 1)]
        if len(rows) > MOST_ROWS:
            raise Rejected("table_invalid", _("The table has more than %(rows)s rows: split it."), rows=MOST_ROWS)
        rows = list({row.name: row for row in rows}.values())
        # A column of nothing but numbers compares as numbers; one with leading zeros or units among them is text
        for name in {*header} - {NAME, TITLE, TAGS, METADATA}:
            cells = [(row.metadata, _number(str(row.metadata[name]))) for row in rows if name in row.metadata]
            if all(number is not None for _, number in cells):
                for metadata, number in cells:
                    metadata[name] = number
    except (ParseError, csv.Error) as error:
        raise Rejected("table_invalid", _("The table cannot be read: save it as CSV in UTF-8.")) from error
    return rows


def batch_describe(batch: IngestBatch, rows: Sequence[FileDetails]) -> int:
    """Keeps a table for the files that come, and tells the documents that are here, whose number it returns."""
    for row in rows:
        row.batch = batch
    FileDetails.objects.bulk_create(
        rows,
        batch_size=PIECE,
        update_conflicts=True,
        unique_fields=["batch", "name"],
        update_fields=["title", "tags", "metadata"],
    )
    after = updated = 0
    while documents := list(Document.objects.filter(batch=batch, pk__gt=after).order_by("pk")[:PIECE]):
        after = documents[-1].pk
        named = [(document, str(document.metadata.get("path") or document.source)) for document in documents]
        details = details_of(batch, [name for _, name in named])
        found = [(document, details[name]) for document, name in named if name in details]
        updated += len(found)
        for document, row in found:
            if _changes(document, row):
                with suppress(NotVisible), document_held(document) as held:  # deleted since, or changed
                    document_update(held, **_changes(held, row))
    return updated


def _changes(document: Document, row: FileDetails) -> dict[str, Any]:
    said: dict[str, Any] = {"metadata": {**document.metadata, **row.metadata}}
    if row.title:
        said["title"] = row.title
    if row.tags:
        said["tags"] = list(row.tags)
    return {name: value for name, value in said.items() if getattr(document, name) != value}


def _described(line: int, row: Mapping[str | None, Any]) -> FileDetails:
    cells = {str(name): value.strip() for name, value in row.items() if name and isinstance(value, str)}
    if None in row:
        raise _refused(line, _("it has more cells than the header"))
    name = cells[NAME].replace("\\", "/").removeprefix("./")
    tags = [tag.strip() for tag in cells.get(TAGS, "").replace("；", ";").split(";") if tag.strip()]
    title = cells.get(TITLE, "")
    if len(name) > 1_000 or len(title) > 500 or any(len(tag) > TAG_CHARACTERS for tag in tags) or len(tags) > 50:
        raise _refused(line, _("a name, title or tag is too long, or there are more than 50 tags"))
    if not all(map(is_storable, cells.values())):
        raise _refused(line, _("it holds a character that cannot be stored"))
    own = {key: value for key, value in cells.items() if key not in (NAME, TITLE, TAGS, METADATA) and value}
    metadata = {**_metadata(line, cells.get(METADATA, "")), **own}
    return FileDetails(name=name, title=title, tags=tags, metadata=metadata)


def _number(cell: str) -> int | float | None:
    """None for a cell that would not be written like that as a number."""
    if not _PLAIN_NUMBER.fullmatch(cell):
        return None
    value = float(cell) if "." in cell else int(cell)
    return value if str(value) == cell else None


def _metadata(line: int, cell: str) -> dict[str, Any]:
    if not cell:
        return {}
    try:
        value: dict[str, Any] = json.loads(cell)
        validate_metadata(value)
    except (ValueError, RecursionError) as error:
        raise _refused(line, _("“metadata” is not a JSON object")) from error
    except ValidationError as error:
        raise _refused(line, error.messages[0]) from error
    return value


def _refused(line: int, why: str) -> Rejected:
    message = _("Line %(line)s of the table cannot be taken: %(why)s. Fix it and upload the table again.")
    return Rejected("table_invalid", message, line=line, why=why)
