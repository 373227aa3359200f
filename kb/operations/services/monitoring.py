"""What a scrape reads: the counters of the processes, and what the shared tiers of the keyword cache hold now."""

import concurrent.futures
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, cast

from django.conf import settings
from django.db import DatabaseError
from django.db.models import Min, QuerySet
from django.utils import timezone
from django_redis import get_redis_connection
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from redis import Redis
from redis.exceptions import RedisError

from kb.base.db.transactions import ConnectionReturningExecutor, fetch_all
from kb.base.metrics import registry
from kb.content.models import Document
from kb.jobs.leases import DOCUMENTS_QUEUE, LONG_QUEUE

PATIENCE_SECONDS = 1.0
QUEUES: Final = ("celery", DOCUMENTS_QUEUE, LONG_QUEUE, "moves")
# The last of a broker by a socket's URL, which is of Celery's own form.
UNREADABLE = (DatabaseError, RedisError, ValueError)


def exposition(accept: str) -> tuple[bytes, str]:
    """All metrics and their content type: the text format or OpenMetrics, by the scraper's Accept header."""
    encode, content_type = choose_encoder(accept)
    return encode(_Everything()), content_type


class _Everything:
    def collect(self) -> Iterator[Metric]:
        sizes = [(_threads().submit(read), name, text) for read, name, text in READERS]
        yield from registry().collect()
        # Counters are wanted most while a server is down, so a scrape does not wait for one.
        done, late = concurrent.futures.wait([size for size, _, _ in sizes], PATIENCE_SECONDS)
        for size in late:
            size.cancel()
        for size, name, text in sizes:
            if size in done and not isinstance(size.exception(), UNREADABLE):
                yield GaugeMetricFamily(name, text, size.result())


def _waiting() -> QuerySet[Document]:
    """Also those whose worker was lost; paused uploads wait because somebody wants them to."""
    return Document.objects.filter(status=Document.Status.PENDING).exclude(batch__paused=True)


def _longest_wait() -> float:
    since = _waiting().aggregate(since=Min("waiting_since"))["since"]
    return 0.0 if since is None else (timezone.now() - since).total_seconds()


def queue_length() -> int:
    with Redis.from_url(settings.CELERY_BROKER_URL, socket_timeout=PATIENCE_SECONDS) as broker:
        return sum(cast(int, broker.llen(name)) for name in QUEUES)


# With the name and the help of the metric.
READERS: tuple[tuple[Callable[[], float], str, str], ...] = (
    (
        lambda: fetch_all("SELECT pg_total_relation_size('bm25_indexes')")[0][0],
        "zhiku_bm25_database_bytes",
        "Disk space of the table bm25_indexes",
    ),
    (
        lambda: get_redis_connection("bm25").info("memory")["used_memory"],
        "zhiku_bm25_redis_memory_bytes",
        "Memory of the Redis server that holds the shared tier, with all else that it holds",
    ),
    (lambda: _waiting().count(), "zhiku_documents_waiting", "Documents that wait for a worker"),
    (_longest_wait, "zhiku_documents_oldest_waiting_seconds", "How long the one that waits longest has waited"),
    (queue_length, "zhiku_queue_length", "Tasks in the broker that no worker has fetched yet"),
)


@lru_cache(maxsize=1)
def _threads() -> ConnectionReturningExecutor:
    return ConnectionReturningExecutor(max_workers=len(READERS), thread_name_prefix="metrics")
