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
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
        return _SEPARATOR.join(map(str, dataclasses.astuple(self)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` wrote; raises ValueError for what is not the text of a key."""
        installation, kb_id, version, tokenizer_id, fingerprint = text.split(_SEPARATOR)
        return cls(installation, int(kb_id), int(version), tokenizer_id, fingerprint)

    def at(self, version: int) -> "CacheKey":
        return dataclasses.replace(self, version=version)

    @property
    def lineage(self) -> "CacheKey":
        return self.at(0)

    def serves(self, wanted: "CacheKey") -> bool:
        return self.lineage == wanted.lineage and self.version >= wanted.version


class HasSize(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=HasSize)
K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")


class ByteTier(Protocol):
    """A shared store of payloads, one a knowledge base. Every method raises TierUnavailable when it cannot be reached."""

    @property
    def name(self) -> str: ...

    def load(self, key: CacheKey) -> tuple[CacheKey, bytes] | None:
        """The payload that serves `key`, with its own key."""

    def store(self, key: CacheKey, payload: bytes) -> bool:
        """Stores the payload; False where this tier does not want it (too large, older than what it holds)."""

    def drop(self, kb_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class TierStats:
    """Counts since this process started. A look-up is a hit or a miss; one that fails is a miss and an error."""

    hits: int = 0
    misses: int = 0
    stores: int = 0
    errors: int = 0
    nbytes: int = 0  # memory held now (process), or payload bytes read and written so far (the others)
    builds: int = 0  # full ones from the stored postings
    updates: int = 0  # changes read over an older index instead


# Receives (tier, field of TierStats, amount) of every count; of the memory in use, its new value.
Observer = Callable[[str, str, int], None]


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A cached value, the key it was stored under and the name of the tier that answered."""

    value: T
    key: CacheKey
    tier: str


class Recent(Generic[K, V]):
    """The most recently used entries, bounded by the sum of their bytes. Thread-safe: hold `lock` to read and then write."""

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
        """Stores the entry and drops the least recently used ones; False if it is larger than all of the memory."""
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


class Counts:
    """One tier's counters, reported to an observer too, and what has been warned about already. Thread-safe."""

    def __init__(self, tier: str, observe: Observer) -> None:
        self.tier = tier
        self.stats = TierStats()
        self._observe = observe
        self._lock = threading.Lock()
        self._warned: dict[Hashable, object] = {}

    def add(self, **amounts: int) -> None:
        with self._lock:
            counted = {name: getattr(self.stats, name) + amount for name, amount in amounts.items()}
            self.stats = dataclasses.replace(self.stats, **counted)
        for name, amount in amounts.items():
            self._observe(self.tier, name, amount)

    def reached(self) -> None:
        with self._lock:
            was_down = self._warned.pop("down", False)
        if was_down:
            logger.info("cache tier %s is back", self.tier)

    def fault(self, topic: Hashable, about: object, message: str, *arguments: object) -> None:
        """Counts an error, and logs it unless the last one of its topic was about the same."""
        self.add(errors=1)
        with self._lock:
            is_known = self._warned.get(topic) == about
            self._warned[topic] = about
        if not is_known:
            logger.warning(message, *arguments)


class TieredCache(Generic[T]):
    """Looks in memory, then in each byte tier in order; what a lower one answers goes up into those above. Thread-safe.

    Memory holds live objects, the newest version of each lineage, bounded by the sum of their `nbytes`. `tiers` come
    nearest first. `encode` turns a value into builtin types for the codec; `decode`, its inverse, raises ValueError for
    a state that it does not understand. `observe` receives every count, for metrics that outlive this object.
    """

    def __init__(
        self,
        memory_bytes: int,
        tiers: Sequence[ByteTier],
        codec: PayloadCodec,
        encode: Callable[[T], object],
        decode: Callable[[CacheKey, object], T],
        observe: Observer = lambda _tier, _field, _amount: None,
    ) -> None:
        self._memory: Recent[CacheKey, Found[T]] = Recent(memory_bytes)
        self._tiers = tuple(tiers)
        self._codec = codec
        self._encode = encode
        self._decode = decode
        self._observe = observe
        self._logs = {name: Counts(name, observe) for name in (PROCESS_TIER, *(tier.name for tier in tiers))}

    def live(self, key: CacheKey) -> Found[T] | None:
        """What this process holds of the key's version or a newer one; counts as a look-up."""
        held = self.held(key)
        found = held if held is not None and held.key.serves(key) else None
        self.count(**{"misses" if found is None else "hits": 1})
        return found

    def held(self, key: CacheKey) -> Found[T] | None:
        """What this process holds of any version; counts as nothing."""
        return self._memory.get(key.lineage)

    def stored(self, key: CacheKey) -> Found[T] | None:
        """What the nearest byte tier holds that serves the key; not put into memory."""
        for depth, tier in enumerate(self._tiers):
            log = self._logs[tier.name]
            entry = self._reach(tier, partial(tier.load, key))
            if entry is None:
                log.add(misses=1)
                continue
            stored_key, payload = entry
            try:
                value = self._decode(stored_key, self._codec.open(str(stored_key), payload))
            except (PayloadError, ValueError) as error:
                log.add(misses=1)
                message = "cache tier %s holds an unusable payload for %s, ignoring it: %s"
                log.fault("unusable", stored_key, message, tier.name, stored_key, error)
                continue
            log.add(hits=1, nbytes=len(payload))
            self._store(self._tiers[:depth], stored_key, payload)
            return Found(value, stored_key, tier.name)
        return None

    def keep(self, key: CacheKey, value: T) -> None:
        """Holds `value` in this process unless that holds a newer one, and drops the least recently used.

        One that exceeds all of the memory is loaded again each time, with one warning.
        """
        with self._memory.lock:
            held = self.held(key)
            is_older = held is not None and held.key.version > key.version
            is_kept = not is_older and self._memory.put(key.lineage, Found(value, key, PROCESS_TIER), value.nbytes)
        if is_kept:
            self.count(stores=1)
        elif value.nbytes > self._memory.max_bytes:
            self._logs[PROCESS_TIER].fault(
                ("too large", key.lineage),
                key.lineage,
                "the index of %s takes %s bytes and memory is bounded to %s, so every search loads it again: raise "
                "BM25_MEMORY_MB",
                key,
                value.nbytes,
                self._memory.max_bytes,
            )
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
        else:
            self._store(self._tiers, key, payload)

    def drop(self, kb_id: int) -> None:
        """Forgets the knowledge base in every tier that can be reached."""
        for lineage in self._memory:
            if lineage.kb_id == kb_id:
                self._memory.drop(lineage)
        self._observe(PROCESS_TIER, "nbytes", self._memory.nbytes)
        for tier in self._tiers:
            self._reach(tier, partial(tier.drop, kb_id))

    def stats(self) -> dict[str, TierStats]:
        stats = {name: log.stats for name, log in self._logs.items()}
        return stats | {PROCESS_TIER: dataclasses.replace(stats[PROCESS_TIER], nbytes=self._memory.nbytes)}

    def _store(self, tiers: Sequence[ByteTier], key: CacheKey, payload: bytes) -> None:
        for tier in tiers:
            if self._reach(tier, partial(tier.store, key, payload)):
                self._logs[tier.name].add(stores=1, nbytes=len(payload))

    def _reach(self, tier: ByteTier, call: Callable[[], R]) -> R | None:
        log = self._logs[tier.name]
        try:
            answer = call()
        except TierUnavailable as error:
            log.fault("down", tier.name, "cache tier %s is unavailable, going on without it: %s", tier.name, error)
            return None
        log.reached()
        return answer


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
    """A cached value, and the tier where it was found."""

    value: bytes
    expires: float  # in seconds since the epoch, so that processes agree
    tier: str = MEMORY


class ByteCache:
    """Looks in memory, then in the shared tier; what that one answers goes up into memory, for the time it has left.

    An entry lives `ttl_s` seconds, in both tiers together. `clock` gives seconds since the epoch; `observe` receives
    every count, for metrics that outlive this object.
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
        return self._counted(MEMORY, self._in_memory(key))

    def get(self, key: bytes) -> Entry | None:
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
        payload = self._shared.get(key) or b""
        if len(payload) < _EXPIRY.size:
            return None
        expires: float = _EXPIRY.unpack_from(payload)[0]
        return Entry(payload[_EXPIRY.size :], expires, SHARED) if expires > self._clock() else None

    def _keep(self, key: bytes, entry: Entry) -> None:
        if self._memory.put(key, dataclasses.replace(entry, tier=MEMORY), len(entry.value) + ENTRY_OVERHEAD_BYTES):
            self._counts[MEMORY].add(stores=1)

    def _counted(self, tier: str, found: Entry | None) -> Entry | None:
        self._counts[tier].add(**{"misses" if found is None else "hits": 1})
        return found
