"""How many requests a caller may make: the server's limits are for a user, the limit of an API key is for that key.

So nobody gets more by making more keys. Requests to a chat model and those that bring files in have windows of
their own.
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from django.conf import settings
from django.utils.translation import gettext as _
from limits import RateLimitItem, parse_many
from limits.storage import MemoryStorage, RedisStorage
from redis import Redis

from kb.access.models import ApiKey, User
from kb.base import cache as query_caches
from kb.base.errors import Rejected
from kb.base.models import installation_id


@lru_cache(maxsize=1)
def _in_redis(redis: "Redis") -> RedisStorage:
    # The address is only looked at for its scheme: connections are those of the client.
    return RedisStorage("redis://", connection_pool=redis.connection_pool)


@lru_cache(maxsize=1)
def _here() -> MemoryStorage:
    return MemoryStorage()


GENERAL, ASK, UPLOAD, FAILURES = "general", "ask", "upload", "failures"
LOGIN, LOGIN_NAME = "login", "login_name"
# The kinds of somebody who is known by an address alone.
_OF_VISITOR = {GENERAL: "visitor", ASK: "visitor_ask"}
# The environment variable of each limit.
VARIABLES = {
    GENERAL: "API_RATE_LIMIT",
    ASK: "API_ASK_RATE_LIMIT",
    UPLOAD: "API_UPLOAD_RATE_LIMIT",
    FAILURES: "API_FAILURE_RATE_LIMIT",
    LOGIN: "LOGIN_RATE_LIMIT",
    LOGIN_NAME: "LOGIN_NAME_RATE_LIMIT",
    "visitor": "VISITOR_RATE_LIMIT",
    "visitor_ask": "VISITOR_ASK_RATE_LIMIT",
}
MOST_DAYS, MOST_REQUESTS = 31, 1_000_000_000

_DAY_S = 24 * 60 * 60


@dataclass(frozen=True, slots=True)
class Spent:
    """What is left of a `limit` of requests in a window of `seconds`, and in how many (at least 1) the next begins."""

    limit: int
    seconds: int
    remaining: int
    resets_in_s: int
    allowed: bool


def rate_limit_check(text: str) -> None:
    """Checks what is given as a limit, blank for none; raises Rejected for several, or one that nobody can mean."""
    limits = _parsed(text)
    if len(limits) > 1:
        raise Rejected("invalid_rate_limit", _("Give one rate limit, such as 60/minute."))
    for limit in limits:
        if limit.amount < 1 or limit.multiples < 1:
            raise Rejected(
                "invalid_rate_limit", _("A rate limit allows at least one request: revoke the key to stop it.")
            )
        if limit.amount > MOST_REQUESTS or limit.get_expiry() > MOST_DAYS * _DAY_S:
            message = _("A rate limit is of at most %(requests)d requests, and counts them over %(days)d days at most.")
            raise Rejected("invalid_rate_limit", message, requests=MOST_REQUESTS, days=MOST_DAYS)


def request_spend(user: User, key: ApiKey | None = None, *, kind: str = GENERAL, cost: int = 1) -> Spent | None:
    """Counts a request of a kind (`GENERAL`, `ASK`, `UPLOAD`): for its user, and for its key if that has its own limit.

    What a key's own limit refuses is not counted for the user, whose other keys and sessions go on. What costs several
    and does not fit is refused and not counted, so that smaller ones still do.

    Returns:
        What is left, by the limit that leaves the least; None where there is no limit.
    """
    limits = [(limit, f"{kind}:{whose}") for limit, whose in _limits_of(user, key, kind)]
    for limit, name in limits if cost > 1 else ():
        left = _spend(limit, name, 0)
        if left.remaining < cost:
            return replace(left, allowed=False)
    least: Spent | None = None
    for limit, name in limits:
        spent = _spend(limit, name, cost)
        if least is None or not spent.allowed or spent.remaining < least.remaining:
            least = spent
        if not spent.allowed:
            break
    return least


def visitor_spend(address: str, kind: str, *, is_known: bool = False) -> Spent | None:
    """Counts a request from a network address; where it `is_known` whose it is, as many are allowed as of a user."""
    limit = _limit(settings.API_RATE_LIMITS[kind if is_known else _OF_VISITOR[kind]])
    return _spend(limit, f"{kind}:address:{address}") if limit and address else None


def name_spend(name: str, device: str = "") -> Spent | None:
    """Counts an attempt to log in with a typed name, before its password is looked at; None where there is no limit.

    An attack on a name from many addresses uses up what strangers may try with it, and not what may be tried on a
    `device` where its owner has logged in before (blank: none of these), so that the owner is slowed elsewhere and
    nowhere locked out.
    """
    return attempt_spend(LOGIN_NAME, f"{name_digest(name)}{':' if device else ''}{device}")


def attempt_spend(kind: str, name: str, cost: int = 1) -> Spent | None:
    """Counts an attempt in the window of a name (`cost` 0: only looks); None where there is no limit of the kind.

    The names of LOGIN, attempts to come in, and of FAILURES, requests that could not say who they are from, are addresses.
    """
    limit = _limit(settings.API_RATE_LIMITS[kind])
    return _spend(limit, f"{kind}:{name}", cost) if limit else None


def name_digest(name: str) -> str:
    """Stands for a typed name in keys and cookies, of one length however long it is."""
    return hashlib.sha256(User.normalize_username(name).casefold().encode(errors="replace")).hexdigest()[:32]


def general_rate_limit() -> str:
    """The limit of a user, as the server's environment writes it; blank: none."""
    return str(settings.API_RATE_LIMITS[GENERAL])


