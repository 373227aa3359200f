"""A restore beside the backup that it is of, indexes included, in one run.

Run alone as `python -m tests.benchmarks.restore [CHUNKS]`: INDEX_BUILD_MEMORY_MB=256 INDEX_BUILD_WORKERS=2 shows what it was with the
memory that PostgreSQL had before.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.benchmarks.corpora import Corpus
from tests.benchmarks.store import start_servers, store_corpus
from tests.benchmarks.table import Row, note, print_table
from tests.benchmarks.vectors import WRITTEN_AT_ONCE, like_a_models
from tests.serving import ROOT

CHUNKS = 120_000
WORDS, VOCABULARY = 60, 50_000


def texts(count: int) -> Corpus:
    """Passages of words as frequent as those of a language."""
    random = np.random.default_rng(3)
    ranks = np.minimum(random.zipf(1.2, (count, WORDS)), VOCABULARY)
    tokens = [[f"w{rank}" for rank in row] for row in ranks.tolist()]
    return Corpus("generated", tokens, [], [" ".join(row) for row in tokens])


def fill(count: int) -> None:
    """A knowledge base with postings and vectors of 1,024 dimensions."""
    from kb.models import Chunk
    from tests.kb.index.vectors import add_vectors

    kb = store_corpus(texts(count))
    random = np.random.default_rng(1)
    chunk_ids = list(Chunk.objects.filter(knowledge_base=kb).order_by("pk").values_list("pk", flat=True))
    for start in range(0, count, WRITTEN_AT_ONCE):
        part = chunk_ids[start : start + WRITTEN_AT_ONCE]
        vectors = like_a_models(len(part), random)
        add_vectors(kb, part, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def manage(*arguments: str) -> float:
    """Seconds that a command takes."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "manage.py", *arguments], cwd=ROOT, check=True)
    return time.perf_counter() - started


def main(count: int) -> None:
    """Measure and print."""
    folder = start_servers()
    from django.db import connection, connections

    from config import embedded
    from kb.index.vector_index import maintain_vector_indexes

    try:
        fill(count)
        maintain_vector_indexes()
        connections.close_all()
        connection.close_pool()
        note(f"{count:,} chunks with vectors are stored and indexed")
        with tempfile.TemporaryDirectory() as kept:
            target = str(Path(kept) / "all.tar")
            backed_up = manage("backup", target)
            restored = manage("restore", target, "--force")
        label = f"restore of {count:,} chunks with every index, beside its backup"
        print_table(
            [
                Row(
                    "generated",
                    label,
                    f"{restored:.0f} s",
                    f"{backed_up:.0f} s",
                    f"restore / backup {restored / backed_up:.2f}",
                )
            ]
        )
    finally:
        os.environ["ZHIKU_DATA_DIR"] = str(folder)
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CHUNKS)
