import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kb import metrics

COUNT_IN_A_PROCESS = """
import os
from kb import metrics
metrics.observe_cache("process", "hits", 2)
metrics.observe_cache("process", "nbytes", 1000)
print(os.getpid())
"""


@pytest.fixture
def gunicorn(monkeypatch):
    monkeypatch.setenv("DB_STATEMENT_TIMEOUT_MS", "15000")  # which the import would set for the tests to come
    return importlib.import_module("config.gunicorn")


def test_a_worker_that_has_ended_holds_no_memory_and_keeps_its_counts(gunicorn, monkeypatch, tmp_path):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    command = [sys.executable, "-c", COUNT_IN_A_PROCESS]
    pids = [int(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout) for _ in range(2)]
    gunicorn.child_exit(None, SimpleNamespace(pid=pids[0]))
    counters = metrics.cache_counters()["process"]
    assert (counters["nbytes"], counters["hits"]) == (1_000, 4)


def test_without_a_shared_folder_the_end_of_a_worker_changes_nothing(gunicorn, monkeypatch):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    before = metrics.cache_counters()
    gunicorn.child_exit(None, SimpleNamespace(pid=1))
    assert metrics.cache_counters() == before
