"""Work after a commit, and locks: of rows, and advisory ones of PostgreSQL."""

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from enum import IntEnum
from typing import Any

from django.apps import apps
from django.db import connection, transaction


def after_commit(function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function once the transaction is committed; that it fails is logged, and keeps nothing else from being done.

    Django's own way to do that fails itself where the function is a `partial`, which has no name to be logged by.
    """

    def call() -> None:
        function(*arguments)

    call.__qualname__ = getattr(function, "__qualname__", repr(function))
    transaction.on_commit(call, robust=True)


def lock_knowledge_bases(kb_ids: Collection[int]) -> None:
    """Locks the rows in order until the transaction ends; those that refer to them can still be added."""
    rows = apps.get_model("kb", "KnowledgeBase").objects.filter(pk__in=kb_ids).order_by("pk")
    list(rows.select_for_update(no_key=True).values_list("pk"))


class Purpose(IntEnum):
    """The upper half of an advisory lock's number; the lower one is the knowledge base's id."""

    BUILD_INDEX = 0x7A68_0001
    TOKENIZE = 0x7A68_0002
    VECTOR_INDEX = 0x7A68_0003
    PROFILES = 0x7A68_0004
    REEMBED = 0x7A68_0005
    STORE = 0x7A68_0006
    PAGE_CACHE = 0x7A68_0007


HELD = """
SELECT objid::bigint FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid::bigint = %s
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@contextmanager
def try_lock(purpose: Purpose, kb_id: int = 0) -> Iterator[bool]:
    """Takes the lock if nobody has it; never waits.

    Yields:
        Whether it was taken.
    """
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
    with connection.cursor() as cursor:
        cursor.execute(HELD, [purpose])
        return frozenset(kb_id for (kb_id,) in cursor.fetchall())


def lock_until_commit(purpose: Purpose, kb_id: int = 0) -> None:
    """Waits for the lock, inside a transaction that keeps it to its end."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [(purpose << 32) | kb_id])