def is_laxer(text: str, than: str) -> bool:
    """Whether a limit allows more than another, in a moment or in the long run; an empty one allows all there is."""
    limit, other = _limit(text), _limit(than)
    if other is None:
        return False
    return limit is None or limit.amount > other.amount or _rate(limit) > _rate(other)


def _limits_of(user: User, key: ApiKey | None, kind: str) -> Iterator[tuple[RateLimitItem, str]]:
    """A key's own limit holds beside the server's, and in place of the general one where it is laxer and was granted.

    For the costlier kinds it holds where it is the stricter one.
    """
    own, server = _limit(key.rate_limit) if key else None, _limit(settings.API_RATE_LIMITS[kind])
    if key and own and (kind == GENERAL or server is None or _rate(own) < _rate(server)):
        yield own, f"key:{key.prefix}"
        if kind == GENERAL and key.rate_limit_granted and is_laxer(key.rate_limit, than=general_rate_limit()):
            return
    if server:
        yield server, f"user:{user.pk}"


def _limit(text: str) -> RateLimitItem | None:
    return next(iter(_parsed(text)), None)


def _parsed(text: str) -> list[RateLimitItem]:
    if not text.strip():
        return []
    try:
        return parse_many(text)
    except ValueError as error:
        message = _("“%(text)s” is no rate limit: write a number and a time, such as 60/minute or 5000/hour.")
        raise Rejected("invalid_rate_limit", message, text=text) from error


def _rate(limit: RateLimitItem) -> Fraction:
    return Fraction(limit.amount, limit.get_expiry())


def _spend(limit: RateLimitItem, name: str, cost: int = 1) -> Spent:
    """Counts requests (0: only looks) in the current window, among all processes where Redis answers, else in this one."""
    length, now = limit.get_expiry(), int(time.time())
    window, elapsed = divmod(now, length)
    key = f"{query_caches.KEY_SPACE}:requests:{installation_id()}:{name}:{length}:{window}"
    shared = query_caches.shared_redis().ask(lambda redis: _in_redis(redis).incr(key, length, cost))
    count = _here().incr(key, length, cost) if shared is None else shared
    return Spent(
        limit=limit.amount,
        seconds=length,
        remaining=max(0, limit.amount - count),
        resets_in_s=length - elapsed,
        allowed=count <= limit.amount,
    )
