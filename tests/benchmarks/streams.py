"""Searches while 200 answers are streamed beside them, against searches alone; and what is added before a first token.

`manage.py serve` as it is shipped, on a knowledge base of 3,000 chunks; a chat model on the loopback writes five pieces a
second for each stream. Both sides take turns within one run. The first token is measured from the question to the first
piece of its answer, without the search's own time, on a model that answers at once; beside it a plain request that is
authenticated and lists knowledge bases, since a busy machine delays both.

Run by `make bench`, or alone as `python -m tests.benchmarks.streams [--streams N] [--rate PIECES]`.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.benchmarks.corpora import generate
from tests.benchmarks.table import Row, milliseconds, note, print_table
from tests.serving import ROOT, environment, free_port, serving

CHUNKS = 3_000
QUESTIONS = 300
NAME = "streams"


@contextlib.contextmanager
def chat_model(rate: float) -> Iterator[str]:
    """Its address."""
    command = [sys.executable, "-m", "tests.benchmarks.streams_model", str(rate)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.terminate()


def fill(folder: Path, variables: dict[str, str]) -> tuple[int, str, list[str]]:
    """The knowledge base's id, a key for it, and questions."""
    corpus = generate(CHUNKS, query_count=QUESTIONS, vocabulary=20_000)
    source = folder / "set"
    source.mkdir()
    with (source / "corpus.jsonl").open("w") as lines:
        for number, tokens in enumerate(corpus.chunks):
            lines.write(json.dumps({"_id": str(number), "title": "", "text": " ".join(tokens)}) + "\n")
    manage("import_beir", str(source), "--kb", NAME, variables=variables)
    key = manage("create_api_key", "--user", "admin", "--scope", "read", variables=variables).split()[-1]
    kb = "from kb.models import KnowledgeBase; print(KnowledgeBase.objects.get(name='streams').pk)"
    number = int(manage("shell", "-v", "0", "-c", kb, variables=variables).split()[-1])
    return number, key, [" ".join(query) for query in corpus.queries]


def manage(*arguments: str, variables: dict[str, str]) -> str:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout


def web_process(serve: int) -> int:
    """The process that answers, below `manage.py serve` and gunicorn's own."""

    def children(pid: int) -> list[int]:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    gunicorn = next(pid for pid in children(serve) if b"gunicorn" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return children(gunicorn)[0]


def rows(found: dict[str, list[dict]], streams: int) -> list[Row]:
    """What the clients measured, all rounds together; the rounds one by one are said beside the table."""

    def compared(label: str, ours: tuple[str, str], other: tuple[str, str]) -> Row:
        """Two kinds of requests on two sides, p50 and p95."""
        found_here = [
            np.percentile([each for one in found[side] for each in one[what]], (50, 95)) for side, what in (ours, other)
        ]
        shown = [f"{milliseconds(p50)}, {milliseconds(p95)}" for p50, p95 in found_here]
        p50, p95 = found_here[0] / found_here[1]
        return Row(corpus, f"{label}, p50 and p95", *shown, f"{p50:.2f}, {p95:.2f}")

    def of_rounds(side: str, what: str) -> np.ndarray:
        return np.array([np.percentile(one[what], 95) for one in found[side]])

    corpus = f"generated, {CHUNKS:,} chunks"
    memory = [np.median([one["kib"] for one in found[side]]) / 1024 for side in ("with", "without")]
    ratios = of_rounds("with", "searches") / of_rounds("without", "searches")
    note("by round, p95 of searches beside streams / alone: " + ", ".join(f"{each:.2f}" for each in ratios))
    for side in ("with", "without"):
        each_round = ", ".join(milliseconds(each) for each in of_rounds(side, "first"))
        note(f"by round, p95 of what is added before the first token {side} streams: {each_round}")
    note("pieces a second: " + ", ".join(f"{one['pieces_a_second']:.0f}" for one in found["with"]))
    return [
        compared(f"search beside {streams} streams, against alone", ("with", "searches"), ("without", "searches")),
        compared("added before the first token, against a plain request", ("without", "first"), ("without", "plain")),
        compared(f"the same, both beside {streams} streams", ("with", "first"), ("with", "plain")),
        Row(
            corpus,
            f"memory of the web process with {streams} streams, without",
            *(f"{each:.0f} MiB" for each in memory),
        ),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.streams", description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=200, help="open at once (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=5.0, help="pieces a second of each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of searching, a side and round (default: %(default)s)"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="zhiku-benchmark-"))
    (folder / "data").mkdir()
    try:
        with chat_model(options.rate) as address:
            port = free_port()
            variables = environment(folder / "data") | {
                "LLM_BASE_URL": address,
                "LLM_MODEL": "slow",
                "CACHE_ENABLED": "false",
                "RERANKER_MODEL": "",
            }
            with serving(port, variables) as (process, _printed):
                kb, key, questions = fill(folder, variables)
                note(f"{CHUNKS:,} chunks are there")
                plan = {
                    "port": port,
                    "key": key,
                    "kb": kb,
                    "pid": web_process(process.pid),
                    "questions": questions,
                    **{name: vars(options)[name] for name in ("streams", "rounds", "seconds")},
                }
                command = [sys.executable, "-m", "tests.benchmarks.streams_clients"]
                done = subprocess.run(
                    command, cwd=ROOT, input=json.dumps(plan), stdout=subprocess.PIPE, text=True, check=True
                )
            print_table(rows(json.loads(done.stdout), options.streams), ratio="Zhiku / other")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
