"""Statements that Django's cursors do not offer: values and results travel in binary, at any size and for any time."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

NO_TIMEOUT = "SELECT set_config('statement_timeout', '0', true)"
ALL_ROWS = "SET LOCAL cursor_tuple_fraction = 1"
STREAM = "zhiku_stream"


@contextmanager
def binary_cursor() -> Iterator["psycopg.Cursor[Any]"]:
    """Values are bound by the server: bytes go over as they are, instead of as text of twice their length.

    Results are in binary where `execute` is told `binary=True`.

    Raises:
        django.db.DatabaseError: What psycopg's own error says.
    """
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        yield cursor


@contextmanager
def untimed_cursor() -> Iterator["psycopg.Cursor[Any]"]:
    """A binary cursor in a transaction whose statements may take any time, for work off every request's thread.

    Raises:
        django.db.DatabaseError: What psycopg's own error says.
    """
    with transaction.atomic(), binary_cursor() as cursor:
        cursor.execute(NO_TIMEOUT)
        yield cursor


@contextmanager
def streaming_cursor(rows_at_a_time: int) -> Iterator["psycopg.ServerCursor[Any]"]:
    """A cursor in an untimed transaction whose rows stay with the server until they are fetched; all of them will be.

    Raises:
        django.db.DatabaseError: What psycopg's own error says.
    """
    with untimed_cursor() as settings, psycopg.ServerCursor(connection.connection, STREAM) as cursor:
        settings.execute(ALL_ROWS)
        cursor.itersize = rows_at_a_time
        yield cursor


@contextmanager
def own_session(**options: str | int) -> Iterator[BaseDatabaseWrapper]:
    """A connection of its own, outside the pool, whose statements may take any time.

    Args:
        **options: further settings of PostgreSQL.
    """
    own = connection.copy()
    given = own.settings_dict["OPTIONS"]
    given.pop("pool", None)
    settings = {"statement_timeout": 0, **options}
    given["options"] = " ".join([given.get("options", ""), *(f"-c {name}={value}" for name, value in settings.items())])
    with closing(own):
        yield own
