"""The stores that this installation has beside PostgreSQL."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from django.conf import settings
from django.utils.module_loading import import_string
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase
from kb.base.db.connections import fetch_all
from kb.index.mirrors.protocol import Mirror, StoreError, StoreNotConfigured, TextCollection, VectorCollection
from retrieval.errors import ChannelUnavailable
from retrieval.execution import CircuitBreaker
from retrieval.messages import Message, gettext_noop, message_of
from retrieval.trace import DegradationCode

T = TypeVar("T")

Store = KnowledgeBase.Store

SECONDS_PAUSED = 15.0


@dataclass(frozen=True, slots=True)
class Driver:
    """How a store is reached: its class, its settings, and the extra that brings its package."""

    path: str
    address: str
    token: str
    extra: str


DRIVERS = {
    Store.MILVUS.value: Driver("kb.index.mirrors.milvus.MilvusMirror", "MILVUS_URI", "MILVUS_TOKEN", "milvus"),
    Store.CHROMA.value: Driver("kb.index.mirrors.chroma.ChromaMirror", "CHROMA_URL", "CHROMA_TOKEN", "chroma"),
}
KEYWORD_STORES = frozenset({Store.MILVUS.value})


@dataclass(slots=True)
class _Held:
    """What this process has opened. Neither client outlives a fork, so a child opens its own."""

    pid: int = field(default_factory=os.getpid)
    mirrors: dict[tuple[str, str, str], Mirror] = field(default_factory=dict)
    breakers: dict[str, CircuitBreaker] = field(default_factory=dict)
    opening: dict[str, threading.Lock] = field(default_factory=lambda: {name: threading.Lock() for name in DRIVERS})


_held = _Held()


def configured_stores() -> tuple[str, ...]:
    """The stores that a knowledge base may be moved to."""
    return (Store.POSTGRES.value, *(name for name, driver in DRIVERS.items() if getattr(settings, driver.address)))


def mirror(store: str) -> Mirror:
    """A store's client, opened at its first use.

    One store that hangs holds up neither another one, nor for longer than STORE_SECONDS who waits for it to be opened.

    Raises:
        StoreNotConfigured: this installation has no address of it, or not its package.
        StoreError: its server cannot be reached.
    """
    driver = DRIVERS[store]
    key = (store, getattr(settings, driver.address), getattr(settings, driver.token))
    held = _of_this_process()
    if key in held.mirrors:
        return held.mirrors[key]
    kind = _class(store, driver)
    if not held.opening[store].acquire(timeout=settings.STORE_SECONDS):
        raise StoreError(
            Message(
                gettext_noop("{store} did not answer to another search within {seconds:g} s"),
                store=str(Store(store).label),
                seconds=settings.STORE_SECONDS,
            )
        )
    try:
        if key not in held.mirrors:
            held.mirrors[key] = kind(key[1], key[2], settings.STORE_SECONDS)
        return held.mirrors[key]
    finally:
        held.opening[store].release()


def asked(store: str, ask: Callable[[Mirror], T]) -> T:
    """What a store answers to a search.

    Raises:
        ChannelUnavailable: its server cannot be reached or refuses, or has done so repeatedly a moment ago.
    """
    closed = CircuitBreaker(failures_to_open=2, seconds_open=SECONDS_PAUSED)
    breaker = _of_this_process().breakers.setdefault(store, closed)
    if not breaker.allows():
        raise _unavailable(f"{Store(store).label} failed repeatedly and is not asked for {SECONDS_PAUSED:.0f} s")
    try:
        answer = ask(mirror(store))
    except StoreError as error:
        breaker.failed()
        raise _unavailable(message_of(error)) from error
    breaker.succeeded()
    return answer


def _of_this_process() -> _Held:
    global _held  # noqa: PLW0603 - one for the process
    if _held.pid != os.getpid():
        _held = _Held()
    return _held


def _class(store: str, driver: Driver) -> Callable[[str, str, float], Mirror]:
    """Its class, made of its address, its token and its seconds a call; the first time its package is imported."""
    if not getattr(settings, driver.address):
        raise StoreNotConfigured(
            Message(
                gettext_noop(
                    "{store} is not set up here: set {address}, or move the knowledge base back with `manage.py "
                    "migrate_store --kb NAME --to postgres`"
                ),
                store=str(Store(store).label),
                address=driver.address,
            )
        )
    try:
        kind: Callable[[str, str, float], Mirror] = import_string(driver.path)
    except ImportError as error:
        raise StoreNotConfigured(
            Message(
                gettext_noop("the package of {store} is missing ({error}): run `pip install 'zhiku[{extra}]'`"),
                store=str(Store(store).label),
                error=message_of(error),
                extra=driver.extra,
            )
        ) from error
    return kind


def _unavailable(reason: str) -> ChannelUnavailable:
    return ChannelUnavailable(
        DegradationCode.STORE_UNAVAILABLE,
        Message(
            gettext_noop(
                "{reason}. PostgreSQL answered instead: start the server, or correct its address; `manage.py "
                "doctor` looks at it"
            ),
            reason=reason,
        ),
    )


MOST_PENDING = 2_000
"""So many changed chunks are compared one by one beside what a store finds; with more, PostgreSQL answers alone."""

ROWS_A_CHUNK = 4
"""A chunk that is written makes up to so many rows."""

PENDING = """
SELECT coalesce(array_agg(DISTINCT chunk_id ORDER BY chunk_id), '{}'), count(*), bool_or(chunk_id IS NULL) FROM (
    SELECT chunk_id FROM kb_storechange
    WHERE knowledge_base_id = %s AND store = %s AND model = ANY(%s) LIMIT %s
) c
"""

TAKEN_IN = """
SELECT EXISTS (
    SELECT FROM {rows} WHERE NOT EXISTS (
        SELECT FROM kb_storechange c WHERE c.knowledge_base_id = %s AND c.store = %s AND c.chunk_id = r.chunk_id
    )
)
"""
TEXTS = "(SELECT id AS chunk_id FROM kb_chunk WHERE knowledge_base_id = %s AND enabled) r"
VECTORS = """
(
    SELECT chunk_id FROM kb_chunkembedding
    WHERE knowledge_base_id = %s AND model = %s AND kind = %s AND enabled AND vector_dims(vector) = %s
) r
"""


def pending_chunks(kb_id: int, store: str, models: tuple[str, ...]) -> NDArray[np.int64] | None:
    """The chunks with changes that the store has not taken in, ascending; None where they are too many to look at.

    Args:
        kb_id: the knowledge base.
        store: the store.
        models: of the vectors in question; "" for the chunks themselves and their texts.
    """
    limit = ROWS_A_CHUNK * MOST_PENDING
    [(chunk_ids, rows, starts_over)] = fetch_all(PENDING, [kb_id, store, list(models), limit])
    if starts_over or rows == limit or len(chunk_ids) > MOST_PENDING:
        return None
    return np.array(chunk_ids, dtype=np.int64)


def has_taken_in(store: str, collection: TextCollection | VectorCollection) -> bool:
    """Whether a collection has been given anything that it should still hold; one that is not there then was lost."""
    values: tuple[int | str, ...]
    if isinstance(collection, TextCollection):
        rows, values = TEXTS, (collection.kb_id,)
    else:
        rows, values = VECTORS, (collection.kb_id, collection.model_id, collection.kind, collection.dimension)
    [(is_there,)] = fetch_all(TAKEN_IN.format(rows=rows), [*values, collection.kb_id, store])
    return bool(is_there)
