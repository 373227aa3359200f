"""Inserts many new rows by COPY, which needs neither a statement as long as the rows nor a parameter for each value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from django.db import connection, models
from django.db.models.expressions import DatabaseDefault

from kb.index.models.lexemes import LexemesField, storable_lexemes

Row = TypeVar("Row", bound=models.Model)


def copy_rows(model: type[Row], rows: Sequence[Row], texts: Mapping[str, Callable[[Any], str]] | None = None) -> None:
    """Inserts rows and gives them their ids; triggers fire as for one INSERT. Belongs inside a transaction.

    Args:
        model: of the rows, with an id of its own making.
        rows: unsaved; no signal is sent for them.
        texts: how the values of some columns are written as text; the others as Django does.
    """
    if not rows:
        return
    fields = [field for field in model._meta.concrete_fields if not _is_left_to_database(field, rows)]
    quote = connection.ops.quote_name
    table, columns = quote(model._meta.db_table), ", ".join(quote(str(field.column)) for field in fields)
    with connection.cursor() as cursor:
        key = model._meta.pk.column
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)", [table, key, len(rows)]
        )
        for row, (pk,) in zip(rows, cursor.fetchall(), strict=True):
            row.pk = pk
        with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row([_value(field, row, texts or {}) for field in fields])
    for row in rows:
        row._state.adding, row._state.db = False, connection.alias


def lexemes_text(lexemes: Sequence[str]) -> str:
    """Lexemes as the text of a tsvector."""
    return " ".join(f"'{_doubled(lexeme)}'" for lexeme in storable_lexemes(lexemes))


def _doubled(lexeme: str) -> str:
    return lexeme.replace("\\", "\\\\").replace("'", "''")


def _is_left_to_database(field: "models.Field[Any, Any]", rows: Sequence[models.Model]) -> bool:
    return isinstance(getattr(rows[0], field.attname), DatabaseDefault)


def _value(field: "models.Field[Any, Any]", row: models.Model, texts: Mapping[str, Callable[[Any], str]]) -> Any:
    value = field.pre_save(row, add=True)
    if field.name in texts:
        return texts[field.name](value)
    if isinstance(field, LexemesField):
        return lexemes_text(value)
    return field.get_db_prep_save(value, connection=connection)
