"""Whole responses of searches that are asked again and again.

The versions of the knowledge bases stand in the key, so a change of a document makes the entries before it unreachable
in every process at once, whatever happens to the tiers; the time to live only ends what no version tells of.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from retrieval.byte_cache import ByteCache, SharedBytes
from retrieval.cache import Observer, TierStats

FORMAT = 2
"""Of keys and responses: raise it when either changes, and no entry of an older release is found."""


@dataclass(frozen=True, slots=True)
class ScopeVersion:
    """A knowledge base as it was when the search began.

    Attributes:
        version: moves with its chunks and postings.
        content_version: moves with everything else that can change a response.
    """

    kb_id: int
    version: int
    content_version: int


@dataclass(frozen=True, slots=True)
class HotQueryKey:
    """What a response depends on.

    Attributes:
        query: as asked.
        scope: in the order that breaks ties.
        fingerprint: of the resolved configuration and of the rest of the request.
        language: in which the response tells of degradations.
    """

    query: str
    scope: tuple[ScopeVersion, ...]
    fingerprint: str
    language: str = ""

    def digest(self) -> bytes:
        """SHA-256, 32 bytes; keys that differ have different ones."""
        scope = [(each.kb_id, each.version, each.content_version) for each in self.scope]
        parts = json.dumps([FORMAT, self.query, scope, self.fingerprint, self.language])
        return hashlib.sha256(parts.encode()).digest()


class HotQueryCache:
    """Responses as bytes, in the memory of this process and in a tier that processes share. Thread-safe.

    Args:
        memory_bytes: bound of the memory.
        shared: the tier behind it.
        ttl_s: how long a response is served, in seconds.
        clock: seconds since the epoch.
        observe: told of every count.
    """

    def __init__(
        self,
        memory_bytes: int,
        shared: SharedBytes,
        ttl_s: float,
        *,
        clock: Callable[[], float] = time.time,
        observe: Observer = lambda _tier, _field, _amount: None,
    ) -> None:
        self._bytes = ByteCache(memory_bytes, shared, ttl_s, clock=clock, observe=observe)

    def get(self, key: HotQueryKey) -> bytes | None:
        entry = self._bytes.get(key.digest())
        return None if entry is None else entry.value

    def tier_of(self, key: HotQueryKey) -> str | None:
        """Where a response is kept, for one who only looks: nothing is counted or moved."""
        entry = self._bytes.peek(key.digest())
        return None if entry is None else entry.tier

    def put(self, key: HotQueryKey, response: bytes, most_s: float = inf) -> None:
        """Keeps a response, at most for so many seconds."""
        digest = key.digest()
        self._bytes.keep(digest, response, most_s)
        self._bytes.publish(digest, response, most_s)

    def stats(self) -> dict[str, TierStats]:
        """Counters of this process by tier, nearest first."""
        return self._bytes.stats()
