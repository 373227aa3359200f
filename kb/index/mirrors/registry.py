"""The stores that this installation has beside PostgreSQL, and searches in them.

The server names candidates, and PostgreSQL has the last word on them: so deleted and disabled chunks never come back,
scores and ties are PostgreSQL's own, and what the server has not yet taken in is found all the same.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import numpy as np
from django.conf import settings
from django.utils.module_loading import import_string
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import fetch_all
from kb.index.filters import enabled_among
from kb.index.mirrors.protocol import Found, Mirror, StoreError, StoreNotConfigured, TextCollection, VectorCollection
from kb.index.pgvector import MAX_EXACT, PgVectorStore
from retrieval.errors import ChannelUnavailable, DegradationCode, Message, gettext_noop, message_of
from retrieval.execution import CircuitBreaker

T = TypeVar("T")

Store = KnowledgeBase.Store

SECONDS_PAUSED = 15.0


@dataclass(frozen=True, slots=True)
class Driver:
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
    """What a store answers to a search; raises ChannelUnavailable where it fails, or did so repeatedly a moment ago."""
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


# So many changed chunks are compared one by one beside what a store finds; with more, PostgreSQL answers alone.
MOST_PENDING = 2_000

# A chunk that is written makes up to so many rows.
ROWS_A_CHUNK = 4

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

    `models` are those of the vectors in question; "" for the chunks themselves and their texts.
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
    return bool(fetch_all(TAKEN_IN.format(rows=rows), [*values, collection.kb_id, store])[0][0])


# A search that leaves too few candidates is asked for so many times as many.
WIDER = 4
LEAST_ASKED = 64
BEHIND: Final = gettext_noop(
    "{store} has many changes of this knowledge base to take in, so PostgreSQL answered, which may take longer: wait, "
    "and see that a worker runs."
)
LOST: Final = gettext_noop(
    "{store} has lost its copy of this knowledge base, so PostgreSQL answered, which may take longer: a worker fills it "
    "again within the hour, or `manage.py migrate_store --kb NAME --rebuild` does at once."
)
NOTHING: Found = np.empty(0, dtype=np.int64), np.empty(0)


class MirroredVectorStore(PgVectorStore):
    """Vectors that a server holds a copy of; similarities are PostgreSQL's."""

    def __init__(self, store: str) -> None:
        self._store = store

    def search(
        self,
        kb_id: int,
        model_id: str,
        vector: NDArray[np.float32],
        k: int,
        *,
        kind: str = "content",
        only: NDArray[np.int64] | None = None,
    ) -> Found:
        exact = partial(super().search, kb_id, model_id, vector, k, kind=kind)
        if k < 1 or not np.any(vector) or (only is not None and only.size <= MAX_EXACT):
            return exact(only=only)
        pending = pending_chunks(kb_id, self._store, ("", model_id))
        if pending is None:
            raise outdated(self._store, BEHIND)
        collection = VectorCollection(kb_id, model_id, str(kind), vector.size)
        named = asked(self._store, lambda mirror: _named(mirror, collection, vector, k, pending, only))
        if named is None:
            return exact(only=only)
        if not named.size and has_taken_in(self._store, collection):
            raise outdated(self._store, LOST)
        found = exact(only=np.union1d(named, pending if only is None else np.intersect1d(pending, only)))
        return found if found[0].size >= k else exact(only=only)  # what the server named is not there any more


class MirroredKeywordStore:
    """Texts that a server holds a copy of and cuts into terms by itself, as suits the language of the knowledge base."""

    def __init__(self, store: str, language: str) -> None:
        self.name = store
        self._language = language

    def search(self, kb_id: int, text: str, k: int, *, only: NDArray[np.int64] | None = None) -> Found | None:
        if k < 1 or not text.strip() or (only is not None and not only.size):
            return NOTHING
        pending = pending_chunks(kb_id, self.name, ("",))
        if pending is None:
            raise outdated(self.name, BEHIND)
        if pending.size:
            return None
        chunk_ids, scores = self._asked(kb_id, text, k, only)
        there = enabled_among(kb_id, chunk_ids)
        return chunk_ids[there], scores[there]

    def scores(self, kb_id: int, text: str, chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        if not chunk_ids.size:
            return np.empty(0)
        found, scores = self._asked(kb_id, text, chunk_ids.size, chunk_ids)
        known = dict(zip(found.tolist(), scores.tolist(), strict=True))
        return np.array([known.get(chunk_id, 0.0) for chunk_id in chunk_ids.tolist()])

    def _asked(self, kb_id: int, text: str, k: int, only: NDArray[np.int64] | None) -> Found:
        collection = TextCollection(kb_id, self._language)
        ids = None if only is None else only.tolist()
        found = asked(self.name, lambda mirror: mirror.search_texts(collection, text, min(k, mirror.most), only=ids))
        if found is None and has_taken_in(self.name, collection):
            raise outdated(self.name, LOST)
        return found or NOTHING


def outdated(store: str, reason: str) -> ChannelUnavailable:
    """Says that a store's copy cannot be asked; `reason` is BEHIND or LOST."""
    return ChannelUnavailable(
        DegradationCode.STORE_BEHIND, Message(reason, store=str(KnowledgeBase.Store(store).label))
    )


def _named(
    mirror: Mirror,
    collection: VectorCollection,
    vector: NDArray[np.float32],
    k: int,
    pending: NDArray[np.int64],
    only: NDArray[np.int64] | None,
) -> NDArray[np.int64] | None:
    """At least k chunks that the server has up to date, nearest first; None: it finds fewer; empty: no such collection."""
    limit = max(LEAST_ASKED, k)
    while True:
        limit = min(limit, mirror.most)
        nearest = mirror.nearest(collection, vector, limit)
        if nearest is None:
            return NOTHING[0]
        current = np.setdiff1d(nearest, pending)
        if only is not None:
            current = np.intersect1d(current, only, assume_unique=True)
        if current.size >= k:
            return current
        if nearest.size < limit or limit == mirror.most:
            return None
        limit *= WIDER
