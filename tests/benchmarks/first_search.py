"""The first searches after a bulk import, and after a start from a cold disk, beside the tenth; in one run.

Runs `import_beir` on stard-law with PostgreSQL and Redis of its own, then searches in processes of their own that have warmed up as
a web process does. Where it may (root, Linux), it also stops PostgreSQL, drops the page cache, and does the same again. Run alone as

    python -m tests.benchmarks.first_search [PASSAGES]
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.store import STARD, start_servers
from tests.benchmarks.table import Row, milliseconds, note, print_table

SEARCHES = 10
DROP = Path("/proc/sys/vm/drop_caches")
NAME = "stard"

# In a process of its own: what it prints is the milliseconds and the notes of each search. `serving` warms up before it
# searches, `cold` reads nothing in.
SEARCHER = """
import json, sys, time
import django
django.setup()
from kb.search import wiring as conf
from kb.models import KnowledgeBase, Principal, User
from kb.search.services.search import SearchRequest, search
kb = KnowledgeBase.objects.get(name=sys.argv[1])
principal = Principal(User.objects.get(is_superuser=True))
warming = time.perf_counter()
if sys.argv[2] == "serving":
    conf.warm_up()
else:
    conf.tokenizer(kb.tokenizer_id)("预热")
warmed = time.perf_counter() - warming
found = []
for query in json.load(sys.stdin):
    started = time.perf_counter()
    answer = search(principal, SearchRequest(query=query, knowledge_base_ids=[kb.pk], log=False))
    milliseconds = (time.perf_counter() - started) * 1_000
    found.append((milliseconds, [each.code for each in answer.result.degraded]))
print(json.dumps({"warmed": warmed, "found": found}))
"""


def corpus(limit: int, folder: Path) -> tuple[Path, list[str]]:
    """A set of the first passages, and its first queries."""
    source = Path(os.environ.get("ZHIKU_EVAL_DATA") or "../shared/data", STARD)
    target = folder / STARD
    target.mkdir()
    with (source / "corpus.jsonl").open() as lines, (target / "corpus.jsonl").open("w") as copy:
        for number, line in enumerate(lines):
            if number >= limit:
                break
            copy.write(line)
    with (source / "queries.jsonl").open() as lines:
        queries = [json.loads(line)["text"] for line in lines][:SEARCHES]
    return target, queries


def searched(how: str, queries: list[str]) -> list[tuple[float, list[str]]]:
    """Milliseconds and notes of each search of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SEARCHER, NAME, how],
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    answer = json.loads(done.stdout.splitlines()[-1])
    note(f"{how}: warmed up in {answer['warmed']:.1f} s")
    return [(milliseconds, codes) for milliseconds, codes in answer["found"]]


def row(label: str, found: list[tuple[float, list[str]]]) -> Row:
    """The first search beside the tenth."""
    notes = sorted({code for _, codes in found for code in codes if code != "hashing_embedder"})
    first, tenth = found[0][0], found[-1][0]
    return Row(
        STARD,
        f"{label}; notes: {', '.join(notes) or 'none'}",
        milliseconds(first / 1_000),
        milliseconds(tenth / 1_000),
        f"first / tenth {first / tenth:.2f}",
    )


def restart_cold() -> None:
    """PostgreSQL as after a restart of the host."""
    from django.db import connection, connections

    from config import embedded

    connections.close_all()
    connection.close_pool()
    folder = os.environ["ZHIKU_DATA_DIR"]
    embedded.stop()
    os.sync()
    DROP.write_text("3")
    os.environ["ZHIKU_DATA_DIR"] = folder
    embedded.ensure(durable=False)


def main(limit: int) -> None:
    """Measure and print."""
    os.environ |= {"EMBEDDING_MODEL": "hashing", "RERANKER_MODEL": "", "HF_HUB_OFFLINE": "1"}
    folder = start_servers()
    from config import embedded

    try:
        from django.core.management import call_command

        from tests.factories import make_user

        make_user("owner", superuser=True)
        with tempfile.TemporaryDirectory() as kept:
            source, queries = corpus(limit, Path(kept))
            started = time.perf_counter()
            call_command("import_beir", str(source), kb=NAME)
            note(f"imported {limit:,} passages in {time.perf_counter() - started:.0f} s, everything built")
        rows = [
            row("after the import, a process that holds nothing", searched("cold", queries)),
            row("after the import, a web process that has warmed up", searched("serving", queries)),
        ]
        with contextlib.suppress(PermissionError, FileNotFoundError):
            for how, label in (("cold", "nothing read in"), ("serving", "read in")):
                restart_cold()
                rows.append(row(f"from a cold disk, {label}", searched(how, queries)))
        print_table(rows)
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 58_613)
