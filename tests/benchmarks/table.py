"""What the benchmarks share: timing, and the table that they print."""

import importlib.metadata
import importlib.util
import os
import platform
import sys
import time
from dataclasses import dataclass

import numpy as np

from retrieval.tokenize import JiebaTokenizer
from tests.benchmarks.corpora import Corpus

JIEBA_SHARE = 20
"""Cutting is timed on every 20th passage, and taken times 20."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    corpus: str
    measure: str
    ours: str
    other: str = ""
    ratio: str = ""


def timed(function, *arguments):
    """Seconds that a call takes, and its result."""
    started = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - started, result


def median_time(function, repeats: int = 5) -> float:
    """Median seconds of several calls."""
    return float(np.median([timed(function)[0] for _ in range(repeats)]))


def note(text: str) -> None:
    """Say on stderr what is going on; stdout holds the table."""
    print(text, file=sys.stderr)


def compare(label: str, corpus: Corpus, ours: float, other: float) -> Row:
    """A row of two durations in seconds."""
    return Row(corpus.name, label, milliseconds(ours), milliseconds(other), f"{float(f'{other / ours:.2g}'):,.10g}")


def milliseconds(seconds: float) -> str:
    """In three significant digits."""
    return f"{float(f'{seconds * 1_000:.3g}'):,.10g} ms"


def tokenizing_seconds(corpus: Corpus) -> float:
    """How long jieba takes for all passages, from a sample."""
    tokenize = JiebaTokenizer()
    tokenize("分词器先读词典")
    sample = corpus.passages[::JIEBA_SHARE]
    return timed(lambda: list(map(tokenize, sample)))[0] * len(corpus.passages) / len(sample)


def versions(*names: str) -> str:
    """Of those packages that are installed, with their names."""
    installed = [name for name in names if importlib.util.find_spec(name.replace("-", "_"))]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in installed)


def print_table(rows: list[Row], ratio: str = "other / Zhiku") -> None:
    """As Markdown, with what it was measured on; `ratio` says what is divided by what."""
    print(
        f"{os.cpu_count()} CPUs ({platform.machine()}), Python {platform.python_version()}, {versions('numpy', 'rank_bm25', 'bm25s')}\n"
    )
    print(f"| corpus | measured | Zhiku | other | {ratio} |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.corpus} | {row.measure} | {row.ours} | {row.other} | {row.ratio} |")
