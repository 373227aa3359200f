"""What a scrape reads: the counters of the processes, and what the shared tiers of the keyword cache hold now."""

import concurrent.futures
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import cast

from celery import current_app
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models import Min
from django.utils import timezone
from django_redis import get_redis_connection
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from redis import Redis
from redis.exceptions import RedisError

from kb.base.db.connections import ConnectionReturningExecutor
from kb.base.metrics import registry
from kb.content.models import Document

PATIENCE_SECONDS = 1.0


def exposition(accept: str) -> tuple[bytes, str]:
    """All metrics as Prometheus reads them.

    Args:
        accept: the scraper's Accept header; decides between the text format and OpenMetrics.

    Returns:
        The body and its content type.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Everything()), content_type


class _Everything:
    def collect(self) -> Iterator[Metric]:
        sizes = [_threads().submit(read) for read in READERS]
        yield from registry().collect()
        # Counters are wanted most while a server is down, so a scrape does not wait for one.
        done, late = concurrent.futures.wait(sizes, PATIENCE_SECONDS)
        for size in late:
            size.cancel()
        for size in sizes:
            if size in done and (metric := size.result()):
                yield metric


def _database_bytes() -> Metric | None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_total_relation_size('bm25_indexes')")
            (size,) = cursor.fetchone()
    except DatabaseError:
        return None
    return GaugeMetricFamily("zhiku_bm25_database_bytes", "Disk space of the table bm25_indexes", size)


def _redis_bytes() -> Metric | None:
    try:
        memory = get_redis_connection("bm25").info("memory")
    except RedisError:
        return None
    help_text = "Memory of the Redis server that holds the shared tier, with all else that it holds"
    return GaugeMetricFamily("zhiku_bm25_redis_memory_bytes", help_text, memory["used_memory"])


def _documents_waiting() -> Metric | None:
    """Also those whose worker was lost; paused uploads wait because somebody wants them to."""
    try:
        rows = Document.objects.filter(status=Document.Status.PENDING).exclude(batch__paused=True)
        count = rows.count()
    except DatabaseError:
        return None
    return GaugeMetricFamily("zhiku_documents_waiting", "Documents that no worker has taken up yet", count)


def _oldest_waiting() -> Metric | None:
    try:
        rows = Document.objects.filter(status=Document.Status.PENDING).exclude(batch__paused=True)
        since = rows.aggregate(since=Min("waiting_since"))["since"]
    except DatabaseError:
        return None
    age = 0.0 if since is None else (timezone.now() - since).total_seconds()
    return GaugeMetricFamily(
        "zhiku_documents_oldest_waiting_seconds", "How long the one that waits longest has waited", age
    )


def _queue_length() -> Metric | None:
    try:
        with Redis.from_url(settings.CELERY_BROKER_URL, socket_timeout=PATIENCE_SECONDS) as broker:
            length = cast(int, broker.llen(current_app.conf.task_default_queue))
    except (RedisError, ValueError):  # a broker by a socket's URL of Celery's own form
        return None
    return GaugeMetricFamily("zhiku_queue_length", "Tasks in the broker that no worker has fetched yet", length)


READERS: tuple[Callable[[], Metric | None], ...] = (
    _database_bytes,
    _redis_bytes,
    _documents_waiting,
    _oldest_waiting,
    _queue_length,
)


@lru_cache(maxsize=1)
def _threads() -> ConnectionReturningExecutor:
    return ConnectionReturningExecutor(max_workers=len(READERS), thread_name_prefix="metrics")
