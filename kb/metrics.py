"""What Prometheus reads. Labels name stages and tiers, never a knowledge base, a user or a query.

With PROMETHEUS_MULTIPROC_DIR set, all processes that share the folder are counted together.
"""

from prometheus_client import Counter, Gauge, Histogram

from retrieval.cache import PROCESS_TIER

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


def observe_cache(tier: str, field: str, amount: int) -> None:
    """Takes the counts of a `retrieval.cache.TieredCache`; see `TierStats` for the fields."""
    if field != "nbytes":
        CACHE_EVENTS.labels(tier, field).inc(amount)
    elif tier == PROCESS_TIER:
        CACHE_MEMORY.set(amount)
    else:
        CACHE_TRAFFIC.labels(tier).inc(amount)
