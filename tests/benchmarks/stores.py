"""The same vectors in every store, asked the same queries in one run: recall against exact search, and milliseconds.

Run as `python -m tests.benchmarks.stores [COUNT [DIMENSION]]`. Milvus Lite stands for Milvus: it says what the way there and
back costs, and nothing of a cluster's speed. ChromaDB is the server that comes with its package, on the same machine.
"""

import os
import shutil
import statistics
import sys
import time

import numpy as np

from tests import chroma_server
from tests.benchmarks.store import start_servers
from tests.benchmarks.table import note

COUNT, DIMENSION = 20_000, 384
QUERIES, K = 100, 25
ROWS_A_CALL = 2_000


def fill(kb, vectors):
    from tests.kb.index.vectors import add_chunks, add_vectors

    chunk_ids = add_chunks(kb, len(vectors))
    for start in range(0, len(vectors), ROWS_A_CALL):
        add_vectors(kb, chunk_ids[start : start + ROWS_A_CALL], vectors[start : start + ROWS_A_CALL])
    return np.array(chunk_ids)


def asked(store, kb, queries):
    """Milliseconds and found chunks of each query."""
    from tests.kb.index.copies import vectors_of
    from tests.kb.index.vectors import MODEL

    searching = vectors_of(store)
    times, found = [], []
    for query in queries:
        started = time.perf_counter()
        chunk_ids, _ = searching.search(kb.pk, MODEL, query, K)
        times.append((time.perf_counter() - started) * 1_000)
        found.append(set(chunk_ids.tolist()))
    return times, found


def load_lite(kb):
    """Has Milvus Lite make its indexes: what it has just taken in it compares one by one, in Python."""
    from kb.index.mirrors.registry import mirror

    client = mirror("milvus")._client
    for name in mirror("milvus").collections(kb.pk):
        client.flush(name)
        client.release_collection(name)
        client.load_collection(name)


def main(count, dimension):
    folder = start_servers()
    try:
        from django.conf import settings

        (folder / "chroma").mkdir()
        with chroma_server.running(folder / "chroma") as url:
            settings.MILVUS_URI, settings.CHROMA_URL = str(folder / "milvus.db"), url
            settings.STORE_SECONDS = 60.0
            measure(count, dimension)
    finally:
        from config import embedded
        from kb.index.mirrors import registry

        for each in registry._held.mirrors.values():
            if each.store == "milvus":
                each._client.close()
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(count, dimension):
    from kb.index.vector_index import maintain_vector_indexes
    from tests.factories import make_kb
    from tests.kb.index.copies import use
    from tests.kb.index.vectors import clustered, unit

    vectors = clustered(count, clusters=200, dimension=dimension)
    noise = np.random.default_rng(3).standard_normal((QUERIES, dimension)) * 0.3
    queries = unit(vectors[:QUERIES] + noise / np.sqrt(dimension)).astype(np.float32)
    kb = make_kb()
    chunk_ids = fill(kb, vectors)
    exact = [set(chunk_ids[np.argsort(-(vectors @ query))[:K]].tolist()) for query in queries]

    def row(name, store, seconds):
        asked(store, kb, queries[:5])
        times, found = asked(store, kb, queries)
        recall = statistics.mean(len(a & b) / K for a, b in zip(exact, found, strict=True))
        p95 = sorted(times)[int(0.95 * len(times))]
        note(
            f"{name:<28} recall@{K} {recall:.4f}   p50 {statistics.median(times):6.2f} ms   p95 {p95:6.2f} ms   fill {seconds:6.1f} s"
        )

    note(f"{count:,} vectors of {dimension} dimensions, {QUERIES} queries, k={K}")
    row("PostgreSQL, exact", "postgres", 0.0)
    for store in ("milvus", "chroma"):
        started = time.perf_counter()
        use(kb, store)
        if store == "milvus":
            load_lite(kb)
        row("Milvus Lite" if store == "milvus" else "ChromaDB, over HTTP", store, time.perf_counter() - started)
    use(kb, "postgres")
    from django.conf import settings

    settings.VECTOR_INDEX_MIN_ROWS = 1
    started = time.perf_counter()
    maintain_vector_indexes(kb.pk)
    row("PostgreSQL, HNSW", "postgres", time.perf_counter() - started)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(*(int(each) for each in (sys.argv[1:] + [COUNT, DIMENSION][len(sys.argv) - 1 :])))
