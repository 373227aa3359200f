"""How fast documents become searchable: the passages of stard-law as a program hands them over, and as files.

Run by `make bench`, or alone as `python -m tests.benchmarks.ingest [PASSAGES [FILES]]`.
"""

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from unittest import mock

import psutil

from tests.benchmarks.store import STARD, start_servers
from tests.benchmarks.table import Row, note, print_table

FILES = 300
STAGES = {
    "parse": ("kb.services.indexing", "_parse"),
    "cut": ("kb.services.indexing", "split"),
    "tokenise": ("kb.ingest.index", "tokenize"),
    "embed": ("kb.ingest.index", "embed"),
    "write chunks, postings and vectors": ("kb.ingest.index", "copy_rows"),
    "write documents": ("kb.services.whole_documents", "copy_rows"),
}


@contextmanager
def staged():
    """Seconds spent in each stage, by its name."""
    seconds: dict[str, float] = defaultdict(float)

    def timing(stage, function):
        def timed(*arguments, **keywords):
            started = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                seconds[stage] += time.perf_counter() - started

        return timed

    with ExitStack() as patches:
        for stage, (module, name) in STAGES.items():
            function = getattr(import_module(module), name)
            patches.enter_context(mock.patch(f"{module}.{name}", timing(stage, function)))
        yield seconds


def measure(label: str, work) -> list[Row]:
    """Chunks a second end to end, memory, and the share of each stage; `work` does all of it."""
    from kb.models import Chunk

    process, before = psutil.Process(), Chunk.objects.count()
    resident, started = process.memory_info().rss, time.perf_counter()
    with staged() as seconds:
        work()
    took = time.perf_counter() - started
    chunks = Chunk.objects.count() - before
    grown = process.memory_info().rss
    rows = [
        Row(label, "chunks a second, end to end", f"{chunks / took:,.0f}"),
        Row(label, "memory at the start and at the end", f"{resident >> 20} MiB", f"{grown >> 20} MiB"),
    ]
    rows += [Row(label, f"share of: {stage}", f"{100 * spent / took:.0f} %") for stage, spent in seconds.items()]
    rest = took - sum(seconds.values())
    return [*rows, Row(label, "share of: all else", f"{100 * rest / took:.0f} %")]


def import_sample(kb, directory: Path, count: int | None) -> None:
    """The first passages of a corpus, each a document of one chunk."""
    from kb.services.beir import import_passages

    with tempfile.TemporaryDirectory() as folder:
        with (directory / "corpus.jsonl").open() as lines, Path(folder, "corpus.jsonl").open("w") as sample:
            sample.writelines(itertools.islice(lines, count))
        import_passages(kb, Path(folder))


def ingest_files(kb, directory: Path, count: int) -> None:
    """The first passages as text files, taken in as an upload and indexed as a worker does."""
    from kb.services.batch_files import NewFile, take_in
    from kb.services.batches import batch_create
    from kb.services.indexing import index_document
    from retrieval.eval.qrels import iter_corpus

    batch = batch_create(knowledge_base=kb, name="files", user=None)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, passage in enumerate(itertools.islice(iter_corpus(directory), count)):
            path = Path(folder, f"{number}.txt")
            path.write_text(f"{passage.title}\n\n{passage.text}", encoding="utf-8")
            files.append(NewFile(path.name, path))
        for document_id in take_in(batch, files, user=None).added:
            index_document(document_id)


def main() -> None:
    """Measure and print."""
    directory = Path(os.environ.get("ZHIKU_EVAL_DATA") or ".", STARD)
    if not (directory / "corpus.jsonl").is_file():
        note(f"There is no {STARD} under ZHIKU_EVAL_DATA: set it to the folder that holds {STARD}/corpus.jsonl.")
        return
    passages, files = (int(each) for each in [*sys.argv[1:], 0, 0][:2])
    folder = start_servers()
    from config import embedded
    from tests.factories import make_kb

    try:
        note("importing passages ...")
        kb = make_kb(name="passages")
        import_sample(kb, directory, 1)  # loads the dictionary of the tokenizer
        rows = measure("passages", lambda: import_sample(kb, directory, passages or None))
        note("ingesting files ...")
        other = make_kb(name="files")
        rows += measure("files", lambda: ingest_files(other, directory, files or FILES))
        print_table(rows)
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
