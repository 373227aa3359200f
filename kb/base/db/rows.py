"""Rows of models out of statements that are written by hand.

For what every request asks: Django takes longer to make such a statement than PostgreSQL to answer it.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from django.db import connection, models


@cache
def columns_of(model: type[models.Model], alias: str) -> str:
    """What to select for `rows_of`, from the model's table under an alias."""
    return ", ".join(f'{alias}."{field.column}"' for field in model._meta.concrete_fields)


def rows_of(selected: Sequence[type[models.Model]], values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """A row of each model, and what was selected after their columns.

    Args:
        selected: the models, in the order of their columns.
        values: a row as it was fetched.
    """
    rows: list[Any] = []
    start = 0
    for model in selected:
        names, converted = _fields(model)
        own = list(values[start : start + len(names)])
        for place, convert in converted:
            own[place] = convert(own[place], None, connection)
        rows.append(model.from_db(connection.alias, names, own))
        start += len(names)
    return rows, list(values[start:])


@cache
def _fields(model: type[models.Model]) -> tuple[list[str], list[tuple[int, Callable[..., Any]]]]:
    """The names of a model's fields, and what makes values of what the driver reads, by place."""
    fields = model._meta.concrete_fields
    return [field.attname for field in fields], [
        (place, field.from_db_value) for place, field in enumerate(fields) if hasattr(field, "from_db_value")
    ]
