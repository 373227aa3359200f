from collections.abc import Iterator
from contextlib import contextmanager

from celery import current_app
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError


def workers() -> list[str]:
    """The names of the Celery workers that answer within a second; none where the broker is out of reach."""
    try:
        with _broker() as broker:
            replies = current_app.control.ping(timeout=PING_SECONDS, connection=broker) or []
    except BROKER_DOWN:
        return []
    return sorted(name for reply in replies for name in reply)


PING_SECONDS = 1


BROKER_DOWN = (OperationalError, RedisError, OSError)


@contextmanager
def _broker() -> Iterator[Connection]:
    """A connection to the broker of its own; Celery's would be tried again and again."""
    with current_app.connection_for_write() as broker:
        broker.ensure_connection(max_retries=1, interval_start=0, timeout=PING_SECONDS)
        yield broker
