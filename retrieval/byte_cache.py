"""Bytes by key: memory of this process, bounded, in front of a tier that processes share. Entries end with their time."""

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from retrieval.cache import Counts, Observer, Recent, TierStats

MEMORY = "memory"
SHARED = "shared"
ENTRY_OVERHEAD_BYTES = 250  # the dictionary's and the objects' own

_EXPIRY = struct.Struct("<d")


class SharedBytes(Protocol):
    """A tier that processes share. One that cannot be reached, or holds garbage, has nothing; it never raises."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes, ttl_s: float) -> bool:
        """Returns whether it has the value now."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached value.

    Attributes:
        expires: in seconds since the epoch, so that processes agree.
        tier: where it was found.
    """

    value: bytes
    expires: float
    tier: str = MEMORY

    @property
    def nbytes(self) -> int:
        return len(self.value) + ENTRY_OVERHEAD_BYTES


class ByteCache:
    """Looks in memory, then in the shared tier; what that one answers goes up into memory, for the time it has left.

    Args:
        memory_bytes: bound of the memory.
        shared: the tier behind it.
        ttl_s: how long an entry lives, in seconds, in both tiers together.
        clock: seconds since the epoch.
        observe: told of every count, for metrics that outlive this object.
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
        self._memory: Recent[bytes, Entry] = Recent(memory_bytes)
        self._shared = shared
        self._ttl_s = ttl_s
        self._clock = clock
        self._counts = {tier: Counts(tier, observe) for tier in (MEMORY, SHARED)}

    def held(self, key: bytes) -> Entry | None:
        """What this process holds."""
        return self._counted(MEMORY, self._in_memory(key))

    def get(self, key: bytes) -> Entry | None:
        """What this process or another one holds."""
        if held := self.held(key):
            return held
        found = self._counted(SHARED, self._in_shared(key))
        if found is not None:
            self._keep(key, found)
        return found

    def peek(self, key: bytes) -> Entry | None:
        """As `get`, for one who only looks: nothing is counted, and nothing goes up into memory."""
        return self._in_memory(key) or self._in_shared(key)

    def keep(self, key: bytes, value: bytes, most_s: float = inf) -> None:
        """Holds the value in this process, at most for so many seconds."""
        self._keep(key, Entry(value, self._clock() + min(self._ttl_s, most_s)))

    def publish(self, key: bytes, value: bytes, most_s: float = inf) -> None:
        """Offers the value to the other processes, at most for so many seconds."""
        ttl_s = min(self._ttl_s, most_s)
        if self._shared.put(key, _EXPIRY.pack(self._clock() + ttl_s) + value, ttl_s):
            self._counts[SHARED].add(stores=1)

    def stats(self) -> dict[str, TierStats]:
        """Counters by tier, nearest first; `nbytes` is the memory in use, and 0 of the shared tier."""
        stats = {tier: counts.stats for tier, counts in self._counts.items()}
        return stats | {MEMORY: replace(stats[MEMORY], nbytes=self._memory.nbytes)}

    def _in_memory(self, key: bytes) -> Entry | None:
        entry = self._memory.get(key)
        if entry is not None and entry.expires <= self._clock():
            self._memory.drop(key)
            return None
        return entry

    def _in_shared(self, key: bytes) -> Entry | None:
        payload = self._shared.get(key)
        if payload is None or len(payload) < _EXPIRY.size:
            return None
        expires: float = _EXPIRY.unpack_from(payload)[0]
        return Entry(payload[_EXPIRY.size :], expires, SHARED) if expires > self._clock() else None

    def _keep(self, key: bytes, entry: Entry) -> None:
        if self._memory.put(key, replace(entry, tier=MEMORY), entry.nbytes):
            self._counts[MEMORY].add(stores=1)

    def _counted(self, tier: str, found: Entry | None) -> Entry | None:
        self._counts[tier].add(**{"misses" if found is None else "hits": 1})
        return found
