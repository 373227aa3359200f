"""How fast the keyword index is beside rank_bm25 and bm25s: `make bench`, or `python -m tests.benchmarks.keyword --help`.

Every ratio compares times of one run: engines answer each query in turn, so that whatever else the machine does slows
all of them down. Nothing here fails on a figure.
"""

import argparse
import gc
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from retrieval.bm25 import OkapiIndex, require_dependencies
from retrieval.errors import DependencyMissing
from retrieval.payload import PayloadCodec
from retrieval.postings import hash_terms
from tests.benchmarks.corpora import Corpus, generate, read_beir
from tests.benchmarks.engines import BM25S, RankBM25, Zhiku
from tests.benchmarks.peak_memory import save_rows
from tests.benchmarks.table import Row, compare, median_time, note, print_table, timed, tokenizing_seconds

STARD = "stard-law"
GENERATED = "generated"
CHANGED_CHUNKS = 50
WARM_UP = 20


def query_times(engines, queries: list[list[str]], k: int):
    """Seconds of every query, by engine: array of shape (n_queries,). The engines take turns in going first."""
    for tokens in queries[:WARM_UP]:
        for engine in engines:
            engine.search(tokens, k)
    seconds = {engine.name: np.empty(len(queries)) for engine in engines}
    for number, tokens in enumerate(queries):
        first = number % len(engines)
        for engine in engines[first:] + engines[:first]:
            seconds[engine.name][number], _ = timed(engine.search, tokens, k)
    return seconds


def query_rows(corpus: Corpus, ours: Zhiku, other, queries: list[list[str]]) -> list[Row]:
    """Median and 95th percentile of the query time beside another engine's."""
    rows = []
    for k in (60, 10):
        seconds = query_times([ours, other], queries, k)
        # The tail of a handful of queries says nothing.
        for label, percentile in (("p50", 50), ("p95", 95))[: 2 if len(queries) >= 100 else 1]:
            mine, theirs = (float(np.percentile(seconds[name], percentile)) for name in (ours.name, other.name))
            rows.append(
                compare(f"query, k = {k}, {label} of {len(queries):,}, against {other.name}", corpus, mine, theirs)
            )
    return rows


def agreement_row(corpus: Corpus, ours: Zhiku, oracle: RankBM25, queries: list[list[str]]) -> Row:
    """For how many queries the ten best scores are the library's to 1e-4."""
    alike = 0
    for tokens in queries:
        expected = oracle.search(tokens, 10)[1]
        found = np.zeros(len(expected))
        scores = ours.search(tokens, 10)[1]
        found[: len(scores)] = scores
        alike += bool(np.allclose(found, expected, rtol=1e-4))
    return Row(corpus.name, "ten best scores as rank_bm25's to 1e-4", f"{alike} of {len(queries)} queries")


def change_row(corpus: Corpus, index: OkapiIndex, rows, build_seconds: float) -> Row:
    """One document added, and the first query after it."""
    terms = hash_terms(corpus.queries[0])
    added = [(len(rows) + row[0], *row[1:]) for row in rows[:CHANGED_CHUNKS]]
    changed = np.array([row[0] for row in added])
    seconds = median_time(lambda: index.with_changes(changed, added).search(terms, 60))
    return compare(f"add {CHANGED_CHUNKS} chunks and search, against a full build", corpus, seconds, build_seconds)


def load_seconds(index: OkapiIndex) -> tuple[float, int]:
    """How long a signed payload takes to become an index, and its size in bytes."""
    codec = PayloadCodec(b"benchmark")
    payload = codec.seal("key", index.state())
    return median_time(lambda: OkapiIndex.from_state(codec.open("key", payload))), len(payload)


def memory_row(corpus: Corpus, rows) -> Row:
    """Peak memory of a build in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows")
        save_rows(path, rows)
        command = [sys.executable, "-m", "tests.benchmarks.peak_memory", str(path)]
        peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return Row(
        corpus.name, "peak resident memory of a process that reads the postings and builds", f"{peak / 1e9:.2f} GB"
    )


def size_row(corpus: Corpus, index: OkapiIndex, payload_bytes: int) -> Row:
    """Memory a posting, and the size of the payload."""
    held = f"{index.nbytes / index.posting_count:.1f} bytes a posting"
    total = f"{index.posting_count:,} postings, payload {payload_bytes / 1e6:.1f} MB"
    return Row(corpus.name, f"memory of the index ({total})", held)


def measure(corpus: Corpus, query_count: int, slow_query_count: int) -> list[Row]:
    """All rows of one corpus."""
    note(f"{corpus.name}: storing the postings of {len(corpus.chunks):,} chunks ...")
    stored = list(corpus.rows())
    index = OkapiIndex.build(stored)
    ours = Zhiku(index)
    queries = corpus.queries[:query_count]
    # What the corpora hold is never garbage; looking through it would interrupt a query now and then.
    gc.freeze()
    build_seconds = median_time(lambda: OkapiIndex.build(stored))
    load, payload_bytes = load_seconds(index)
    table = [change_row(corpus, index, stored, build_seconds), size_row(corpus, index, payload_bytes)]
    table.append(memory_row(corpus, stored))
    if importlib.util.find_spec("bm25s"):
        note("bm25s: indexing and searching ...")
        table = query_rows(corpus, ours, BM25S(corpus.chunks), queries) + table
    else:
        note("bm25s is not installed, so nothing is compared with it: run `pip install bm25s`.")
    note("rank_bm25: indexing and searching ...")
    slow_queries = queries[:: max(1, len(queries) // slow_query_count)][:slow_query_count]
    seconds, oracle = timed(RankBM25, corpus.chunks)
    label = "BM25Okapi"
    if corpus.passages:
        seconds += tokenizing_seconds(corpus)
        label = "jieba + BM25Okapi"
    return [
        *query_rows(corpus, ours, oracle, slow_queries),
        *table,
        agreement_row(corpus, ours, oracle, slow_queries),
        compare(f"rebuild from stored postings, against {label}", corpus, build_seconds, seconds),
        compare(f"load a signed payload, against {label}", corpus, load, seconds),
    ]


def corpora(arguments: argparse.Namespace):
    """The corpora asked for, one at a time."""
    if arguments.set in {STARD, "all"}:
        directory = Path(os.environ.get("ZHIKU_EVAL_DATA") or ".", STARD)
        if (directory / "corpus.jsonl").is_file():
            yield read_beir(directory, arguments.cache)
        else:
            note(f"There is no {STARD} under ZHIKU_EVAL_DATA: set it to the folder that holds {STARD}/corpus.jsonl.")
    if arguments.set in {GENERATED, "all"}:
        yield generate(arguments.chunks)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.keyword", description=__doc__)
    parser.add_argument("--set", choices=[STARD, GENERATED, "all"], default="all", help="what to search")
    parser.add_argument("--queries", type=int, default=1_543, help="queries for the fast engines")
    parser.add_argument("--slow-queries", type=int, default=20, help="queries for rank_bm25")
    parser.add_argument("--chunks", type=int, default=200_000, help="size of the generated corpus")
    cache = Path(tempfile.gettempdir(), "zhiku-benchmarks")
    parser.add_argument("--cache", type=Path, default=cache, help="folder that keeps the tokens of evaluation sets")
    arguments = parser.parse_args(argv)
    try:
        require_dependencies()
    except DependencyMissing as error:
        parser.exit(1, f"{error}\n")
    rows = []
    for corpus in corpora(arguments):
        rows += measure(corpus, arguments.queries, arguments.slow_queries)
    print_table(rows)


if __name__ == "__main__":
    main()
