"""The shared and the persistent tier of the BM25 cache. Both hold sealed bytes and never look inside."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.cache import caches
from django.db import DatabaseError
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError, ResponseError

from kb.base.db.cursors import untimed_cursor
from kb.base.db.installation import installation_id
from kb.index.models.index import BM25Index
from retrieval.cache import CacheKey, TierUnavailable

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
# Whoever deletes the knowledge base locks it first and this table's row last, so taking them the other way round would
# be a deadlock.
KEEP_KNOWLEDGE_BASE = "SELECT 1 FROM kb_knowledgebase WHERE id = %(kb)s FOR KEY SHARE"
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

    @property
    def _cache(self) -> Any:
        return caches["bm25"]

    def load(self, key: CacheKey) -> tuple[CacheKey, bytes] | None:
        with _as_unavailable(ConnectionInterrupted, RedisError):
            held = self._held(key.kb_id)
            if held is None or not held.serves(key):
                return None
            payload: bytes | None = self._cache.get(str(held))
            return None if payload is None else (held, payload)

    def store(self, key: CacheKey, payload: bytes) -> bool:
        if len(payload) > self._max_bytes:
            return False
        with _as_unavailable(ConnectionInterrupted, RedisError):
            held = self._held(key.kb_id)
            if held is not None and held.version > key.version:
                return False
            if held != key:
                self.drop(key.kb_id)
            self._cache.set_many({str(key): payload, self._pointer(key.kb_id): str(key).encode()})
            return True

    def drop(self, kb_id: int) -> None:
        with _as_unavailable(ConnectionInterrupted, RedisError):
            held = self._held(kb_id)
            self._cache.delete_many([self._pointer(kb_id), *([] if held is None else [str(held)])])

    def size(self, kb_id: int) -> int:
        """Bytes of the knowledge base's payload; 0 where there is none."""
        with _as_unavailable(ConnectionInterrupted, RedisError):
            held = self._held(kb_id)
            if held is None:
                return 0
            client = self._cache.client.get_client(write=False)
            return int(client.strlen(self._cache.client.make_key(str(held))))

    def _held(self, kb_id: int) -> CacheKey | None:
        """What the pointer says; nothing where it holds garbage, which goes, so that it is met and told of once."""
        try:
            pointer: bytes | None = self._cache.get(self._pointer(kb_id))
            return None if pointer is None else CacheKey.parse(pointer.decode())
        except (ValueError, ResponseError):  # the latter for a key of another type
            logger.warning("the pointer to the keyword index of knowledge base %s holds garbage, removing it", kb_id)
            self._cache.delete(self._pointer(kb_id))
            return None

    @staticmethod
    def _pointer(kb_id: int) -> str:
        return f"bm25-entry:{installation_id()}:{kb_id}"


class DatabaseTier:
    """The table bm25_indexes: one row a knowledge base, which only a newer version replaces.

    What is stored here is the base that every process can read, so the change log starts anew behind it.
    """

    name = "database"

    def load(self, key: CacheKey) -> tuple[CacheKey, bytes] | None:
        with _as_unavailable(DatabaseError), untimed_cursor() as cursor:
            row = cursor.execute(FIND, self._columns(key), binary=True).fetchone()
        return None if row is None else (key.at(row[0]), row[1])

    def store(self, key: CacheKey, payload: bytes) -> bool:
        columns = self._columns(key)
        with _as_unavailable(DatabaseError), untimed_cursor() as cursor:
            if cursor.execute(KEEP_KNOWLEDGE_BASE, columns).fetchone() is None:
                return False
            stored = cursor.execute(UPSERT, columns | {"payload": payload}).rowcount > 0
            if stored:
                cursor.execute(TRIM, columns)
        return stored

    def drop(self, kb_id: int) -> None:
        with _as_unavailable(DatabaseError):
            BM25Index.objects.filter(knowledge_base_id=kb_id).delete()

    @staticmethod
    def _columns(key: CacheKey) -> dict[str, int | str | bytes]:
        return {
            "kb": key.kb_id,
            "version": key.version,
            "tokenizer": key.tokenizer_id,
            "format": key.fingerprint,
        }
