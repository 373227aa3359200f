"""The BM25 index of a knowledge base, through process memory, Redis and PostgreSQL, or built from stored postings."""

import hashlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Self

from django.conf import settings
from django.core.cache import caches
from django.db import DatabaseError, connection, connections, transaction
from django.utils.translation import gettext_noop
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError, ResponseError

from kb.base.db.transactions import ConnectionReturningExecutor, Purpose, try_lock, untimed_cursor
from kb.base.metrics import BUILD_SECONDS, observe_cache
from kb.base.models import installation_id
from kb.base.shapes import as_values
from kb.index.fulltext import build_index, changes_since, log_start
from kb.index.models import BM25Index, ChunkChange
from retrieval.bm25 import FORMAT, OkapiIndex, okapi_parameters
from retrieval.cache import CacheKey, Found, TieredCache, TierUnavailable
from retrieval.channels import LoadedIndex
from retrieval.character_counts import CharacterCounts
from retrieval.errors import ChannelUnavailable, DegradationCode, Message
from retrieval.execution import Land, SingleFlight
from retrieval.payload import PayloadCodec
from retrieval.questions import QuestionIndex

logger = logging.getLogger(__name__)


@contextmanager
def _as_unavailable(*faults: type[Exception]) -> Iterator[None]:
    try:
        yield
    except faults as error:
        raise TierUnavailable(str(error)) from error


UPSERT = """
INSERT INTO bm25_indexes
    (knowledge_base_id, version, tokenizer_id, format, payload, chunk_count, built_at)
SELECT v.knowledge_base_id, %(version)s, %(tokenizer)s, %(format)s, %(payload)s,
       (SELECT count(*) FROM kb_chunk c WHERE c.knowledge_base_id = v.knowledge_base_id AND c.enabled), now()
FROM kb_versions v WHERE v.knowledge_base_id = %(kb)s
ON CONFLICT (knowledge_base_id) DO UPDATE SET
    version = excluded.version, tokenizer_id = excluded.tokenizer_id, format = excluded.format,
    payload = excluded.payload, chunk_count = excluded.chunk_count, built_at = excluded.built_at
WHERE bm25_indexes.version <= excluded.version
"""
FIND = """
SELECT version, payload FROM bm25_indexes
WHERE knowledge_base_id = %(kb)s AND version >= %(version)s AND tokenizer_id = %(tokenizer)s AND format = %(format)s
"""
TRIM = """
WITH trimmed AS (DELETE FROM kb_chunkchange WHERE knowledge_base_id = %(kb)s AND version <= %(version)s)
INSERT INTO kb_chunkchange (knowledge_base_id, version, operation) VALUES (%(kb)s, %(version)s, 'reset')
"""


class RedisTier:
    """One entry a knowledge base, found through a pointer that holds its key."""

    name = "redis"

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    @_as_unavailable(ConnectionInterrupted, RedisError)
    def load(self, key: CacheKey) -> tuple[CacheKey, bytes] | None:
        held = self._held(key.kb_id)
        if held is None or not held.serves(key):
            return None
        payload: bytes | None = caches["bm25"].get(str(held))
        return None if payload is None else (held, payload)

    @_as_unavailable(ConnectionInterrupted, RedisError)
    def store(self, key: CacheKey, payload: bytes) -> bool:
        held = self._held(key.kb_id)
        if held is not None and held.version > key.version:
            return False
        fits = len(payload) <= self._max_bytes
        if held != key or not fits:
            self.drop(key.kb_id)  # else an older one would go on to answer where this does not fit
        if fits:
            caches["bm25"].set_many({str(key): payload, self._pointer(key.kb_id): str(key).encode()})
        return fits

    @_as_unavailable(ConnectionInterrupted, RedisError)
    def drop(self, kb_id: int) -> None:
        held = self._held(kb_id)
        caches["bm25"].delete_many([self._pointer(kb_id), *([] if held is None else [str(held)])])

    @_as_unavailable(ConnectionInterrupted, RedisError)
    def size(self, kb_id: int) -> int:
        cache: Any = caches["bm25"]
        held = self._held(kb_id)
        return 0 if held is None else int(cache.client.get_client(write=False).strlen(cache.client.make_key(str(held))))

    def _held(self, kb_id: int) -> CacheKey | None:
        """What the pointer says; nothing where it holds garbage, which goes, so that it is met and logged once."""
        try:
            pointer: bytes | None = caches["bm25"].get(self._pointer(kb_id))
            return None if pointer is None else CacheKey.parse(pointer.decode())
        except (ValueError, ResponseError):  # the latter for a key of another type
            logger.warning("the pointer to the keyword index of knowledge base %s holds garbage, removing it", kb_id)
            caches["bm25"].delete(self._pointer(kb_id))
            return None

    @staticmethod
    def _pointer(kb_id: int) -> str:
        return f"bm25-entry:{installation_id()}:{kb_id}"


