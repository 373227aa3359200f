"""One REDIS_URL, in the forms that its users want: the broker in its database, the cache in the next one."""

from urllib.parse import parse_qs, urlencode, urlsplit

SOCKET = "unix"


def broker_url(redis_url: str) -> str:
    """The URL for Celery, which names a socket's database `virtual_host`."""
    parts = urlsplit(redis_url)
    if parts.scheme != SOCKET:
        return parts._replace(path=f"/{_database(redis_url)}").geturl()
    query = urlencode({"virtual_host": _database(redis_url)})
    return f"redis+socket://{parts.netloc}{parts.path}?{query}"


def cache_url(redis_url: str) -> str:
    """The URL for django-redis: the database after the broker's, which may be evicted from."""
    parts = urlsplit(redis_url)
    database = _database(redis_url) + 1
    if parts.scheme != SOCKET:
        return parts._replace(path=f"/{database}").geturl()
    return f"unix://{parts.netloc}{parts.path}?{urlencode({'db': database})}"


def _database(redis_url: str) -> int:
    parts = urlsplit(redis_url)
    if parts.scheme == SOCKET:
        return int(parse_qs(parts.query).get("db", ["0"])[0])
    return int(parts.path.strip("/") or 0)
