import subprocess
import sys
from contextlib import ExitStack

import pytest
from prometheus_client import REGISTRY
from prometheus_client.exposition import generate_latest

from kb.base import metrics
from kb.base.metrics import observe_cache, observe_search
from retrieval.errors import Degradation, DegradationCode
from tests.fakes import HASHING_NOTE

COUNT_IN_A_PROCESS = """
from kb.base import metrics
metrics.observe_cache("redis", "hits", 2)
metrics.observe_cache("redis", "nbytes", 100)
metrics.observe_cache("process", "nbytes", 1000)
metrics.observe_search("found", [], {"bm25": 1.0, "total": 20.0})
print(flush=True)
input()
"""


@pytest.fixture
def counted():
    """How much a sample has grown since the test began, or since it was asked for first."""
    before = {}

    def grown(name, **labels):
        value = REGISTRY.get_sample_value(name, labels) or 0
        return value - before.setdefault((name, *labels.items()), value)

    return grown


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Two processes that share a folder, which the first of them makes, and have counted the same; they go on."""
    folder = tmp_path / "metrics" / "shared"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    with ExitStack() as stack:
        processes = []
        for _ in range(2):
            command = [sys.executable, "-c", COUNT_IN_A_PROCESS]
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            process.stdout.readline()
            processes.append(process)
        yield processes


def test_a_search_counts_with_its_outcome_and_its_seconds(counted):
    counted("zhiku_searches_total", outcome="found")
    counted("zhiku_search_seconds_sum")
    counted("zhiku_search_stage_seconds_sum", stage="bm25")
    observe_search("found", [], {"bm25": 4.0, "total": 20.0})
    assert counted("zhiku_searches_total", outcome="found") == 1
    assert counted("zhiku_search_seconds_sum") == pytest.approx(0.02)
    assert counted("zhiku_search_stage_seconds_sum", stage="bm25") == pytest.approx(0.004)


def test_what_a_search_could_not_do_counts_by_stage_and_code(counted):
    building = Degradation("bm25", DegradationCode.BM25_INDEX_BUILDING, "search again")
    labels = {"stage": "bm25", "code": "bm25_index_building"}
    counted("zhiku_degradations_total", **labels)
    observe_search("none", [HASHING_NOTE, building], {"total": 1.0})
    assert counted("zhiku_degradations_total", **labels) == 1


def test_a_search_that_was_not_answered_has_no_seconds(counted):
    counted("zhiku_searches_total", outcome="unavailable")
    counted("zhiku_search_seconds_count")
    observe_search("unavailable", [HASHING_NOTE])
    assert counted("zhiku_searches_total", outcome="unavailable") == 1
    assert counted("zhiku_search_seconds_count") == 0


def test_the_counters_of_the_cache_are_told_by_tier():
    observe_cache("process", "nbytes", 5_000)
    before = metrics.cache_counters()
    observe_cache("process", "hits", 3)
    observe_cache("database", "nbytes", 70)
    after = metrics.cache_counters()
    assert after["process"] == before["process"] | {"hits": before["process"]["hits"] + 3, "nbytes": 5_000}
    assert after["database"]["nbytes"] - before.get("database", {"nbytes": 0})["nbytes"] == 70
    assert after["process"].keys() == {"hits", "misses", "stores", "errors", "nbytes", "builds", "updates"}


def test_processes_that_share_a_folder_are_counted_together(shared):
    counters = metrics.cache_counters()
    assert (counters["redis"]["hits"], counters["redis"]["nbytes"]) == (4, 200)
    assert counters["process"]["nbytes"] == 2_000
    assert metrics.registry().get_sample_value("zhiku_search_seconds_count") == 2


def test_a_process_that_was_killed_holds_no_memory_and_keeps_its_counts(shared):
    shared[0].kill()
    shared[0].wait()
    counters = metrics.cache_counters()
    assert (counters["process"]["nbytes"], counters["redis"]["hits"]) == (1_000, 4)


COUNT_ON_A_FULL_DISK = """
import errno, resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from kb.base import metrics
for number in range(2_000):
    metrics.REQUESTS.labels(f"route-{number}", "GET", "200").inc()
for file in Path(sys.argv[2]).iterdir():
    assert 0 < file.stat().st_size <= file.stat().st_blocks * 512, "it has holes, and a write to one may be SIGBUS"
metrics.registry().get_sample_value("zhiku_searches_total")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
for number in range(2_000):
    metrics.REQUESTS.labels(f"route-{number}", "GET", "200").inc()
labels = {"route": "route-1999", "method": "GET", "status": "200"}
print(metrics.registry().get_sample_value("zhiku_http_requests_total", labels))
"""


@pytest.mark.parametrize("room", [0, 30_000, 65_536, 100_000], ids=["none", "half a file", "a file", "more"])
def test_without_room_on_the_disk_a_process_lives_and_its_counts_are_written_later(tmp_path, monkeypatch, room):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    command = [sys.executable, "-c", COUNT_ON_A_FULL_DISK, str(room), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "2.0"), done.stderr


def test_labels_name_no_knowledge_base_query_or_user():
    generate_latest(REGISTRY)
    own = [metric for metric in REGISTRY.collect() if metric.name.startswith("zhiku_")]
    labels = {label for metric in own for sample in metric.samples for label in sample.labels}
    assert labels <= {
        "tier",
        "event",
        "outcome",
        "stage",
        "code",
        "le",
        "route",
        "method",
        "status",
        "task",
        "state",
        "scope",
    }
