"""Bytes by key: memory of this process, bounded, in front of a tier that processes share. Entries end with their time."""

import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from retrieval.cache import Observer, TierStats

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


class RecentBytes:
    """The most recently used entries of this process, bounded by the sum of their bytes. Thread-safe."""

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def get(self, key: bytes) -> Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry.expires <= self._clock():
                self._remove(key)
                return None
            self._entries.move_to_end(key)
            return entry

    def put(self, key: bytes, entry: Entry) -> bool:
        """Keeps the entry and drops the least recently used ones; False if it is larger than all of the memory."""
        with self._lock:
            self._remove(key)
            if entry.nbytes > self._max_bytes:
                return False
            self._entries[key] = entry
            self._nbytes += entry.nbytes
            while self._nbytes > self._max_bytes:
                self._remove(next(iter(self._entries)))
            return True

    def _remove(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._nbytes -= entry.nbytes


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
        self._memory = RecentBytes(memory_bytes, clock)
        self._shared = shared
        self._ttl_s = ttl_s
        self._clock = clock
        self._observe = observe
        self._lock = threading.Lock()
        self._stats = {MEMORY: TierStats(), SHARED: TierStats()}

    def held(self, key: bytes) -> Entry | None:
        """What this process holds."""
        held = self._memory.get(key)
        self._count_look_up(MEMORY, held)
        return held

    def get(self, key: bytes) -> Entry | None:
        """What this process or another one holds."""
        held = self.held(key)
        if held is not None:
            return held
        found = self._from_shared(key)
        self._count_look_up(SHARED, found)
        if found is not None:
            self._keep(key, found)
        return found

    def peek(self, key: bytes) -> Entry | None:
        """As `get`, for one who only looks: nothing is counted, and nothing goes up into memory."""
        return self._memory.get(key) or self._from_shared(key)

    def keep(self, key: bytes, value: bytes, most_s: float = inf) -> None:
        """Holds the value in this process, at most for so many seconds."""
        self._keep(key, Entry(value, self._clock() + min(self._ttl_s, most_s)))

    def publish(self, key: bytes, value: bytes, most_s: float = inf) -> None:
        """Offers the value to the other processes, at most for so many seconds."""
        ttl_s = min(self._ttl_s, most_s)
        if self._shared.put(key, _EXPIRY.pack(self._clock() + ttl_s) + value, ttl_s):
            self._count(SHARED, stores=1)

    def stats(self) -> dict[str, TierStats]:
        """Counters by tier, nearest first; `nbytes` is the memory in use, and 0 of the shared tier."""
        return self._stats | {MEMORY: replace(self._stats[MEMORY], nbytes=self._memory.nbytes)}

    def _from_shared(self, key: bytes) -> Entry | None:
        payload = self._shared.get(key)
        if payload is None or len(payload) < _EXPIRY.size:
            return None
        expires: float = _EXPIRY.unpack_from(payload)[0]
        return Entry(payload[_EXPIRY.size :], expires, SHARED) if expires > self._clock() else None

    def _keep(self, key: bytes, entry: Entry) -> None:
        if self._memory.put(key, replace(entry, tier=MEMORY)):
            self._count(MEMORY, stores=1)

    def _count_look_up(self, tier: str, found: Entry | None) -> None:
        self._count(tier, **{"misses" if found is None else "hits": 1})

    def _count(self, tier: str, **amounts: int) -> None:
        with self._lock:
            held = self._stats[tier]
            counted = {field: getattr(held, field) + amount for field, amount in amounts.items()}
            self._stats[tier] = replace(held, **counted)
        for field, amount in amounts.items():
            self._observe(tier, field, amount)
