"""The documents of a knowledge base with 100,000 of them, against one with 100: the same page, in one run.

And those of one with 10,000 folders at its top, against one with ten.

Run by `make bench`, or alone as `python -m tests.benchmarks.hub [DOCUMENTS]`.
"""

import os
import shutil
import sys
from dataclasses import dataclass

from tests.benchmarks.hot_queries import alternate
from tests.benchmarks.store import start_servers
from tests.benchmarks.table import Row, note, print_table

FEW, MANY = 100, 100_000
FEW_FOLDERS, MANY_FOLDERS = 10, 10_000
ROUNDS = 30
STATUSES = ("ready", "failed")  # in equal parts, so that each page has as many rows in both
KINDS = ("book", "book", "book", "qa", "web")
PAGES = {
    "as it opens": "",
    "failed ones": "?status__exact=failed",
    "by title": "?o=1",
    "by update": "?o=-4",
    "a later page": "?p=2",
}


@dataclass(frozen=True)
class Measured:
    """Median milliseconds of a page with few and with many documents."""

    page: str
    few: float
    many: float


def fill(name: str, count: int):
    """A knowledge base of documents without chunks."""
    from kb.models import Document
    from tests.factories import make_kb, make_user

    kb = make_kb(make_user(f"owner of {name}"), name)
    documents = (
        Document(
            knowledge_base=kb,
            title=f"Document {number * 7_919 % count:06}",
            source=f"{number}.pdf",
            sha256=f"{number:064}",
            status=STATUSES[number % len(STATUSES)],
            source_type=KINDS[number % len(KINDS)],
        )
        for number in range(count)
    )
    Document.objects.bulk_create(documents, batch_size=5_000)
    return kb


def measure(many: int = MANY, rounds: int = ROUNDS) -> list[Measured]:
    """Requests of the owner of each, through all of the application but the socket."""
    from django.db import connection
    from django.test import Client
    from django.urls import reverse

    bases = [fill("few", FEW), fill("many", many)]
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE kb_document")  # as autovacuum has done where documents came in over time
    clients = []
    for kb in bases:
        client = Client(SERVER_NAME="localhost")
        client.force_login(kb.owner)
        clients.append(client)
    measured = []
    for page, query in PAGES.items():

        def opened(place, query=query):
            url = reverse("admin:kb_knowledgebase_documents", args=[bases[place].pk])
            response = clients[place].get(url + query)
            assert response.status_code == 200, response.status_code

        few, of_many = alternate(lambda: opened(0), lambda: opened(1), rounds=rounds)
        measured.append(Measured(page, few, of_many))
    return measured


def measure_folders(rounds: int = ROUNDS) -> tuple[Measured, Measured]:
    """Of requests, and of the bytes of their pages."""
    from django.db import connection
    from django.test import Client
    from django.urls import reverse

    from kb.models import Folder

    clients, urls = [], []
    for count in (FEW_FOLDERS, MANY_FOLDERS):
        kb = fill(f"{count} folders", FEW)
        Folder.objects.bulk_create(
            (Folder(knowledge_base=kb, name=f"Folder {number:05}") for number in range(count)), batch_size=1_000
        )
        clients.append(Client(SERVER_NAME="localhost"))
        clients[-1].force_login(kb.owner)
        urls.append(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE kb_folder")

    def opened(place):
        response = clients[place].get(urls[place])
        assert response.status_code == 200, response.status_code
        return len(response.content)

    times = Measured("with folders", *alternate(lambda: opened(0), lambda: opened(1), rounds=rounds))
    return times, Measured("with folders, its HTML", opened(0) / 1024, opened(1) / 1024)


def main(many: int) -> None:
    """Measure and print."""
    os.environ.setdefault("RERANKER_MODEL", "")
    folder = start_servers()
    from config import embedded

    note(f"hub: {FEW} and {many} documents, {ROUNDS} requests of each page ...")
    try:
        measured = measure(many)
        folders, html = measure_folders()
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print_table(
        [
            Row(
                f"{many:,} documents",
                f"the tab of documents, {each.page}, against {FEW}",
                f"{each.many:.1f} ms",
                f"{each.few:.1f} ms",
                f"{each.many / each.few:.2f}",
            )
            for each in measured
        ]
        + [
            Row(
                f"{MANY_FOLDERS:,} folders at one level",
                f"the tab of documents, {each.page}, against {FEW_FOLDERS}",
                f"{each.many:.1f} {unit}",
                f"{each.few:.1f} {unit}",
                f"{each.many / each.few:.2f}",
            )
            for each, unit in ((folders, "ms"), (html, "KB"))
        ]
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MANY)
