"""What Prometheus reads. Labels name stages and tiers, never a knowledge base, a user or a query.

With PROMETHEUS_MULTIPROC_DIR set, all processes that share the folder are counted together. Those whose port, if they have
one, is not for scrapers are read on METRICS_PORT.
"""

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, make_server

from django.conf import settings
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app, mmap_dict, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.samples import Sample

from retrieval.cache import PROCESS_TIER, TierStats
from retrieval.errors import Degradation

logger = logging.getLogger(__name__)

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
# A keyword search takes a millisecond, one that waits for a cold index seconds.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ENTRY_BYTES = 64  # of an entry, besides its name
# A small file takes tenths of a second, a book on a slow model an hour.
LONG_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0)


class AllocatedDict(mmap_dict.MmapedDict):
    """A file of counts that has its room on the disk before it is written.

    The library's is sparse: a write to a page that the disk has no room for is SIGBUS, which ends the process. Here what finds
    no room is left out, and written with a later count: the process goes on counting.
    """

    def __init__(self, filename: str) -> None:
        self._fname, self._f, self._positions = filename, cast(Any, None), {}

    def _init_value(self, key: str) -> None:
        if self._f is None:
            _allocate(self._fname, mmap_dict._INITIAL_MMAP_SIZE)
            super().__init__(self._fname)
        if key not in self._positions:
            if self._used + len(key) + _ENTRY_BYTES > self._capacity:
                _allocate(self._fname, 2 * self._capacity)
            super()._init_value(key)  # type: ignore[no-untyped-call]

    def read_value(self, key: str) -> tuple[float, float]:
        with suppress(OSError):
            return cast("tuple[float, float]", super().read_value(key))  # type: ignore[no-untyped-call]
        return 0.0, 0.0

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        with suppress(OSError):
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]


def _allocate(path: str, size: int) -> None:
    """Fills a file with zeros up to a size; raises OSError where there is no room, and leaves it as it was."""
    with open(path, "ab", buffering=0) as file:  # noqa: PTH123 - as the library
        former = file.tell()
        try:
            while (missing := size - file.tell()) > 0:
                file.write(bytes(missing))
        except OSError:
            if former:
                file.truncate(former)
            else:  # readers take an empty one for damaged
                Path(path).unlink()
            raise


values.MmapedDict = AllocatedDict  # type: ignore[attr-defined, assignment]

if os.environ.get(SHARED_FOLDER):
    # The counters below open their files in it.
    Path(os.environ[SHARED_FOLDER]).mkdir(parents=True, exist_ok=True)

CACHE_EVENTS = Counter(
    "zhiku_bm25_cache_events",
    "Look-ups, stores, errors, builds and updates of the keyword index cache",
    ["tier", "event"],
)
CACHE_TRAFFIC = Counter("zhiku_bm25_cache_traffic_bytes", "Payload bytes read from and written to a tier", ["tier"])
CACHE_MEMORY = Gauge(
    "zhiku_bm25_cache_memory_bytes", "Memory of the keyword indexes that processes hold", multiprocess_mode="livesum"
)
BUILD_SECONDS = Histogram("zhiku_bm25_build_seconds", "Full builds of a keyword index from stored postings")
HOT_QUERIES = Counter(
    "zhiku_hot_queries",
    "Look-ups and stores of whole responses; those in the shared tier follow a miss in memory",
    ["tier", "event"],
)
QUERY_VECTORS = Counter("zhiku_query_vectors", "Look-ups and stores of the vectors of queries", ["tier", "event"])
SEARCHES = Counter("zhiku_searches", "Searches by outcome", ["outcome"])
DEGRADATIONS = Counter("zhiku_degradations", "What searches could not do as asked", ["stage", "code"])
SEARCH_SECONDS = Histogram("zhiku_search_seconds", "Whole searches that were answered", buckets=SECONDS)
STAGE_SECONDS = Histogram(
    "zhiku_search_stage_seconds", "Stages of searches, the longest of each search", ["stage"], buckets=SECONDS
)

REQUESTS = Counter("zhiku_http_requests", "Requests by route, never by an id", ["route", "method", "status"])
REQUEST_SECONDS = Histogram("zhiku_http_request_seconds", "Requests until the last byte", ["route"], buckets=SECONDS)
RATE_LIMITED = Counter(
    "zhiku_http_rate_limited", "Requests that were refused because there were too many (429)", ["route"]
)
# "ready", "failed" or, put back for another worker, "returned".
PROCESSED = Counter("zhiku_documents", "Documents by the outcome of their processing", ["outcome"])
DOCUMENT_SECONDS = Histogram(
    "zhiku_document_stage_seconds",
    "Time of documents in each stage of their processing",
    ["stage"],
    buckets=LONG_SECONDS,
)
TASKS = Counter("zhiku_tasks", "Tasks of the workers by how they ended", ["task", "state"])
TASK_SECONDS = Histogram("zhiku_task_seconds", "Time of tasks of the workers", ["task"], buckets=LONG_SECONDS)
POOL = Gauge(
    "zhiku_db_pool_connections",
    "Connections to PostgreSQL that the processes hold (open, idle) and requests that wait for one (waiting)",
    ["state"],
    multiprocess_mode="livesum",
)


