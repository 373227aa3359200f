"""Many small files by WebDAV and by Git: the first run, one without a change, and one after half of them were renamed.

    python -m tests.benchmarks.sources [--files 10000]

The servers are wsgidav and `git http-backend`, in this process, on the loopback. Documents are not indexed, but for those whose
chunks are edited before the renaming: another part of the worker does that.
"""

import argparse
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.store import start_servers
from tests.benchmarks.table import note, timed

TOUCHED = 50
"""So many documents have an edited chunk, and as many others a judgment."""
LOOK_SECONDS = 0.3


def name_of(number: int) -> str:
    return f"part-{number % 100:02}/{number:05}.md"


def moved_name_of(number: int) -> str:
    return f"archive/{number % 100:02}/renamed-{number:05}.md"


def text_of(number: int) -> str:
    return f"# Lamp {number}\n\nThe warranty of lamp {number} lasts for {number % 9 + 1} years.\n"


@dataclass(frozen=True)
class Place:
    """Files behind a server.

    Attributes:
        settings, secrets: of the source.
        move: renames the files of these numbers.
        asked: how many requests there were that fetch, since it was asked last: by WebDAV of one file each, by Git of all
            the folders and contents that are missing.
    """

    kind: str
    settings: Mapping[str, Any]
    secrets: Mapping[str, str]
    move: Callable[[range], None]
    asked: Callable[[], int]


@contextmanager
def webdav(folder: Path, count: int) -> Iterator[Place]:
    from tests.dav_server import PASSWORD, USER, DavServer

    root = folder / "dav"
    for number in range(count):
        path = root / name_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(number))

    def move(numbers: range) -> None:
        for number in numbers:
            target = root / moved_name_of(number)
            target.parent.mkdir(parents=True, exist_ok=True)
            (root / name_of(number)).rename(target)

    with DavServer(root) as server:

        def asked() -> int:
            requests = sum(each.method == "GET" for each in server.asked)
            server.asked.clear()
            return requests

        yield Place("webdav", {"url": server.url(), "user": USER}, {"password": PASSWORD}, move, asked)


@contextmanager
def git(folder: Path, count: int) -> Iterator[Place]:
    from tests.git_server import Bare, GitServer

    bare = Bare(folder / "git" / "files.git")
    bare.commit({name_of(number): text_of(number) for number in range(count)})

    def move(numbers: range) -> None:
        bare.commit(
            {moved_name_of(number): text_of(number) for number in numbers}, gone=[name_of(each) for each in numbers]
        )

    with GitServer(folder / "git") as server:

        def asked() -> int:
            requests = server.fetches()
            server.posts.clear()
            return requests

        yield Place("git", {"url": server.url("files.git")}, {}, move, asked)


class Progress:
    """How often what the pages show of a run has moved while a block ran."""

    def __init__(self, source_id: int) -> None:
        self._source_id, self.seen = source_id, set[tuple[str, int]]()
        self._ended = threading.Event()

    def __enter__(self) -> "Progress":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        from django.db import connection

        from kb.models import Source

        while not self._ended.wait(LOOK_SECONDS):
            progress = Source.objects.values_list("progress", flat=True).get(pk=self._source_id)
            if progress:
                self.seen.add((progress["stage"], progress["done"]))
        connection.close()


def read(source) -> None:
    """A whole run, from the request for it to its end."""
    from kb.sources.services.sources import source_request
    from kb.sources.services.working import run_source

    source_request(source)
    while run_source(source.pk):
        pass
    source.refresh_from_db()
    if source.status != source.Status.DONE:
        note(f"the run ended as {source.status}: {source.error}")


def touch(kb, source) -> tuple[dict[int, str], set[int]]:
    """Edits a chunk of some documents, whose texts by document it returns, and judges others, whose judgments it returns."""
    from kb.ingest.services.chunks import chunk_update
    from kb.ingest.services.indexing import index_document
    from kb.models import Chunk, EvalQuery, EvalSet, Judgment

    by_key = dict(source.items.values_list("key", "document"))
    edits = {}
    for number in range(TOUCHED):
        document = by_key[name_of(number)]
        index_document(document)
        chunk = Chunk.objects.select_related("document", "knowledge_base").filter(document=document).first()
        edits[document] = f"{chunk.text} Edited."
        chunk_update(chunk, text=edits[document], enabled=True)
    query = EvalQuery.objects.create(
        eval_set=EvalSet.objects.create(knowledge_base=kb, name="judged"), external_id="1", text="warranty"
    )
    judged = (by_key[name_of(number)] for number in range(TOUCHED, 2 * TOUCHED))
    return edits, {Judgment.objects.create(query=query, document_id=document, grade=1).pk for document in judged}


def kept(edits: Mapping[int, str], judgments: set[int]) -> tuple[int, int]:
    """How many edits and judgments there are still."""
    from kb.models import Chunk, Judgment

    texts = dict(Chunk.objects.filter(document__in=edits).values_list("document", "text"))
    judged = Judgment.objects.filter(pk__in=judgments, document__source_item__key__startswith="archive/")
    return sum(texts.get(document) == text for document, text in edits.items()), judged.count()


def measure(place: Place, count: int) -> None:
    from kb.models import Document
    from kb.sources.services.sources import source_create
    from tests.factories import make_kb

    kb = make_kb(name=place.kind)
    source = source_create(
        knowledge_base=kb, user=kb.owner, name="files", kind=place.kind, settings=place.settings, secrets=place.secrets
    )

    def show(run: str, seconds: float, more: str) -> None:
        counts = ", ".join(f"{name} {number:,}" for name, number in sorted(source.counts.items()))
        print(
            f"| {place.kind} | {run} | {seconds:.1f} | {count / seconds:,.0f} | {place.asked():,} | {counts} | {more} |"
        )

    with Progress(source.pk) as progress:
        seconds, _ = timed(read, source)
    show("first", seconds, f"progress moved {len(progress.seen):,} times")
    seconds, _ = timed(read, source)
    show("no change", seconds, "")

    edits, judgments = touch(kb, source)
    before = set(Document.objects.filter(knowledge_base=kb).values_list("pk", flat=True))
    place.move(range(count // 2))
    seconds, _ = timed(read, source)
    after = set(Document.objects.filter(knowledge_base=kb).values_list("pk", flat=True))
    texts, judged = kept(edits, judgments)
    show(
        "half renamed",
        seconds,
        f"kept {len(before & after):,} of {len(before):,} documents, {texts} of {len(edits)} edits, "
        f"{judged} of {len(judgments)} judgments; {len(after - before)} documents more",
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sources", description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=10_000, help="how many (default: %(default)s)")
    count = max(parser.parse_args().files, 4 * TOUCHED)
    os.environ.setdefault("LOG_LEVEL", "WARNING")  # not a line for each document that is indexed
    folder = start_servers()
    from django.conf import settings

    from config import embedded

    settings.WEB_ALLOWED_HOSTS = ["127.0.0.1"]
    print("| | run | seconds | files a second | fetches | counts | |\n|---|---|---|---|---|---|---|")
    try:
        with tempfile.TemporaryDirectory() as files:
            for opened in (webdav, git):
                note(f"{count:,} files by {opened.__name__} ...")
                with opened(Path(files), count) as place:
                    measure(place, count)
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
