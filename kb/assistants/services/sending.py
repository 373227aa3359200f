"""Questions that arrive twice because a browser has lost its connection: the second leads to the first one's answer."""

from typing import Final, cast
from uuid import UUID

from redis import Redis

from kb.base import cache as query_caches
from kb.base.models import installation_id

# Between a question and its answer's row stands a search; then the answer can be looked for as long as anybody tries.
SEARCH_SECONDS: Final = 30
ANSWERED_SECONDS: Final = 24 * 60 * 60
_UNDER_WAY: Final = b"0"


class UnderWay(Exception):
    """The question is being searched; its answer has no id yet."""


def sending_begin(visitor_id: UUID, sending_id: UUID) -> int | None:
    """The id of the answer that a question has already; None: it has come for the first time. Raises UnderWay.

    Without Redis every question is the first.
    """
    key = _key(visitor_id, sending_id)

    def begin(redis: Redis) -> bytes | None:
        if redis.set(key, _UNDER_WAY, nx=True, ex=SEARCH_SECONDS):
            return None
        return cast(bytes | None, redis.get(key))

    known = query_caches.shared_redis().ask(begin)
    if known == _UNDER_WAY:
        raise UnderWay
    return int(known) if known else None


def sending_answered(visitor_id: UUID, sending_id: UUID, message_id: int) -> None:
    key = _key(visitor_id, sending_id)
    query_caches.shared_redis().ask(lambda redis: redis.set(key, message_id, ex=ANSWERED_SECONDS))


def sending_failed(visitor_id: UUID, sending_id: UUID) -> None:
    """Nothing was stored of it: it may come again."""
    key = _key(visitor_id, sending_id)
    query_caches.shared_redis().ask(lambda redis: redis.delete(key))


def _key(visitor_id: UUID, sending_id: UUID) -> str:
    return f"{query_caches.KEY_SPACE}:sending:{installation_id()}:{visitor_id.hex}:{sending_id.hex}"
