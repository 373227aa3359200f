"""The caches of queries: vectors and whole responses, in this process and in Redis.

Redis holds bytes signed over their key, so what anyone else has written there is a miss; after a failure it is left
alone for a while. All caches share django-redis's connections: nothing is pickled, unpickled or taken for a number.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import Any, TypeVar

from django.conf import settings
from django_redis import get_redis_connection
from django_redis.client import DefaultClient
from redis import Redis
from redis.exceptions import DataError, RedisError, ResponseError

from kb.base.metrics import HOT_QUERIES, QUERY_VECTORS
from kb.base.models import installation_id
from retrieval.cache import ByteCache
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OpenAIEmbedder
from retrieval.execution import CircuitBreaker, ModelGuard
from retrieval.payload import PayloadError, Signer
from retrieval.protocols import Embedder
from retrieval.query_vectors import QueryEmbedder

logger = logging.getLogger(__name__)

KEY_SPACE = "zhiku"
PAUSE_SECONDS = 5.0
LOOK_SECONDS = 1.0
MAX_SHARED_BYTES = 1024**2
MAX_QUERY_EMBEDDERS = 8
LOCAL_SLOTS, SERVER_SLOTS = 2, 8

R = TypeVar("R")

# lru_cache alone would let first searches at the same moment each make a cache of their own.
_first_use = threading.Lock()


class SharedRedis:
    """The caches' Redis, which may be down: a failure is logged once and followed by a pause in which nothing is asked."""

    def __init__(self, breaker: CircuitBreaker | None = None) -> None:
        self._client: Redis = get_redis_connection("bm25")
        self._breaker = breaker or CircuitBreaker(failures_to_open=1, seconds_open=PAUSE_SECONDS)
        self._lock = threading.Lock()
        self._is_away = False
        self._asked = -inf

    @property
    def is_away(self) -> bool:
        """Whether it fails: it is asked where it has not been for a second, and while it is away once the pause is over."""
        if self._is_away or time.monotonic() - self._asked > LOOK_SECONDS:
            self.ask(lambda redis: redis.ping())
        return self._is_away

    def ask(self, command: Callable[["Redis"], R]) -> R | None:
        """What the command answers; None where Redis is away, or has no such answer."""
        if not self._breaker.allows():
            return None
        self._asked = time.monotonic()
        try:
            answer: R | None = command(self._client)
        except (
            ResponseError,
            DataError,
        ) as error:  # it is there, but the key is of another type, or its memory is full
            logger.warning("Redis refuses a command of the query caches: %s", error)
            answer = None
        except RedisError as error:
            self._breaker.failed()
            if not self._was_away(now=True):
                logger.warning("the query caches cannot reach Redis, going on without it: %s", error)
            return None
        self._breaker.succeeded()
        if self._was_away(now=False):
            logger.info("the query caches have Redis again")
        return answer

    def _was_away(self, *, now: bool) -> bool:
        with self._lock:
            before, self._is_away = self._is_away, now
        return before


class SignedBytes:
    """One kind of values in Redis, each signed together with its key."""

    def __init__(self, kind: str) -> None:
        # Read now: the threads that store what they have made hold no connection to the database.
        self._prefix = f"{KEY_SPACE}:{kind}:{installation_id()}:"
        self._has_invalid_signature = False

    def get(self, key: bytes) -> bytes | None:
        name = self._name(key)
        payload = shared_redis().ask(lambda redis: redis.get(name))
        if not isinstance(payload, bytes):
            return None
        try:
            value: bytes | None = _signer(settings.SECRET_KEY).open(name, payload)
        except PayloadError:
            if not self._has_invalid_signature:
                logger.warning("Redis holds a value under %s that is damaged or not ours, ignoring it", name)
            value = None
        self._has_invalid_signature = value is None
        return value

    def put(self, key: bytes, value: bytes, ttl_s: float) -> bool:
        if len(value) > MAX_SHARED_BYTES:
            return False
        name = self._name(key)
        signed = _signer(settings.SECRET_KEY).seal(name, value)
        return bool(shared_redis().ask(lambda redis: redis.set(name, signed, px=max(1, int(ttl_s * 1_000)))))

    def delete(self, *keys: bytes) -> None:
        shared_redis().ask(lambda redis: redis.delete(*(self._name(key) for key in keys)))

    def _name(self, key: bytes) -> str:
        return self._prefix + key.hex()


@lru_cache(maxsize=4)
def _signer(secret: str) -> Signer:
    return Signer(secret.encode(), b"zhiku/kb/query-caches")


def shared_redis() -> SharedRedis:
    with _first_use:
        return _redis_at(settings.CACHES["bm25"]["LOCATION"])


@lru_cache(maxsize=4)
def _redis_at(url: str) -> SharedRedis:  # noqa: ARG001 - another address is another server
    return SharedRedis()


def hot_queries() -> ByteCache:
    with _first_use:
        return _hot_queries()


@lru_cache(maxsize=1)
def _hot_queries() -> ByteCache:
    return ByteCache(
        settings.HOT_QUERY_MEMORY_BYTES,
        SignedBytes("responses"),
        settings.CACHE_TTL_SECONDS,
        observe=lambda tier, event, amount: HOT_QUERIES.labels(tier, event).inc(amount),
    )


@lru_cache(maxsize=1)
def _query_vectors() -> ByteCache:
    return ByteCache(
        settings.QUERY_VECTOR_MEMORY_BYTES,
        SignedBytes("vectors"),
        settings.QUERY_VECTOR_TTL_SECONDS,
        observe=lambda tier, event, amount: QUERY_VECTORS.labels(tier, event).inc(amount),
    )


_query_embedders: OrderedDict[str, QueryEmbedder] = OrderedDict()


def query_embedder(embedder: Embedder) -> QueryEmbedder:
    """The process's cached and guarded embedder of queries for a model, so that all searches share its breaker."""
    model_id = embedder.model_id
    with _first_use:
        held = _query_embedders.get(model_id)
        if held is None or held.embedder is not embedder:  # the latter where the server or its key has changed
            slots = SERVER_SLOTS if isinstance(embedder, OpenAIEmbedder) else LOCAL_SLOTS
            guard = None if model_id == HASHING_MODEL_ID else ModelGuard(model_id, slots=slots)
            _query_embedders[model_id] = held = QueryEmbedder(embedder, guard, _query_vectors())
        _query_embedders.move_to_end(model_id)
        while len(_query_embedders) > MAX_QUERY_EMBEDDERS:
            _query_embedders.popitem(last=False)
        return held


def forget() -> None:
    """Empties what this process holds, as if it had just started."""
    with _first_use:
        for cached in (_redis_at, _hot_queries, _query_vectors):
            cached.cache_clear()
        _query_embedders.clear()


class RawBytesClient(DefaultClient):  # type: ignore[misc]
    """The stock client turns b"123" into the integer 123 and lets integers pass by the serializer."""

    def encode(self, value: Any, *, allow_int: bool = True) -> bytes:  # noqa: ARG002 - the library's signature
        if not isinstance(value, bytes):
            raise TypeError(f"this cache holds bytes only, not {type(value).__name__}: encode the value first")
        return value

    def decode(self, value: bytes) -> bytes:
        return value
