"""The stores that may hold copies beside PostgreSQL: what each must offer, which are set up here, and searches in them.

The server names candidates, and PostgreSQL has the last word on them: so deleted and disabled chunks never come back,
scores and ties are PostgreSQL's own, and what the server has not yet taken in is found all the same.
"""

import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, cast

import numpy as np
from django.conf import settings
from django.utils.module_loading import import_string
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import fetch_all
from kb.base.models import installation_id
from kb.index.filters import enabled_among
from kb.index.pgvector import MAX_EXACT, Found, PgVectorStore
from retrieval.errors import ChannelUnavailable, DegradationCode, Message, RetrievalError, gettext_noop, message_of
from retrieval.execution import CircuitBreaker

T = TypeVar("T")

# More vectors of one kind than any chunk has, so that a chunk's id and a vector's place in it make one number.
ORDINALS = 1 << 16

NO_KEYWORDS = "this store has no ranked keyword search: has_keywords says so"


class StoreError(RetrievalError):
    """A store's server cannot be reached, or refuses what it is asked."""


class StoreNotConfigured(StoreError):
    """A store that this installation has no address or no package for."""


@dataclass(frozen=True, slots=True)
class VectorCollection:
    """Vectors that are compared with each other: those of one knowledge base, model, kind and dimension."""

    kb_id: int
    model_id: str
    kind: str
    dimension: int

    @property
    def name(self) -> str:
        return f"{vectors_prefix(self.kb_id, self.model_id)}{self.kind}_{self.dimension}"


@dataclass(frozen=True, slots=True)
class TextCollection:
    """The texts of one knowledge base, cut into terms as suits their language."""

    kb_id: int
    language: str

    @property
    def name(self) -> str:
        return f"{kb_prefix(self.kb_id)}t_{self.language}"


@dataclass(frozen=True, slots=True)
class StoredVector:
    """A vector of a chunk; `ordinal` numbers a chunk's questions."""

    chunk_id: int
    ordinal: int
    vector: NDArray[np.float32]

    @property
    def key(self) -> int:
        return self.chunk_id * ORDINALS + self.ordinal


class Mirror(ABC):
    """A server with a collection for each knowledge base, model and kind, so that no search can reach another's.

    Every method raises StoreError, of the template `unreachable`, where the client raises one of its `faults`. The
    `url` is of a server, such as http://milvus:19530, or a path, of what only one process may open; `timeout_s` is for
    one call, and `most` says how many results one search may ask for.
    """

    store: ClassVar[str]
    has_keywords: ClassVar[bool] = False
    most: ClassVar[int]
    unreachable: ClassVar[str]
    faults: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        with self._calling():
            self._client = self._connect(token)

    @abstractmethod
    def ping(self) -> str:
        """Returns what answers, and its version."""

    def collections(self, kb_id: int) -> set[str]:
        with self._calling():
            return {name for name in self._names() if name.startswith(kb_prefix(kb_id))}

    def counts(self, kb_id: int) -> dict[str, int]:
        return {name: self._count(name) for name in self.collections(kb_id)}

    @abstractmethod
    def nearest(
        self, collection: VectorCollection, vector: NDArray[np.float32], limit: int
    ) -> NDArray[np.int64] | None:
        """Returns the chunks of the nearest vectors, best first, some several times; None: no such collection."""

    @abstractmethod
    def write_vectors(
        self, collection: VectorCollection, chunk_ids: Sequence[int], vectors: Sequence[StoredVector]
    ) -> None:
        """Makes the vectors those that the collection holds of the chunks."""

    def write_texts(self, collection: TextCollection, chunk_ids: Sequence[int], texts: Mapping[int, str]) -> None:
        """Makes the texts those that the collection holds of the chunks."""
        raise NotImplementedError(NO_KEYWORDS)

    def search_texts(
        self, collection: TextCollection, text: str, limit: int, *, only: Sequence[int] | None = None
    ) -> Found | None:
        """Returns chunks that hold any term of the text and their scores, best first; None: no such collection."""
        raise NotImplementedError(NO_KEYWORDS)

    @abstractmethod
    def delete_chunks(self, collection_name: str, chunk_ids: Sequence[int]) -> None:
        """Deletes all that a collection of any sort holds of the chunks."""

    def drop(self, kb_id: int) -> None:
        for name in self.collections(kb_id):
            with self._calling():
                self._drop(name)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except self.faults as error:
            # The templates name the address in two ways.
            raise StoreError(
                Message(self.unreachable, url=self._url, uri=self._url, error=message_of(error))
            ) from error

    @abstractmethod
    def _connect(self, token: str) -> Any: ...

    @abstractmethod
    def _names(self) -> Iterable[str]: ...

    @abstractmethod
    def _count(self, name: str) -> int: ...

    @abstractmethod
    def _drop(self, name: str) -> None: ...


