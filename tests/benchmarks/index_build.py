"""The time a vector for building an HNSW index, at two sizes, in one run: with enough memory it hardly grows.

Run alone as `python -m tests.benchmarks.index_build [SMALL] [LARGE]`; INDEX_BUILD_MEMORY_MB=256 shows what it was with the memory that
PostgreSQL had before.
"""

import shutil
import sys
import time

import numpy as np

from tests.benchmarks.store import start_servers
from tests.benchmarks.table import Row, note, print_table
from tests.benchmarks.vectors import DIMENSION, WRITTEN_AT_ONCE, like_a_models

SMALL, LARGE = 50_000, 215_616


def build(count: int) -> tuple[float, int]:
    """Seconds for the index of so many vectors, and the bytes of memory that the build got."""
    from kb.index.vector_index import maintain_vector_indexes, most_build_bytes, spaces_without_index
    from tests.factories import make_kb
    from tests.kb.index.vectors import add_chunks, add_vectors

    kb = make_kb(name=f"{count} vectors")
    chunk_ids = add_chunks(kb, count)
    random = np.random.default_rng(count)
    for start in range(0, count, WRITTEN_AT_ONCE):
        part = chunk_ids[start : start + WRITTEN_AT_ONCE]
        vectors = like_a_models(len(part), random)
        add_vectors(kb, part, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    note(f"{count:,} vectors are stored")
    [space] = spaces_without_index(kb.pk)
    given = min(space.build_bytes, most_build_bytes())
    started = time.perf_counter()
    maintain_vector_indexes(kb.pk)
    seconds = time.perf_counter() - started
    note(f"{count:,} vectors: {seconds:.1f} s with {given / 1024**2:,.0f} MB")
    kb.delete()
    maintain_vector_indexes()
    return seconds, given


def main(small: int, large: int) -> None:
    """Measure and print."""
    folder = start_servers()
    from django.conf import settings

    from config import embedded

    settings.VECTOR_INDEX_MIN_ROWS = min(small - 1, 20_000)
    try:
        few, many = build(small)[0], build(large)[0]
        rate = (many / large) / (few / small)
        label = f"HNSW of {large:,} beside {small:,} vectors of {DIMENSION:,}, time a vector"
        print_table([Row("generated", label, f"{many:.1f} s", f"{few:.1f} s", f"{rate:.2f} times the time a vector")])
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:3])) if len(sys.argv) > 2 else main(SMALL, LARGE)