class DatabaseTier:
    """The table bm25_indexes: one row a knowledge base, which no older version replaces.

    What is stored here is the base that every process can read, so the change log restarts behind it.
    """

    name = "database"

    @_as_unavailable(DatabaseError)
    def load(self, key: CacheKey) -> tuple[CacheKey, bytes] | None:
        with untimed_cursor() as cursor:
            row = cursor.execute(FIND, self._columns(key), binary=True).fetchone()
        return None if row is None else (key.at(row[0]), row[1])

    @_as_unavailable(DatabaseError)
    def store(self, key: CacheKey, payload: bytes) -> bool:
        columns = self._columns(key)
        with untimed_cursor() as cursor:
            # Whoever deletes the knowledge base locks it first and this table's row last: the other way round is a deadlock.
            held = cursor.execute("SELECT 1 FROM kb_knowledgebase WHERE id = %(kb)s FOR KEY SHARE", columns).fetchone()
            if held is None:
                return False
            stored = cursor.execute(UPSERT, columns | {"payload": payload}).rowcount > 0
            if stored:
                cursor.execute(TRIM, columns)
        return stored

    @_as_unavailable(DatabaseError)
    def drop(self, kb_id: int) -> None:
        BM25Index.objects.filter(knowledge_base_id=kb_id).delete()

    @staticmethod
    def _columns(key: CacheKey) -> dict[str, int | str | bytes]:
        return {"kb": key.kb_id, "version": key.version, "tokenizer": key.tokenizer_id, "format": key.fingerprint}


STILL_BUILT = gettext_noop(
    "The keyword index is still being built: search again in a moment, or allow the search more time."
)
LOCK_PATIENCE_SECONDS = 60
MIN_CHANGES_TO_BUILD = 1_000
CHANGED_SHARE_TO_BUILD = 0.1


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """An index with the version of the base that it stands on, and what building that took, where this process did it."""

    index: OkapiIndex
    base_version: int
    # None: stored by a version of this package that did not count them, or did not index these.
    characters: CharacterCounts | None = None
    questions: QuestionIndex | None = None
    build_ms: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.characters is not None and self.questions is not None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.index, self.characters, self.questions) if part is not None)

    def state(self) -> dict[str, Any]:
        """The base in builtin types."""
        parts = {"characters": self.characters, "questions": self.questions}
        return self.index.state() | {name: part.state() for name, part in parts.items() if part is not None}

    @classmethod
    def from_state(cls, state: object, version: int) -> Self:
        """Reads what `state` wrote; raises ValueError for another format, or what is no state at all."""
        index = OkapiIndex.from_state(state)
        parts = state if isinstance(state, Mapping) else {}
        return cls(
            index,
            version,
            CharacterCounts.from_state(parts["characters"]) if "characters" in parts else None,
            QuestionIndex.from_state(parts["questions"]) if "questions" in parts else None,
        )


Answer = Found[StoredIndex]

# lru_cache alone would let first searches at the same moment each make a cache and flights of their own.
_first_use = threading.Lock()


@lru_cache(maxsize=1)
def _shared_cache() -> TieredCache[StoredIndex]:
    return TieredCache(
        memory_bytes=settings.BM25_MEMORY_BYTES,
        tiers=(RedisTier(settings.BM25_REDIS_MAX_BYTES), DatabaseTier()),
        codec=PayloadCodec(settings.SECRET_KEY.encode()),
        encode=StoredIndex.state,
        decode=lambda key, state: StoredIndex.from_state(state, key.version),
        observe=observe_cache,
    )


@lru_cache(maxsize=1)
def _shared_flights() -> SingleFlight[Answer]:
    # Some of the eight may wait for another process.
    return SingleFlight(ConnectionReturningExecutor(max_workers=8, thread_name_prefix="keyword-index"))


@lru_cache(maxsize=1)
def index_fingerprint() -> str:
    """What, besides the chunks and the tokenizer, the content of an index depends on."""
    return hashlib.sha256(f"{FORMAT}:{okapi_parameters()}".encode()).hexdigest()[:16]


def most_changes(chunk_count: int) -> int:
    """How many changed chunks are read over a base of so many chunks; with more of them it is rebuilt."""
    return max(MIN_CHANGES_TO_BUILD, int(chunk_count * CHANGED_SHARE_TO_BUILD))


