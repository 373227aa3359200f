"""The index over many vectors beside a comparison of all of them: how much it finds, and how much sooner; filtered, too.

Run by `make bench`, or alone as `python -m tests.benchmarks.vectors [VECTORS]`. Two kinds of vectors of 1,024 dimensions: such as an
embedding model makes, which lie about a few dozen directions and in groups, and independent noise, in which every vector is
about as far from every other, so that no index can find the nearest much sooner than by comparing all.
"""

import shutil
import sys
import time

import numpy as np

from tests.benchmarks.store import start_servers
from tests.benchmarks.table import Row, milliseconds, note, print_table

VECTORS, DIMENSION, DEPTH = 100_000, 1_024, 25
QUERIES = 60
DIRECTIONS, GROUPS = 48, 500
SHARES = (0.5, 0.01, 0.0005)
WRITTEN_AT_ONCE = 5_000


def like_a_models(count: int, random: np.random.Generator) -> np.ndarray:
    """Groups about some dozen directions, and a little noise."""
    shape = np.random.default_rng(9)
    directions = shape.standard_normal((DIRECTIONS, DIMENSION), dtype=np.float32) / np.sqrt(DIRECTIONS)
    groups = shape.standard_normal((GROUPS, DIRECTIONS), dtype=np.float32)
    places = groups[random.integers(0, GROUPS, count)]
    places = places + 0.7 * random.standard_normal(places.shape, dtype=np.float32)
    return places @ directions + 0.15 * random.standard_normal((count, DIMENSION), dtype=np.float32)


def noise(count: int, random: np.random.Generator) -> np.ndarray:
    return random.standard_normal((count, DIMENSION), dtype=np.float32)


def measure(name: str, make, count: int) -> list[Row]:
    """The rows of one kind of vectors."""
    from kb.index.pgvector import PgVectorStore, measure_due
    from kb.index.vector_index import maintain_vector_indexes
    from kb.models import VectorIndex
    from tests.factories import make_kb
    from tests.kb.index.vectors import MODEL, add_chunks, add_vectors

    random = np.random.default_rng(1)
    kb = make_kb(name=name)
    vectors = _unit(make(count, random)).astype(np.float16).astype(np.float32)
    queries = _unit(make(QUERIES, random)).astype(np.float16).astype(np.float32)
    chunk_ids = np.array(add_chunks(kb, count))
    for start in range(0, count, WRITTEN_AT_ONCE):
        part = slice(start, start + WRITTEN_AT_ONCE)
        add_vectors(kb, chunk_ids[part].tolist(), vectors[part])
    store = PgVectorStore()

    def search(**options) -> tuple[list[np.ndarray], float]:
        found, seconds = [], []
        for query in queries:
            started = time.perf_counter()
            found.append(store.search(kb.pk, MODEL, query, DEPTH, **options)[0])
            seconds.append(time.perf_counter() - started)
        return found, float(np.median(seconds))

    _execute("ANALYZE kb_chunkembedding")
    all_compared = search()[1]
    started = time.perf_counter()
    maintain_vector_indexes(kb.pk)
    note(f"{name}: built the index over {count:,} vectors in {time.perf_counter() - started:.0f} s")
    measure_due()
    row = VectorIndex.objects.get(knowledge_base=kb)
    how = (
        f"{row.get_method_display()}, effort {row.effort}"
        if row.is_used
        else "all compared, since the index finds too few"
    )
    search()
    found, seconds = search()
    nearest = _nearest(vectors, queries, chunk_ids)
    recall = float(np.mean([np.isin(theirs, mine).mean() for mine, theirs in zip(found, nearest, strict=True)]))
    rows = [
        Row(
            name,
            f"nearest {DEPTH} of {count:,}: {how}",
            milliseconds(seconds),
            milliseconds(all_compared),
            f"{all_compared / seconds:.1f}",
        ),
        Row(
            name,
            f"recall@{DEPTH} of what a search finds; of the index alone {row.recall:.3f}",
            f"{recall:.3f}",
            "1.000",
        ),
    ]
    for share in SHARES:
        allowed = np.sort(random.choice(chunk_ids, max(1, int(share * count)), replace=False))
        least = min(DEPTH, allowed.size)
        filtered, seconds = search(only=allowed)
        short = sum(len(each) < least for each in filtered)
        rows.append(
            Row(
                name,
                f"filtered to {allowed.size:,}: searches with fewer hits than exist",
                f"{short} of {QUERIES}",
                "0",
                "",
            )
        )
    return rows


def _nearest(vectors: np.ndarray, queries: np.ndarray, chunk_ids: np.ndarray) -> list[np.ndarray]:
    scores = queries @ vectors.T
    return [chunk_ids[np.argpartition(-row, DEPTH)[:DEPTH]] for row in scores]


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _execute(statement: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else VECTORS
    folder = start_servers()
    from config import embedded

    try:
        print_table([*measure("as a model's", like_a_models, count), *measure("noise", noise, count)])
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
