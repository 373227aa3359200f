"""One cache of three tiers: live objects in this process, then tiers of bytes shared with other processes.

The version in a key makes an entry of the past unreachable, so clearing is a saving of memory and never what makes an
answer right. A tier that is down or holds garbage is a miss and a warning, not an error.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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

    def supersedes(self, other: "CacheKey") -> bool:
        """Whether `other` is of an earlier version of the same KB."""
        same_kb = (self.installation, self.kb_id) == (other.installation, other.kb_id)
        return same_kb and self.version > other.version


class HasSize(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=HasSize)


class ByteTier(Protocol):
    """A shared store of payloads. Every method raises TierUnavailable when the store cannot be reached."""

    @property
    def name(self) -> str: ...

    def load(self, key: CacheKey) -> bytes | None: ...

    def store(self, key: CacheKey, payload: bytes) -> None:
        """Keep the payload, or do nothing when this tier does not want it (too large, older than what it holds)."""

    def drop(self, kb_id: int) -> None: ...


class MemoryTier(Generic[T]):
    """The least recently used live objects of this process, bounded by the sum of their `nbytes`. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, tuple[T, int]] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def get(self, key: CacheKey) -> T | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: CacheKey, value: T) -> bool:
        """Keep `value` unless it alone exceeds the bound (returns False); earlier versions of its KB go."""
        size = value.nbytes
        with self._lock:
            for stale in [held for held in self._entries if held == key or key.supersedes(held)]:
                self._remove(stale)
            if size > self._max_bytes:
                return False
            self._entries[key] = (value, size)
            self._nbytes += size
            while self._nbytes > self._max_bytes:
                self._remove(next(iter(self._entries)))
            return True

    def drop(self, kb_id: int) -> None:
        with self._lock:
            for key in [held for held in self._entries if held.kb_id == kb_id]:
                self._remove(key)

    def _remove(self, key: CacheKey) -> None:
        self._nbytes -= self._entries.pop(key)[1]


@dataclass(frozen=True, slots=True)
class TierStats:
    """Counts since this process started. A look-up is a hit or a miss; one that fails is a miss and an error."""

    hits: int = 0
    misses: int = 0
    stores: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A cached value and the name of the tier that answered."""

    value: T
    tier: str


class _TierLog:
    """One tier's counters, and what has been warned about already."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._stats = TierStats()
        self._is_down = False
        self._rejected: CacheKey | None = None

    @property
    def stats(self) -> TierStats:
        return self._stats

    def count(self, *, hits: int = 0, misses: int = 0, stores: int = 0, errors: int = 0) -> None:
        with self._lock:
            now = self._stats
            self._stats = TierStats(now.hits + hits, now.misses + misses, now.stores + stores, now.errors + errors)

    def reached(self) -> None:
        with self._lock:
            recovered, self._is_down = self._is_down, False
        if recovered:
            logger.info("cache tier %s is back", self.name)

    def unreachable(self, error: TierUnavailable) -> None:
        self.count(errors=1)
        with self._lock:
            known, self._is_down = self._is_down, True
        if not known:
            logger.warning("cache tier %s is unavailable, going on without it: %s", self.name, error)

    def rejected(self, key: CacheKey, reason: Exception) -> None:
        self.count(misses=1, errors=1)
        with self._lock:
            known, self._rejected = self._rejected == key, key
        if not known:
            logger.warning("cache tier %s holds an unusable payload for %s, ignoring it: %s", self.name, key, reason)


class TieredCache(Generic[T]):
    """Looks in memory, then in each byte tier in order; what a lower tier answers goes up into those above.

    Args:
        memory: The tier of live objects.
        tiers: The byte tiers, nearest first.
        codec: Signs and verifies payloads.
        encode: Value to builtin types.
        decode: Its inverse; raises ValueError for a state that it does not understand.
    """

    def __init__(
        self,
        memory: MemoryTier[T],
        tiers: Sequence[ByteTier],
        codec: PayloadCodec,
        encode: Callable[[T], object],
        decode: Callable[[object], T],
    ) -> None:
        self._memory = memory
        self._tiers = tuple(tiers)
        self._codec = codec
        self._encode = encode
        self._decode = decode
        self._logs = {name: _TierLog(name) for name in (PROCESS_TIER, *(tier.name for tier in tiers))}

    def get(self, key: CacheKey) -> Found[T] | None:
        """The value and the tier that had it, or None."""
        value = self._memory.get(key)
        if value is not None:
            self._logs[PROCESS_TIER].count(hits=1)
            return Found(value, PROCESS_TIER)
        self._logs[PROCESS_TIER].count(misses=1)
        for depth, tier in enumerate(self._tiers):
            payload = self._load(tier, key)
            value = None if payload is None else self._open(tier, key, payload)
            if payload is not None and value is not None:
                self._keep(key, value)
                self._store(self._tiers[:depth], key, payload)
                return Found(value, tier.name)
        return None

    def put(self, key: CacheKey, value: T) -> None:
        """Keep `value` in every tier that can be reached."""
        self._keep(key, value)
        try:
            payload = self._codec.seal(str(key), self._encode(value))
        except PayloadError as error:
            logger.warning("%s stays in this process only: %s", key, error)
            return
        self._store(self._tiers, key, payload)

    def drop(self, kb_id: int) -> None:
        """Forget the KB in every tier that can be reached."""
        self._memory.drop(kb_id)
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
        return {name: log.stats for name, log in self._logs.items()}

    def _keep(self, key: CacheKey, value: T) -> None:
        if self._memory.put(key, value):
            self._logs[PROCESS_TIER].count(stores=1)

    def _load(self, tier: ByteTier, key: CacheKey) -> bytes | None:
        log = self._logs[tier.name]
        try:
            payload = tier.load(key)
        except TierUnavailable as error:
            log.unreachable(error)
            payload = None
        else:
            log.reached()
        if payload is None:
            log.count(misses=1)
        return payload

    def _open(self, tier: ByteTier, key: CacheKey, payload: bytes) -> T | None:
        log = self._logs[tier.name]
        try:
            value = self._decode(self._codec.open(str(key), payload))
        except (PayloadError, ValueError) as error:
            log.rejected(key, error)
            return None
        log.count(hits=1)
        return value

    def _store(self, tiers: Sequence[ByteTier], key: CacheKey, payload: bytes) -> None:
        for tier in tiers:
            log = self._logs[tier.name]
            try:
                tier.store(key, payload)
            except TierUnavailable as error:
                log.unreachable(error)
            else:
                log.reached()
                log.count(stores=1)