class BM25Store:
    """Indexes by knowledge base and version.

    The version moves with every committed change and stands in every key, so an entry answers for exactly what its
    version says, in every process, whatever happens to Redis. An entry of the past is a base: the chunks that have
    changed since are read from the change log and laid over it. Only where there is no base, or one that an older
    version of this package stored without all of its parts, is an index rebuilt, once, however many ask for it.
    """

    def __init__(self) -> None:
        with _first_use:
            self.cache = _shared_cache()
            self._flights = _shared_flights()

    def request(self, kb_id: int, version: int, tokenizer_id: str) -> "RequestedIndex":
        """The index of a version, read when the caller's right was checked, or of a newer one that the database holds by then.

        Loading or building it starts now, off this thread; a thread with an open transaction may see what nobody else
        does, so there the work waits for `RequestedIndex.wait`, is done in place and published nowhere.
        """
        return RequestedIndex(self, self._key(kb_id, version, tokenizer_id))

    def start(self, key: CacheKey) -> Future[Answer]:
        return self._flights.join(key.lineage, partial(self._obtain, key))

    def expire(self, kb_id: int) -> None:
        """Frees, in all three tiers, a base from which the change log no longer leads to the present."""
        if BM25Index.objects.filter(knowledge_base_id=kb_id, version__lt=log_start(kb_id)).exists():
            self.cache.drop(kb_id)

    def invalidate(self, kb_id: int) -> None:
        """Clears all three tiers, takes a new version and ends the change log, so that every process rebuilds."""
        with transaction.atomic(), connection.cursor() as cursor:
            # First, as every writer and whoever deletes it does.
            cursor.execute("SELECT 1 FROM kb_knowledgebase WHERE id = %s FOR KEY SHARE", [kb_id])
            cursor.execute(
                "UPDATE kb_versions SET version = nextval('kb_version_seq') WHERE knowledge_base_id = %s RETURNING version",
                [kb_id],
            )
            for (version,) in cursor.fetchall():
                ChunkChange.objects.filter(knowledge_base_id=kb_id).delete()
                reset = ChunkChange.Operation.RESET
                ChunkChange.objects.create(knowledge_base_id=kb_id, version=version, operation=reset)
        self.cache.drop(kb_id)

    def merge(self, kb_id: int, tokenizer_id: str) -> bool:
        """Builds a new base, so that later searches read fewer changes; False where another process is building one."""
        with try_lock(Purpose.BUILD_INDEX, kb_id) as taken:
            if taken:
                self._publish(self._build(self._key(kb_id, 0, tokenizer_id)))
        return taken

    @staticmethod
    def _key(kb_id: int, version: int, tokenizer_id: str) -> CacheKey:
        return CacheKey(installation_id(), kb_id, version, tokenizer_id, index_fingerprint())

    # -- In a builder's thread -------------------------------------------------------------------------------------------
    def _obtain(self, wanted: CacheKey, land: Land[Answer]) -> None:
        """Lands the newest available base with the changes since, or builds one unless another process does."""
        started = time.monotonic()
        useless: set[int] = set()
        while (found := self._land_from_base(wanted, land, useless)) is None:
            patient = time.monotonic() - started < LOCK_PATIENCE_SECONDS
            with try_lock(Purpose.BUILD_INDEX, wanted.kb_id) as taken:
                if taken or not patient:
                    # Whoever had the lock before may have published meanwhile.
                    if self._land_from_base(wanted, land, useless) is None:
                        built = self._build(wanted)
                        self._land(built, land)
                        self._publish(built)
                    return
            connections.close_all()  # no connection is held while another process builds
            time.sleep(0.1)
        if not found.value.is_complete:
            self._complete(wanted)

    def _complete(self, wanted: CacheKey) -> None:
        """Builds what an older version of this package did not store, while searches use what it did.

        Where another process does so, or a write comes in between, the next search tries again.
        """
        with try_lock(Purpose.BUILD_INDEX, wanted.kb_id) as taken:
            if not taken:
                return
            # Whoever had the lock before may have published meanwhile.
            base = self.cache.stored(wanted.at(log_start(wanted.kb_id)))
            answer = self._updated(base) if base is not None and base.value.is_complete else None
            if answer is not None:
                self.cache.keep(answer.key, answer.value)
                return
            built = self._build(wanted)
            answer = self._updated(built) or built  # as new as what searches have used meanwhile, else it is not kept
            self.cache.keep(answer.key, answer.value)
            self._publish(built)

    def _land_from_base(self, wanted: CacheKey, land: Land[Answer], useless: set[int]) -> Answer | None:
        """Tries this process, then the other tiers; versions that cannot be brought up to date are not loaded again."""
        oldest = max(log_start(wanted.kb_id), *(version + 1 for version in useless), 0)
        for find in (self.cache.held, self.cache.stored):
            base = find(wanted.at(oldest))
            if base is None or base.value.base_version < oldest:
                continue
            answer = self._updated(base)
            if answer is not None:
                self._land(answer, land)
                return answer
            useless.add(base.value.base_version)
        return None

    def _land(self, answer: Answer, land: Land[Answer]) -> None:
        self.cache.keep(answer.key, answer.value)
        land(answer)

    def _publish(self, built: Answer) -> None:
        """Offers a base to all, unless its knowledge base was deleted or the change log has ended behind it meanwhile."""
        if built.key.version >= max(1, log_start(built.key.kb_id)):
            self.cache.publish(built.key, built.value)

    # -- In any thread ---------------------------------------------------------------------------------------------------
    def _updated(self, found: Answer) -> Answer | None:
        """An older index brought up to date; None where the change log does not lead from it to the present."""
        base, key = found.value, found.key
        limit = most_changes(base.index.base.chunk_count)
        changes = changes_since(key.kb_id, key.tokenizer_id, base.base_version, limit=limit)
        if changes is None:
            return None
        index, characters, questions = base.index.base, base.characters, base.questions and base.questions.base
        if changes.chunk_ids.size:
            self.cache.count(updates=1)
            index = base.index.with_changes(changes.chunk_ids, changes.rows)
            characters = characters and characters.with_added(changes.texts)
            questions = questions and questions.with_changes(changes.chunk_ids, changes.questions)
        updated = StoredIndex(index, base.base_version, characters, questions, base.build_ms)
        return Found(updated, key.at(changes.version), found.tier)

    def _build(self, wanted: CacheKey) -> Answer:
        started = time.perf_counter()
        built = build_index(wanted.kb_id, wanted.tokenizer_id)
        seconds = time.perf_counter() - started
        self.cache.count(builds=1)
        BUILD_SECONDS.observe(seconds)
        stored = StoredIndex(built.index, built.version, built.characters, built.questions, seconds * 1_000)
        return Found(stored, wanted.at(built.version), "build")

    def in_transaction(self, key: CacheKey) -> Answer:
        """For a thread with an open transaction, whose own changes count."""
        base = self.cache.held(key.at(log_start(key.kb_id)))
        return (base and self._updated(base)) or self._build(key)


