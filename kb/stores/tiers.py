"""The shared and the persistent tier of the BM25 cache. Both hold sealed bytes and never look inside."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.cache import caches
from django.db import DatabaseError, connection
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError

from kb.models import BM25Index
from kb.stores.installation import installation_id
from retrieval.cache import CacheKey, TierUnavailable


@contextmanager
def _as_unavailable(*faults: type[Exception]) -> Iterator[None]:
    try:
        yield
    except faults as error:
        raise TierUnavailable(str(error)) from error


class RedisTier:
    """One entry a knowledge base: a newer one removes the one before it. A pointer tells which key that is."""

    name = "redis"

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    @property
    def _cache(self) -> Any:
        return caches["bm25"]

    def load(self, key: CacheKey) -> bytes | None:
        with _as_unavailable(ConnectionInterrupted, RedisError):
            payload: bytes | None = self._cache.get(str(key))
            return payload

    def store(self, key: CacheKey, payload: bytes) -> None:
        if len(payload) > self._max_bytes:
            return
        with _as_unavailable(ConnectionInterrupted, RedisError):
            self.drop(key.kb_id, keep=str(key))
            self._cache.set_many({str(key): payload, self._pointer(key.kb_id): str(key).encode()})

    def drop(self, kb_id: int, *, keep: str | None = None) -> None:
        with _as_unavailable(ConnectionInterrupted, RedisError):
            pointer = self._pointer(kb_id)
            entry: bytes | None = self._cache.get(pointer)
            name = None if entry is None else entry.decode(errors="replace")
            if name is not None and name != keep:
                self._cache.delete_many([pointer, name])

    @staticmethod
    def _pointer(kb_id: int) -> str:
        return f"bm25-entry:{installation_id()}:{kb_id}"


class DatabaseTier:
    """The table bm25_indexes: one row a knowledge base, which only a newer version replaces."""

    name = "database"

    def load(self, key: CacheKey) -> bytes | None:
        with _as_unavailable(DatabaseError):
            row = (
                BM25Index.objects.filter(
                    knowledge_base_id=key.kb_id,
                    version=key.version,
                    tokenizer_id=key.tokenizer_id,
                    format=key.fingerprint,
                )
                .values_list("payload", flat=True)
                .first()
            )
        return None if row is None else bytes(row)

    def store(self, key: CacheKey, payload: bytes) -> None:
        with _as_unavailable(DatabaseError), connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO bm25_indexes (knowledge_base_id, version, tokenizer_id, format, payload, chunk_count, built_at)
                SELECT v.knowledge_base_id, %(version)s, %(tokenizer)s, %(format)s, %(payload)s,
                       (SELECT count(*) FROM kb_chunk c WHERE c.knowledge_base_id = v.knowledge_base_id AND c.enabled),
                       now()
                FROM kb_versions v WHERE v.knowledge_base_id = %(kb)s
                ON CONFLICT (knowledge_base_id) DO UPDATE SET
                    version = excluded.version, tokenizer_id = excluded.tokenizer_id, format = excluded.format,
                    payload = excluded.payload, chunk_count = excluded.chunk_count, built_at = excluded.built_at
                WHERE bm25_indexes.version <= excluded.version
                """,
                {
                    "kb": key.kb_id,
                    "version": key.version,
                    "tokenizer": key.tokenizer_id,
                    "format": key.fingerprint,
                    "payload": payload,
                },
            )

    def drop(self, kb_id: int) -> None:
        with _as_unavailable(DatabaseError):
            BM25Index.objects.filter(knowledge_base_id=kb_id).delete()
