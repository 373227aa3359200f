"""Counters of requests, shared through Redis by all processes; where Redis is out each process counts on its own.

The counting is the library's (limits: one script call in Redis, one dictionary here). Its windows begin when the clock says
so and not with a first request, so that the count alone tells when a window ends: one round trip a request.
"""

import time
from functools import lru_cache

from limits import RateLimitItem
from limits.storage import MemoryStorage, RedisStorage
from redis import Redis

from kb.base.cache import query_caches
from kb.base.db.installation import installation_id


def count_requests(limit: RateLimitItem, name: str, amount: int) -> tuple[int, int]:
    """Counts requests in the current window of a limit.

    Args:
        limit: how long a window is.
        name: whose requests, and of which kind.
        amount: how many; 0: only looks.

    Returns:
        How many the window holds with these, and in how many seconds it ends (at least 1).
    """
    length, now = limit.get_expiry(), int(time.time())
    window, elapsed = divmod(now, length)
    key = f"{query_caches.KEY_SPACE}:requests:{installation_id()}:{name}:{length}:{window}"
    shared = query_caches.shared_redis().ask(lambda redis: _in_redis(redis).incr(key, length, amount))
    return (_here().incr(key, length, amount) if shared is None else shared), length - elapsed


@lru_cache(maxsize=1)
def _in_redis(redis: "Redis") -> RedisStorage:
    # The address is only looked at for its scheme: connections are those of the client.
    return RedisStorage("redis://", connection_pool=redis.connection_pool)


@lru_cache(maxsize=1)
def _here() -> MemoryStorage:
    return MemoryStorage()