class RequestedIndex:
    def __init__(self, store: BM25Store, key: CacheKey) -> None:
        self._store = store
        self._key = key
        self._in_transaction = connection.in_atomic_block
        self._answer = store.cache.live(key)
        is_complete = self._answer is not None and self._answer.value.is_complete
        self._flight = None if is_complete or self._in_transaction else store.start(key)

    def wait(self, deadline: float) -> LoadedIndex:
        """The index, at the latest at `deadline` (of `time.monotonic`), else ChannelUnavailable.

        ScopeOutdated where the knowledge base searches with another tokenizer by now.
        """
        started = time.monotonic()
        try:
            answer = self._answer or (
                self._store.in_transaction(self._key) if self._in_transaction else self._landed(deadline)
            )
        except TimeoutError:
            raise ChannelUnavailable(DegradationCode.BM25_INDEX_BUILDING, Message(STILL_BUILT)) from None
        self._answer, stored = answer, answer.value
        detail = {
            "cache_tier": answer.tier,
            "version": answer.key.version,
            "base_version": stored.base_version,
            "changed_chunks": stored.index.changed_count,
            "indexed_chunks": stored.index.chunk_count,
            "index_bytes": stored.nbytes,
            "build_ms": stored.build_ms and round(stored.build_ms, 3),
            "tiers": as_values(self._store.cache.stats()),
            "waited_ms": round((time.monotonic() - started) * 1_000, 3),
        }
        return LoadedIndex(stored.index, detail, stored.characters, stored.questions)

    def _landed(self, deadline: float) -> Answer:
        flight = self._flight
        while flight is not None:
            if not (flight.done() or connection.in_atomic_block):
                connections.close_all()  # this thread holds none while it waits
            answer: Answer = flight.result(timeout=max(0.0, deadline - time.monotonic()))
            if not answer.key.version or answer.key.serves(self._key):  # version 0: the knowledge base was deleted
                break
            # That flight had started before this version was committed.
            if newer := self._store.cache.live(self._key):
                return newer
            flight = self._store.start(self._key)
        return answer
