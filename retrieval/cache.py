"""The cache: memory of this process, bounded in bytes, in front of tiers of bytes that processes share.

`TieredCache` holds live objects by version, `ByteCache` bytes until they expire. The versions in a key make an entry of the
past unreachable as an answer, so clearing is a saving of memory and never what makes an answer right. A tier that is down or
holds garbage is a miss and a warning, not an error.
"""

import dataclasses
import logging
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, Protocol, Self, TypeVar

from retrieval.errors import RetrievalError
from retrieval.payload import PayloadCodec, PayloadError

logger = logging.getLogger(__name__)

PROCESS_TIER = "process"
_SEPARATOR = "|"


class TierUnavailable(RetrievalError):
    """A byte tier cannot be reached."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What an index depends on. Its text is the key in every tier and is covered by the payload's signature."""

    installation: str
    kb_id: int
    version: int
    tokenizer_id: str
    fingerprint: str

    def __post_init__(self) -> None:
        if any(_SEPARATOR in text for text in (self.installation, self.tokenizer_id, self.fingerprint)):
            raise ValueError(f"the parts of a cache key must not contain {_SEPARATOR!r}: {self!r}")

    def __str__(self) -> str:
        parts = (self.installation, self.kb_id, self.version, self.tokenizer_id, self.fingerprint)
        return _SEPARATOR.join(map(str, parts))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` wrote.

        Raises:
            ValueError: it is not the text of a key.
        """
        installation, kb_id, version, tokenizer_id, fingerprint = text.split(_SEPARATOR)
        return cls(installation, int(kb_id), int(version), tokenizer_id, fingerprint)

    def at(self, version: int) -> "CacheKey":
        """The same knowledge base, tokenizer and configuration at another version."""
        return dataclasses.replace(self, version=version)

    @property
    def lineage(self) -> "CacheKey":
        """What all versions have in common."""
        return self.at(0)

    def serves(self, wanted: "CacheKey") -> bool:
        """Whether this is `wanted`, or a newer version of it."""
        return self.lineage == wanted.lineage and self.version >= wanted.version


class HasSize(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=HasSize)
K = TypeVar("K")
V = TypeVar("V")


class ByteTier(Protocol):
    """A shared store of payloads, one a knowledge base. Every method raises TierUnavailable when it cannot be reached."""

    @property
    def name(self) -> str: ...

    def load(self, key: CacheKey) -> tuple[CacheKey, bytes] | None:
        """The payload that serves `key`, with its own key."""

    def store(self, key: CacheKey, payload: bytes) -> bool:
        """Keeps the payload; False where this tier does not want it (too large, older than what it holds)."""

    def drop(self, kb_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class TierStats:
    """Counts since this process started. A look-up is a hit or a miss; one that fails is a miss and an error.

    Attributes:
        nbytes: memory held now (process), or payload bytes read and written so far (the others).
        builds: full builds from the stored postings.
        updates: changes read over an older index instead.
    """

    hits: int = 0
    misses: int = 0
    stores: int = 0
    errors: int = 0
    nbytes: int = 0
    builds: int = 0
    updates: int = 0


Observer = Callable[[str, str, int], None]
"""Receives (tier, field of TierStats, amount) of every count; of the memory in use, its new value."""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A cached value, the key it was stored under and the name of the tier that answered."""

    value: T
    key: CacheKey
    tier: str


class Recent(Generic[K, V]):
    """The most recently used entries, bounded by the sum of their bytes. Thread-safe: hold `lock` to look and then write."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.lock = threading.RLock()
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The entry, which is then the last to be dropped."""
        with self.lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: K, value: V, nbytes: int) -> bool:
        """Keeps the entry and drops the least recently used ones; False if it is larger than all of the memory."""
        with self.lock:
            self.drop(key)
            if nbytes > self.max_bytes:
                return False
            self._entries[key] = (value, nbytes)
            self.nbytes += nbytes
            while self.nbytes > self.max_bytes:
                self.drop(next(iter(self._entries)))
            return True

    def drop(self, key: K) -> None:
        with self.lock:
            self.nbytes -= self._entries.pop(key, (None, 0))[1]

    def __iter__(self) -> Iterator[K]:
        with self.lock:
            return iter(list(self._entries))


class MemoryTier(Generic[T]):
    """Live objects of this process, the newest of each lineage, bounded by the sum of their `nbytes`. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._held: Recent[CacheKey, tuple[CacheKey, T]] = Recent(max_bytes)

    @property
    def nbytes(self) -> int:
        return self._held.nbytes

    @property
    def max_bytes(self) -> int:
        return self._held.max_bytes

    def get(self, key: CacheKey) -> tuple[CacheKey, T] | None:
        """The value that serves `key`, with its own key."""
        held = self._held.get(key.lineage)
        return held if held is not None and held[0].serves(key) else None

    def put(self, key: CacheKey, value: T) -> bool:
        """Keeps `value` and drops the least recently used; False if it is too large, or older than what is held."""
        with self._held.lock:
            held = self._held.get(key.lineage)
            is_older = held is not None and held[0].version > key.version
            return not is_older and self._held.put(key.lineage, (key, value), value.nbytes)

    def drop(self, kb_id: int) -> None:
        for lineage in self._held:
            if lineage.kb_id == kb_id:
                self._held.drop(lineage)


class Counts:
    """One tier's counters, reported to an observer too. Thread-safe."""

    def __init__(self, tier: str, observe: Observer) -> None:
        self.tier = tier
        self.stats = TierStats()
        self._observe = observe
        self._lock = threading.Lock()

    def add(self, **amounts: int) -> None:
        with self._lock:
            counted = {name: getattr(self.stats, name) + amount for name, amount in amounts.items()}
            self.stats = dataclasses.replace(self.stats, **counted)
        for name, amount in amounts.items():
            self._observe(self.tier, name, amount)


class _TierLog(Counts):
    """The counters with what has been warned about already."""

    def __init__(self, tier: str, observe: Observer) -> None:
        super().__init__(tier, observe)
        self._is_down = False
        self._rejected: CacheKey | None = None
        self._too_large: set[CacheKey] = set()

    def reached(self) -> None:
        with self._lock:
            recovered, self._is_down = self._is_down, False
        if recovered:
            logger.info("cache tier %s is back", self.tier)

    def unreachable(self, error: TierUnavailable) -> None:
        self.add(errors=1)
        with self._lock:
            known, self._is_down = self._is_down, True
        if not known:
            logger.warning("cache tier %s is unavailable, going on without it: %s", self.tier, error)

    def too_large(self, key: CacheKey, nbytes: int, max_bytes: int) -> None:
        self.add(errors=1)
        with self._lock:
            known = key.lineage in self._too_large
            self._too_large.add(key.lineage)
        if not known:
            logger.warning(
                "the index of %s takes %s bytes and memory is bounded to %s, so every search loads it again: raise "
                "BM25_MEMORY_MB",
                key,
                nbytes,
                max_bytes,
            )

    def rejected(self, key: CacheKey, reason: Exception) -> None:
        self.add(misses=1, errors=1)
        with self._lock:
            known, self._rejected = self._rejected == key, key
        if not known:
            logger.warning("cache tier %s holds an unusable payload for %s, ignoring it: %s", self.tier, key, reason)


class TieredCache(Generic[T]):
    """Looks in memory, then in each byte tier in order; what a lower tier answers goes up into those above.

    Args:
        memory: The tier of live objects.
        tiers: The byte tiers, nearest first.
        codec: Signs and verifies payloads.
        encode: Value to builtin types.
        decode: Its inverse, given the key; raises ValueError for a state that it does not understand.
        observe: receives every count, for metrics that outlive this object.
    """

    def __init__(
        self,
        memory: MemoryTier[T],
        tiers: Sequence[ByteTier],
        codec: PayloadCodec,
        encode: Callable[[T], object],
        decode: Callable[[CacheKey, object], T],
        observe: Observer = lambda _tier, _field, _amount: None,
    ) -> None:
        self._memory = memory
        self._tiers = tuple(tiers)
        self._codec = codec
        self._encode = encode
        self._decode = decode
        self._observe = observe
        self._logs = {name: _TierLog(name, observe) for name in (PROCESS_TIER, *(tier.name for tier in tiers))}

    def live(self, key: CacheKey) -> Found[T] | None:
        """What this process holds of the key's version or a newer one; counts as a look-up."""
        held = self._memory.get(key)
        self._logs[PROCESS_TIER].add(**{"misses" if held is None else "hits": 1})
        return None if held is None else Found(held[1], held[0], PROCESS_TIER)

    def held(self, key: CacheKey) -> Found[T] | None:
        """What this process holds of any version; counts as nothing."""
        held = self._memory.get(key.lineage)
        return None if held is None else Found(held[1], held[0], PROCESS_TIER)

    def stored(self, key: CacheKey) -> Found[T] | None:
        """What the nearest byte tier holds that serves the key; not put into memory."""
        for depth, tier in enumerate(self._tiers):
            entry = self._load(tier, key)
            value = None if entry is None else self._open(tier, *entry)
            if entry is not None and value is not None:
                self._store(self._tiers[:depth], *entry)
                return Found(value, entry[0], tier.name)
        return None

    def keep(self, key: CacheKey, value: T) -> None:
        """Keeps `value` in this process; one that exceeds all of its memory is loaded again each time, with one warning."""
        if self._memory.put(key, value):
            self._logs[PROCESS_TIER].add(stores=1)
        elif value.nbytes > self._memory.max_bytes:
            self._logs[PROCESS_TIER].too_large(key, value.nbytes, self._memory.max_bytes)
        self._observe(PROCESS_TIER, "nbytes", self._memory.nbytes)

    def count(self, **amounts: int) -> None:
        """Counts what this process did itself: builds and updates."""
        self._logs[PROCESS_TIER].add(**amounts)

    def publish(self, key: CacheKey, value: T) -> None:
        """Stores `value` in every byte tier that can be reached."""
        try:
            payload = self._codec.seal(str(key), self._encode(value))
        except PayloadError as error:
            logger.warning("%s stays in this process only: %s", key, error)
            return
        self._store(self._tiers, key, payload)

    def drop(self, kb_id: int) -> None:
        """Forgets the knowledge base in every tier that can be reached."""
        self._memory.drop(kb_id)
        self._observe(PROCESS_TIER, "nbytes", self._memory.nbytes)
        for tier in self._tiers:
            log = self._logs[tier.name]
            try:
                tier.drop(kb_id)
            except TierUnavailable as error:
                log.unreachable(error)
            else:
                log.reached()

    def stats(self) -> dict[str, TierStats]:
        """Counters by tier name, nearest first."""
        stats = {name: log.stats for name, log in self._logs.items()}
        return stats | {PROCESS_TIER: dataclasses.replace(stats[PROCESS_TIER], nbytes=self._memory.nbytes)}

    def _load(self, tier: ByteTier, key: CacheKey) -> tuple[CacheKey, bytes] | None:
        log = self._logs[tier.name]
        try:
            entry = tier.load(key)
        except TierUnavailable as error:
            log.unreachable(error)
            entry = None
        else:
            log.reached()
        if entry is None:
            log.add(misses=1)
        return entry

    def _open(self, tier: ByteTier, key: CacheKey, payload: bytes) -> T | None:
        log = self._logs[tier.name]
        try:
            value = self._decode(key, self._codec.open(str(key), payload))
        except (PayloadError, ValueError) as error:
            log.rejected(key, error)
            return None
        log.add(hits=1, nbytes=len(payload))
        return value

    def _store(self, tiers: Sequence[ByteTier], key: CacheKey, payload: bytes) -> None:
        for tier in tiers:
            log = self._logs[tier.name]
            try:
                is_stored = tier.store(key, payload)
            except TierUnavailable as error:
                log.unreachable(error)
            else:
                log.reached()
                if is_stored:
                    log.add(stores=1, nbytes=len(payload))


MEMORY = "memory"
SHARED = "shared"
ENTRY_OVERHEAD_BYTES = 250  # the dictionary's and the objects' own

_EXPIRY = struct.Struct("<d")


class SharedBytes(Protocol):
    """A tier that processes share. One that cannot be reached, or holds garbage, has nothing; it never raises."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes, ttl_s: float) -> bool:
        """Returns whether it has the value now."""


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
        observe: receives every count, for metrics that outlive this object.
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

    def put(self, key: bytes, value: bytes, most_s: float = inf) -> None:
        """Holds the value in this process and offers it to the others."""
        self.keep(key, value, most_s)
        self.publish(key, value, most_s)

    def publish(self, key: bytes, value: bytes, most_s: float = inf) -> None:
        """Offers the value to the other processes, at most for so many seconds."""
        ttl_s = min(self._ttl_s, most_s)
        if self._shared.put(key, _EXPIRY.pack(self._clock() + ttl_s) + value, ttl_s):
            self._counts[SHARED].add(stores=1)

    def stats(self) -> dict[str, TierStats]:
        """Counters by tier, nearest first; `nbytes` is the memory in use, and 0 of the shared tier."""
        stats = {tier: counts.stats for tier, counts in self._counts.items()}
        return stats | {MEMORY: dataclasses.replace(stats[MEMORY], nbytes=self._memory.nbytes)}

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
        if self._memory.put(key, dataclasses.replace(entry, tier=MEMORY), entry.nbytes):
            self._counts[MEMORY].add(stores=1)

    def _counted(self, tier: str, found: Entry | None) -> Entry | None:
        self._counts[tier].add(**{"misses" if found is None else "hits": 1})
        return found