def observe_cache(tier: str, field: str, amount: int) -> None:
    """Takes the counts of a `retrieval.cache.TieredCache`; see `TierStats` for the fields."""
    if field != "nbytes":
        CACHE_EVENTS.labels(tier, field).inc(amount)
    elif tier == PROCESS_TIER:
        CACHE_MEMORY.set(amount)
    else:
        CACHE_TRAFFIC.labels(tier).inc(amount)


def observe_search(
    outcome: str, degraded: Iterable[Degradation], timings_ms: Mapping[str, float] | None = None
) -> None:
    """Counts a search ("found", "none", "unavailable"), its degradations, and its milliseconds by stage and "total"."""
    SEARCHES.labels(outcome).inc()
    for degradation in degraded:
        DEGRADATIONS.labels(degradation.stage, degradation.code.value).inc()
    for stage, milliseconds in (timings_ms or {}).items():
        (SEARCH_SECONDS if stage == "total" else STAGE_SECONDS.labels(stage)).observe(milliseconds / 1_000)


def registry() -> CollectorRegistry:
    """What has been counted: by all processes that share the folder, or by this one where there is none."""
    folder = os.environ.get(SHARED_FOLDER)
    if not folder:
        return REGISTRY
    # Takes what ended processes held out of the sums, however they ended; what they counted stays.
    for pid in {int(path.stem.rpartition("_")[2]) for path in Path(folder).glob("gauge_live*_*.db")}:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            with suppress(FileNotFoundError):  # another process was asked at the same time
                mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]
        except PermissionError:
            continue  # another user's, and alive
    shared = CollectorRegistry()
    MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
    return shared


def _samples() -> Iterator[Sample]:
    return (sample for metric in registry().collect() for sample in metric.samples)


def cache_lookups() -> dict[str, dict[str, tuple[int, int]]]:
    """Hits and misses by cache ("bm25", "hot_queries", "query_vectors") and tier, of the processes of `registry`."""
    caches = {
        "zhiku_bm25_cache_events_total": "bm25",
        "zhiku_hot_queries_total": "hot_queries",
        "zhiku_query_vectors_total": "query_vectors",
    }
    counted = {
        (caches[sample.name], sample.labels["tier"], sample.labels["event"]): int(sample.value)
        for sample in _samples()
        if sample.name in caches
    }
    return {
        cache: {
            tier: (counted.get((cache, tier, "hits"), 0), counted.get((cache, tier, "misses"), 0))
            for name, tier, event in counted
            if name == cache and event in {"hits", "misses"}
        }
        for cache in caches.values()
    }


def cache_counters() -> dict[str, dict[str, int]]:
    """The counts of the keyword index cache by tier, as the fields of `TierStats`, of the processes of `registry`."""
    counters: dict[str, dict[str, int]] = {}
    fields = {"zhiku_bm25_cache_traffic_bytes_total": "nbytes", "zhiku_bm25_cache_memory_bytes": "nbytes"}
    for sample in _samples():
        field = sample.labels.get("event") if sample.name == "zhiku_bm25_cache_events_total" else None
        if field := field or fields.get(sample.name):
            tier = sample.labels.get("tier", PROCESS_TIER)
            counters.setdefault(tier, asdict(TierStats()))[field] = int(sample.value)
    return counters


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """A scrape is nothing to tell of."""


def serve_metrics() -> None:
    """Answers scrapers on METRICS_PORT, where it is set; with METRICS_TOKEN only those that send it."""
    port = os.environ.get("METRICS_PORT")
    if not port:
        return
    host = os.environ.get("METRICS_HOST") or ("127.0.0.1" if settings.LOCAL else "0.0.0.0")  # noqa: S104
    try:
        server = make_server(host, int(port), _application, handler_class=_Quiet)
    except OSError as error:  # the process beside it has it, and tells for both where they share a folder
        logger.warning("This process serves no metrics on METRICS_PORT %s: %s.", port, error)
        return
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


def _application(
    environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], Any]
) -> Iterable[bytes]:
    token = os.environ.get("METRICS_TOKEN", "")
    scheme, _, sent = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if token and not (scheme.lower() == "bearer" and secrets.compare_digest(sent.strip().encode(), token.encode())):
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
        return [b"Send METRICS_TOKEN as Authorization: Bearer.\n"]
    return cast("Iterable[bytes]", make_wsgi_app(registry())(environ, start_response))