def kb_prefix(kb_id: int) -> str:
    """Begins the names of all its collections; holds the installation's id, as several may share the server."""
    return f"zhiku_{installation_id().replace('-', '')[:16]}_{kb_id}_"


def vectors_prefix(kb_id: int, model_id: str) -> str:
    return f"{kb_prefix(kb_id)}v_{hashlib.sha256(model_id.encode()).hexdigest()[:12]}_"


def pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


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
    """A store's client, opened at its first use; a StoreError where it cannot be reached, or is not set up here.

    One store that hangs holds up neither another one, nor for longer than STORE_SECONDS who waits for it to be opened.
    """
    driver = DRIVERS[store]
    key = (store, getattr(settings, driver.address), getattr(settings, driver.token))
    held = _of_this_process()
    if key in held.mirrors:
        return held.mirrors[key]
    kind = _class(store, driver)
    if not held.opening[store].acquire(timeout=settings.STORE_SECONDS):
        message = gettext_noop("{store} did not answer to another search within {seconds:g} s")
        raise StoreError(Message(message, store=str(Store(store).label), seconds=settings.STORE_SECONDS))
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


def _class(store: str, driver: Driver) -> type[Mirror]:
    """Its class; the first time its package is imported."""
    if not getattr(settings, driver.address):
        message = gettext_noop(
            "{store} is not set up here: set {address}, or move the knowledge base back on its page Store"
        )
        raise StoreNotConfigured(Message(message, store=str(Store(store).label), address=driver.address))
    try:
        return cast("type[Mirror]", import_string(driver.path))
    except ImportError as error:
        message = gettext_noop("the package of {store} is missing ({error}): run `pip install 'zhiku[{extra}]'`")
        raise StoreNotConfigured(
            Message(message, store=str(Store(store).label), error=message_of(error), extra=driver.extra)
        ) from error


def _unavailable(reason: str) -> ChannelUnavailable:
    message = gettext_noop(
        "{reason}. PostgreSQL answered instead: start the server, or correct its address; `manage.py doctor` looks at it"
    )
    return ChannelUnavailable(DegradationCode.STORE_UNAVAILABLE, Message(message, reason=reason))


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
    rows, values = TEXTS, [collection.kb_id]
    if isinstance(collection, VectorCollection):
        rows, values = VECTORS, list(astuple(collection))
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
    "again within the hour, or its page Store does at once."
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
    return ChannelUnavailable(DegradationCode.STORE_BEHIND, Message(reason, store=str(Store(store).label)))


def _named(
    mirror: Mirror,
    collection: VectorCollection,
    vector: NDArray[np.float32],
    k: int,
    pending: NDArray[np.int64],
    only: NDArray[np.int64] | None,
) -> NDArray[np.int64] | None:
    """At least k chunks that the server has up to date, nearest first; None: it finds fewer; empty: no such collection."""
    limit = min(max(LEAST_ASKED, k), mirror.most)
    while (nearest := mirror.nearest(collection, vector, limit)) is not None:
        current = np.setdiff1d(nearest, pending)
        if only is not None:
            current = np.intersect1d(current, only, assume_unique=True)
        if current.size >= k:
            return current
        if nearest.size < limit or limit == mirror.most:
            return None
        limit = min(WIDER * limit, mirror.most)
    return NOTHING[0]
