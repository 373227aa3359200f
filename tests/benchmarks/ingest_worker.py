"""A worker of the ingestion benchmark: the real one, which also writes down what each stage has cost.

Run by `tests.benchmarks.ingest` as `python -m tests.benchmarks.ingest_worker FOLDER CONCURRENCY`.
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from unittest import mock

import psutil

STAGES = {
    "parse": [("kb.ingest.services.indexing", "_parse")],
    "cut": [("kb.ingest.services.indexing", "split")],
    "tokenise": [("kb.index.services.writing", "tokenize")],
    "embed (encode)": [("kb.index.services.writing", "embed")],
    "write chunks, postings and vectors": [("kb.index.services.writing", "copy_rows")],
    "write documents": [
        ("kb.ingest.services.documents", "copy_rows"),
        ("kb.ingest.services.indexing", "_finish"),
    ],
}
"""What is timed, by the name that it is told under; none of them runs inside another."""


class Costs:
    """Seconds by the clock and of this thread's processor time, by stage."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)

    def timing(self, stage, function):
        """The function, whose time is counted."""

        def timed(*arguments, **keywords):
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments, **keywords)
            finally:
                self.wall[stage] += time.perf_counter() - wall
                self.cpu[stage] += time.thread_time() - cpu

        return timed

    @contextmanager
    def watching(self):
        """In this process and those that it forks meanwhile."""
        with ExitStack() as patches:
            for stage, functions in STAGES.items():
                for module, name in functions:
                    function = getattr(import_module(module), name)
                    patches.enter_context(mock.patch(f"{module}.{name}", self.timing(stage, function)))
            yield

    def told(self) -> dict[str, dict[str, float]]:
        """As JSON holds them."""
        return {"wall": dict(self.wall), "cpu": dict(self.cpu)}


def main() -> None:
    """Run a worker until it is told to stop."""
    folder, concurrency = Path(sys.argv[1]), sys.argv[2]
    import django

    django.setup()
    from celery.signals import task_postrun, task_prerun

    from config.celery import app

    costs, busy = Costs(), [0.0, 0.0]
    begun = threading.local()

    @task_prerun.connect(weak=False)
    def note_start(**_):
        begun.at = time.perf_counter()

    @task_postrun.connect(weak=False)
    def note_end(**_):
        process = psutil.Process()
        busy[0] += time.perf_counter() - begun.at
        used = process.cpu_times()
        told = {
            **costs.told(),
            "busy": busy[0],
            "process": used.user + used.system,
            "children": used.children_user + used.children_system,
        }
        path = folder / f"{os.getpid()}.json"
        path.with_suffix(".new").write_text(json.dumps(told))
        path.with_suffix(".new").replace(path)

    with costs.watching():
        quiet = ("--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat")
        app.worker_main(["worker", "--pool", "prefork", "--concurrency", concurrency, *quiet])


if __name__ == "__main__":
    main()
