"""Statements written by hand, where Django takes longer to make one than PostgreSQL to answer it; commits; locks."""

import contextvars
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from enum import IntEnum
from functools import cache, lru_cache
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import numpy as np
import psycopg
from django.apps import apps
from django.db import connection, connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from numpy.typing import NDArray

BATCH = 2_000


@contextmanager
def binary_cursor() -> Iterator["psycopg.Cursor[Any]"]:
    """Values are bound by the server: bytes go over as they are, instead of as text of twice their length.

    Results are in binary where `execute` gets `binary=True`. What psycopg raises comes as `django.db.DatabaseError`.
    """
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        yield cursor


@contextmanager
def untimed_cursor() -> Iterator["psycopg.Cursor[Any]"]:
    """A binary cursor in a transaction whose statements may take any time, for work off every request's thread."""
    with transaction.atomic(), binary_cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', '0', true)")
        yield cursor


@contextmanager
def streaming_cursor(rows_at_a_time: int) -> Iterator["psycopg.ServerCursor[Any]"]:
    """A cursor in an untimed transaction whose rows stay with the server until they are fetched; all of them will be."""
    with untimed_cursor() as settings, psycopg.ServerCursor(connection.connection, "zhiku_stream") as cursor:
        settings.execute("SET LOCAL cursor_tuple_fraction = 1")
        cursor.itersize = rows_at_a_time
        yield cursor


@contextmanager
def own_session(**options: str | int) -> Iterator[BaseDatabaseWrapper]:
    """A connection of its own, outside the pool, without a time limit; `options` are settings of PostgreSQL."""
    own = connection.copy()
    given = own.settings_dict["OPTIONS"]
    given.pop("pool", None)
    settings = {"statement_timeout": 0, **options}
    given["options"] = " ".join([given.get("options", ""), *(f"-c {name}={value}" for name, value in settings.items())])
    with closing(own):
        yield own


P = ParamSpec("P")
R = TypeVar("R")


class ConnectionReturningExecutor(ThreadPoolExecutor):
    """Threads that give their connection back after each job; its log lines belong to the request that asked for it."""

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        def job() -> R:
            try:
                return function(*args, **kwargs)
            finally:
                connections.close_all()

        return super().submit(contextvars.copy_context().run, job)


def fetch_all(statement: str, values: Any = None, session: Any = connection) -> list[tuple[Any, ...]]:
    with session.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


def delete_in_batches(statement: str, **values: Any) -> int:
    """Runs a DELETE of at most `%(batch)s` rows, each time in a transaction of its own, until none is left; returns how many."""
    deleted, batch = 0, BATCH
    with connection.cursor() as cursor:
        while batch == BATCH:
            cursor.execute(statement, {**values, "batch": BATCH})
            batch = cursor.rowcount
            deleted += batch
    return deleted


def give_connection_back() -> None:
    """To the pool, which is small, before a wait of seconds; an open transaction keeps it."""
    if not connection.in_atomic_block:
        connection.close()


def vector_text(vector: NDArray[np.float32]) -> str:
    """A vector as text; to write a thousand numbers one by one takes longer than many a search."""
    return f"[{','.join(_texts()[np.asarray(vector, dtype=np.float16).view(np.uint16)].tolist())}]"


@lru_cache(maxsize=1)
def _texts() -> NDArray[Any]:
    """The shortest text of each number of 16 bits, in the order of the bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(str).astype(object)


def array_text(numbers: Iterable[int]) -> str:
    """For twenty thousand numbers the driver's adapters take ten times as long."""
    return "{" + ",".join(map(str, numbers)) + "}"


@cache
def columns_of(model: type[models.Model], alias: str) -> str:
    return ", ".join(f'{alias}."{field.column}"' for field in model._meta.concrete_fields)


def rows_of(selected: Sequence[type[models.Model]], values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """A row of each model, in the order of their columns in a row as it was fetched, and what was selected after them."""
    rows: list[Any] = []
    left = iter(values)
    for model in selected:
        names, converted = _fields(model)
        own = list(islice(left, len(names)))
        for place, convert in converted:
            own[place] = convert(own[place], None, connection)
        rows.append(model.from_db(connection.alias, names, own))
    return rows, list(left)


@cache
def _fields(model: type[models.Model]) -> tuple[list[str], list[tuple[int, Callable[..., Any]]]]:
    """The names of a model's fields, and what makes values of what the driver reads, by place."""
    fields = model._meta.concrete_fields
    return [field.attname for field in fields], [
        (place, field.from_db_value) for place, field in enumerate(fields) if hasattr(field, "from_db_value")
    ]


def after_commit(function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function, or a `partial`, after the commit; a failure is logged, and the other functions still run."""

    def call() -> None:
        function(*arguments)

    call.__qualname__ = getattr(function, "__qualname__", repr(function))
    transaction.on_commit(call, robust=True)


def lock_knowledge_bases(kb_ids: Collection[int]) -> None:
    """Locks the rows in order until the transaction ends; those that refer to them can still be added."""
    rows = apps.get_model("kb", "KnowledgeBase").objects.filter(pk__in=kb_ids).order_by("pk")
    list(rows.select_for_update(no_key=True).values_list("pk"))


@contextmanager
def holding_knowledge_bases(kb_ids: Collection[int]) -> Iterator[None]:
    """A transaction that begins with `lock_knowledge_bases`."""
    with transaction.atomic():
        lock_knowledge_bases(kb_ids)
        yield


class Purpose(IntEnum):
    """The upper half of an advisory lock's number; the lower one is the knowledge base's id."""

    BUILD_INDEX = 0x7A68_0001
    TOKENIZE = 0x7A68_0002
    VECTOR_INDEX = 0x7A68_0003
    PROFILES = 0x7A68_0004
    REEMBED = 0x7A68_0005
    STORE = 0x7A68_0006
    PAGE_CACHE = 0x7A68_0007
    TURN = 0x7A68_0008
    STORE_MOVE = 0x7A68_0009


HELD = """
SELECT objid::bigint FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid::bigint = %s
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@contextmanager
def try_lock(purpose: Purpose, kb_id: int = 0) -> Iterator[bool]:
    """Takes the lock if nobody has it, and yields whether it was taken; never waits."""
    number = (purpose << 32) | kb_id
    # A session of its own: the thread's goes back to the pool, lock and all, when the work inside gives it back.
    with closing(connection.copy()) as holder, holder.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [number])
        (taken,) = cursor.fetchone()
        try:
            yield taken
        finally:
            if taken:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [number])


def held_locks(purpose: Purpose) -> frozenset[int]:
    return frozenset(kb_id for (kb_id,) in fetch_all(HELD, [purpose]))


def lock_until_commit(purpose: Purpose, kb_id: int = 0) -> None:
    """Waits for the lock, inside a transaction that keeps it to its end."""
    fetch_all("SELECT pg_advisory_xact_lock(%s)", [(purpose << 32) | kb_id])
