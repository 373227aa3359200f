"""What rate limits and the audit log cost, each beside the same work without it, in one run.

Run by `make bench`, or alone as `python -m tests.benchmarks.access [BLOCKS]`.
"""

import itertools
import shutil
import statistics
import sys
import time

from tests.benchmarks.hot_queries import alternate, with_an_empty_endpoint
from tests.benchmarks.store import start_servers
from tests.benchmarks.table import Row, milliseconds, note, print_table

BLOCKS = 96
DOCUMENTS = 25
"""In a block, added and made searchable together as a worker does it."""
REQUESTS = 400
TEXT = "员工每年享有带薪年假，须提前申请。" * 20
LARGE = "1000000/minute"

_numbers = itertools.count()


def requests(url: str, headers: dict[str, str]) -> list[Row]:
    """A request that is only authenticated, with and without a rate limit, of a key with and without bound bases."""
    from django.conf import settings
    from django.test import Client

    client = Client()

    def ask(limit: str) -> None:
        settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "general": limit}
        assert client.get(url, headers=headers).status_code == 200

    without, limited = alternate(lambda: ask(""), lambda: ask(LARGE), rounds=REQUESTS)
    return [_row("a request with a rate limit, without one", limited, without)]


def ingestion(kb, blocks: int) -> list[Row]:
    """Lower quartiles of blocks of documents, from their text to being searchable, with the triggers of the audit log and without."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * blocks + 2):
        is_audited = number % 4 in {0, 3}  # neither always goes first
        _switch(on=is_audited)
        started = time.perf_counter()
        _ingest(kb)
        if number >= 2:
            took[is_audited].append((time.perf_counter() - started) * 1_000 / DOCUMENTS)
    _switch(on=True)
    audited, plain = (statistics.quantiles(took[each], n=4)[0] for each in (True, False))
    return [_row("a document, with the audit log, without it", audited, plain)]


def _ingest(kb) -> None:
    from kb.ingest.services.documents import document_add_text
    from kb.ingest.services.indexing import index_documents

    texts = (f"第{next(_numbers)}条 {TEXT}" for _ in range(DOCUMENTS))
    ids = [document_add_text(knowledge_base=kb, title="", text=text, user=kb.owner).pk for text in texts]
    assert index_documents(ids) == []


def _switch(*, on: bool) -> None:
    """The audit log's triggers on documents and chunks; the others stay."""
    from django.db import connection

    verb = "ENABLE" if on else "DISABLE"
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgrelid::regclass::text, tgname FROM pg_trigger"
            " WHERE tgname LIKE 'pgtrigger_audit_%' AND tgrelid IN ('kb_document'::regclass, 'kb_chunk'::regclass)"
        )
        for table, trigger in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} {verb} TRIGGER {trigger}")


def _row(measure: str, ours: float, other: float) -> Row:
    return Row("access", measure, milliseconds(ours / 1_000), milliseconds(other / 1_000), f"{other / ours:.3f}")


def main() -> None:
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else BLOCKS
    folder = start_servers()
    try:
        from django.conf import settings

        from kb.models import AuditEntry
        from tests.factories import make_api_key, make_kb

        settings.ALLOWED_HOSTS = ["*"]
        settings.ROOT_URLCONF = with_an_empty_endpoint()
        kb = make_kb()
        _key, secret = make_api_key(kb.owner, kb)
        rows = requests("/api/v1/empty/", {"Authorization": f"Bearer {secret}"})
        rows += ingestion(kb, blocks)
        note(f"{AuditEntry.objects.count():,} entries in the audit log")
        print_table(rows)
    finally:
        from config import embedded

        embedded.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
