"""The BM25 index of a knowledge base, through process memory, Redis and PostgreSQL."""

import hashlib
from collections.abc import Iterator
from functools import lru_cache

from django.conf import settings
from django.db import connection

from kb.stores.installation import installation_id
from kb.stores.tiers import DatabaseTier, RedisTier
from retrieval.bm25 import FORMAT, OkapiIndex, okapi_parameters
from retrieval.cache import CacheKey, Found, MemoryTier, TieredCache
from retrieval.payload import PayloadCodec

POSTINGS_WITH_VERSION = """
SELECT v.version, p.chunk_id, p.terms, p.frequencies, p.length
FROM kb_versions v
LEFT JOIN (kb_chunkpostings p JOIN kb_chunk c ON c.id = p.chunk_id AND c.enabled)
    ON p.knowledge_base_id = v.knowledge_base_id AND p.tokenizer_id = %s
WHERE v.knowledge_base_id = %s
"""


@lru_cache(maxsize=1)
def _shared_cache() -> TieredCache[OkapiIndex]:
    """One cache a process."""
    return TieredCache(
        memory=MemoryTier(settings.BM25_MEMORY_BYTES),
        tiers=(RedisTier(settings.BM25_REDIS_MAX_BYTES), DatabaseTier()),
        codec=PayloadCodec(settings.SECRET_KEY.encode()),
        encode=OkapiIndex.state,
        decode=OkapiIndex.from_state,
    )


@lru_cache(maxsize=1)
def _fingerprint() -> str:
    """What, besides the chunks and the tokenizer, the content of an index depends on."""
    return hashlib.sha256(f"{FORMAT}:{okapi_parameters()}".encode()).hexdigest()[:16]


class BM25Store:
    """Indexes by knowledge base and version: built at the first search after a change, then found in the tiers.

    The version moves with every committed change and stands in every key, so an entry is either right or out of
    reach, in every process, whatever happens to Redis.
    """

    def __init__(self) -> None:
        self._cache = _shared_cache()

    def load(self, kb_id: int, version: int, tokenizer_id: str) -> Found[OkapiIndex]:
        """The index of a version, or of a newer one where that is what the database holds by now.

        Args:
            kb_id: the knowledge base, which the caller has checked that it may read.
            version: as read together with that check.
            tokenizer_id: whose postings to index.

        Returns:
            The index and the tier that answered: process, redis, database, or build.
        """
        found = self._cache.get(self._key(kb_id, version, tokenizer_id))
        return found or self._build(kb_id, tokenizer_id)

    def clear(self, kb_id: int) -> None:
        """Removes the knowledge base's entries from all three tiers, to free their memory."""
        self._cache.drop(kb_id)

    def invalidate(self, kb_id: int) -> None:
        """Clears all three tiers and takes a new version, so that every process builds anew."""
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE kb_versions SET version = nextval('kb_version_seq') WHERE knowledge_base_id = %s", [kb_id]
            )
        self.clear(kb_id)

    def _build(self, kb_id: int, tokenizer_id: str) -> Found[OkapiIndex]:
        version, index = self._read_and_index(kb_id, tokenizer_id)
        # What an open transaction sees may never be committed: it is used here and published nowhere.
        if version is not None and not connection.in_atomic_block:
            self._cache.put(self._key(kb_id, version, tokenizer_id), index)
        return Found(index, "build")

    @staticmethod
    def _read_and_index(kb_id: int, tokenizer_id: str) -> tuple[int | None, OkapiIndex]:
        """Reads version and postings in one statement, so the index holds exactly what its version says."""
        version: int | None = None

        def rows() -> Iterator[tuple[int, bytes, bytes, int]]:
            nonlocal version
            with connection.cursor() as cursor:
                cursor.execute(POSTINGS_WITH_VERSION, [tokenizer_id, kb_id])
                while batch := cursor.fetchmany(5_000):
                    version = batch[0][0]
                    for _, chunk_id, terms, frequencies, length in batch:
                        if chunk_id is not None:
                            yield chunk_id, bytes(terms), bytes(frequencies), length

        index = OkapiIndex.build(rows())
        return version, index

    @staticmethod
    def _key(kb_id: int, version: int, tokenizer_id: str) -> CacheKey:
        return CacheKey(installation_id(), kb_id, version, tokenizer_id, _fingerprint())
