"""Kills Redis, restarts PostgreSQL and kills the worker of an installation under load, and tells what its callers saw.

Run alone as `python -m tests.load.faults [SECONDS]`; everything runs on the loopback, with servers of its own. The exit code is 0
where every promise held: no wrong answer, no lost document, no answer worse than it should be without its `degraded` note,
every error a 503 with Retry-After, and all of it well again without a hand.
"""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tests.load.client import Answer, Connection, Target, searches, under_load
from tests.load.installation import Installation, installation
from tests.load.report import Figures
from tests.load.uploads import Uploads

SECONDS = 60.0
CLIENTS = 6
QUESTIONS, PASSAGES = 60, 1_500
RECOVERS_WITHIN = 30.0
READY_WITHIN = 180.0
CHOSEN = "hashing_embedder"
"""In every answer, since the installation compares words: no fault."""
HARMLESS = frozenset({"shared_cache_unavailable"})
"""Costs time, and changes no answer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to the installation, at a share of the time of the load."""

    name: str
    at: float
    strike: Callable[[Installation], None]


FAULTS = (
    Fault("Redis is killed", 0.10, Installation.kill_redis),
    Fault("Redis is there again", 0.30, Installation.start_redis),
    Fault("PostgreSQL stops", 0.45, Installation.stop_postgres),
    Fault("PostgreSQL is there again", 0.50, Installation.start_postgres),
    Fault("the worker is killed", 0.65, Installation.kill_worker),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise, and what speaks against it."""

    promise: str
    broken: Sequence[str]


def run(server: Installation, target: Target, uploads: Uploads, questions: Sequence[str], seconds: float) -> None:
    """Searches and uploads while the faults happen, and prints what came of it; raises SystemExit where a promise broke."""
    right = baseline(target, questions)
    moments: dict[str, float] = {}
    started = time.monotonic()

    def strike() -> None:
        for fault in FAULTS:
            time.sleep(max(0.0, started + fault.at * seconds - time.monotonic()))
            moments[fault.name] = time.monotonic()
            fault.strike(server)

    striker = threading.Thread(target=strike)
    with uploads:
        striker.start()
        answers = under_load(searches(target), questions, clients=CLIENTS, seconds=seconds)
        striker.join()
        after = under_load(searches(target), questions, clients=CLIENTS, seconds=RECOVERS_WITHIN / 2)
    verdicts = [
        Verdict("no wrong answer", wrong(answers + after, right)),
        Verdict("no worse answer without a note", unnoted(answers + after, right)),
        Verdict("every error is a 503 with Retry-After", errors([*answers, *after], uploads.refusals)),
        Verdict("all well again without a hand", unwell(after[len(after) // 2 :])),
        Verdict("no document lost or doubled", [*uploads.given_up, *lost(uploads, target)]),
    ]
    print(Figures.of(answers + after), end="\n\n")
    print("\n".join(timeline(moments, answers + after, started)), end="\n\n")
    print(f"documents uploaded: {len(uploads.taken)}; refused and sent again: {len(uploads.refusals)}")
    for verdict in verdicts:
        print(
            f"{verdict.promise}: {'yes' if not verdict.broken else f'NO, {len(verdict.broken)}: {verdict.broken[0]}'}"
        )
    if any(verdict.broken for verdict in verdicts):
        raise SystemExit(1)


def baseline(target: Target, questions: Sequence[str]) -> Mapping[str, list[int]]:
    """The chunks that each question finds while all is well."""
    client = Connection(target)
    found = {}
    for question in questions:
        answer = client.search(question)
        if answer.status != 200 or faults_told(answer):
            raise RuntimeError(f"all is not well before the load: {answer}")
        found[question] = chunks_of(answer)
    client.close()
    return found


def chunks_of(answer: Answer) -> list[int]:
    return [result["chunk_id"] for result in answer.body["results"]]


def faults_told(answer: Answer) -> set[str]:
    return {entry["code"] for entry in answer.body["degraded"]} - {CHOSEN}


def wrong(answers: Sequence[Answer], right: Mapping[str, list[int]]) -> list[str]:
    """Answers that say that nothing was lost, or nothing that changes results, and hold others than they should."""
    return [
        f"{answer.question}: {chunks_of(answer)} in place of {right[answer.question]}"
        for answer in answers
        if answer.status == 200 and faults_told(answer) <= HARMLESS and chunks_of(answer) != right[answer.question]
    ]


def unnoted(answers: Sequence[Answer], right: Mapping[str, list[int]]) -> list[str]:
    """Answers with fewer results than there are and no note."""
    return [
        f"{answer.question}: {len(chunks_of(answer))} of {len(right[answer.question])} results"
        for answer in answers
        if answer.status == 200 and len(chunks_of(answer)) < len(right[answer.question]) and not faults_told(answer)
    ]


def errors(answers: Sequence[Answer], refusals: Sequence[tuple[int, Mapping[str, str]]]) -> list[str]:
    """Errors of another status than 503, or without Retry-After."""
    told = [(answer.status, answer.headers) for answer in answers if answer.status != 200]
    # A second try of an upload may meet the first one, which is still under way.
    allowed = {503, 409}
    return [
        f"{status} {dict(headers)}"
        for status, headers in [*told, *refusals]
        if status not in allowed or "retry-after" not in headers
    ]


def unwell(answers: Sequence[Answer]) -> list[str]:
    """Answers that are not as they were before the faults."""
    return [f"{answer.status} {answer.body}" for answer in answers if answer.status != 200 or faults_told(answer)]


def lost(uploads: Uploads, target: Target) -> list[str]:
    """Documents that were taken and are not ready, not found, or there more than once."""
    deadline = time.monotonic() + READY_WITHIN
    while True:
        there = list(uploads.documents())
        waiting = [each for each in there if each["status"] not in {"ready", "failed"}]
        if not waiting or time.monotonic() > deadline:
            break
        time.sleep(1.0)
    states: dict[int, str] = {each["id"]: each["status"] for each in there}
    faults = [f"{number}: {states.get(number, 'gone')}" for number in uploads.taken if states.get(number) != "ready"]
    if len(there) != len(uploads.taken):
        faults.append(f"{len(there)} documents of {len(uploads.taken)} uploads")
    client = Connection(Target(target.url, target.key, [uploads.kb_id], target.fields))
    for number, word in uploads.taken.items():
        answer = client.search(word)
        first = answer.body["results"][:1] if answer.status == 200 else []
        if not first or first[0]["document_id"] != number:
            faults.append(f"{number} is not found: {answer.status}")
    client.close()
    return faults


def timeline(moments: Mapping[str, float], answers: Sequence[Answer], started: float) -> list[str]:
    """What was answered between one fault and the next."""
    edges = [("all is well", started), *moments.items()]
    ends = [moment for _name, moment in edges[1:]] + [float("inf")]
    lines = ["| from, s | what | answers | 503 | degraded | p95, ms |", "|---|---|---|---|---|---|"]
    for (name, begin), end in zip(edges, ends, strict=True):
        part = [answer for answer in answers if begin <= answer.sent < end]
        if not part:
            lines.append(f"| {begin - started:.0f} | {name} | 0 | | | |")
            continue
        figures = Figures.of(part)
        told = ", ".join(f"{code} × {count}" for code, count in figures.degraded.items() if code != CHOSEN)
        refused = sum(count for status, count in figures.statuses.items() if status != 200)
        lines.append(f"| {begin - started:.0f} | {name} | {len(part):,} | {refused} | {told} | {figures.p95_ms:.0f} |")
    return lines


def furnish() -> tuple[int, int, str, list[str]]:
    """A knowledge base to search, one to upload to, a key for both, and questions."""
    from kb.access.services.api_keys import api_key_create
    from tests.benchmarks.ingest import import_sample
    from tests.benchmarks.store import STARD
    from tests.factories import make_kb

    directory = Path(os.environ.get("ZHIKU_EVAL_DATA") or ".", STARD)
    if not (directory / "corpus.jsonl").is_file():
        raise SystemExit(
            f"There is no {STARD} under ZHIKU_EVAL_DATA: set it to the folder that holds {STARD}/corpus.jsonl."
        )
    kb = make_kb(name="searched")
    import_sample(kb, directory, PASSAGES)
    uploads = make_kb(kb.owner, "uploaded")
    _row, secret = api_key_create(user=kb.owner, name="load", scope="write")
    with (directory / "queries.jsonl").open(encoding="utf-8") as lines:
        questions: list[Any] = [json.loads(line)["text"] for line in islice(lines, QUESTIONS)]
    return kb.pk, uploads.pk, secret, questions


def main() -> None:
    """Run and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    folder = Path(tempfile.mkdtemp(prefix="zhiku-faults-"))
    try:
        with installation(folder) as server:
            kb_id, uploaded_id, key, questions = furnish()
            from django.db import connections

            connections.close_all()
            server.serve()
            target = Target(server.url, key, [kb_id], {"score_threshold": 0})
            run(server, target, Uploads(server.url, key, uploaded_id), questions, seconds)
    finally:
        if (folder / "serve.log").exists():
            shutil.copy(folder / "serve.log", Path(tempfile.gettempdir(), "zhiku-faults.log"))
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
