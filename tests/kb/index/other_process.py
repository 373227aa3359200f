"""Another process of the same installation, which does what it is told, a line at a time."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]


_numbers = itertools.count(1)


class OtherProcess:
    """Talks to a process of its own, whose sessions have a name of their own in the database.

    Args:
        database: name of the tests' database.
        environment: variables that differ from this process's.
    """

    def __init__(self, database, **environment):
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.kb.index.other_process import serve; serve()", database],
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "config.settings",
                "PYTHONPATH": str(ROOT),
                "PGAPPNAME": f"other process {next(_numbers)}",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, order, *arguments):
        self._process.stdin.write(json.dumps([order, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self):
        return json.loads(self._process.stdout.readline())

    def ask(self, order, *arguments):
        self.tell(order, *arguments)
        return self.answer()

    def kill(self):
        self._process.kill()
        self._process.wait()

    def close(self):
        with self._process:
            self._process.stdin.close()


def serve():
    """The other process: an answer a line for each order, until its input ends."""
    import django
    from django.conf import settings

    settings.DATABASES["default"]["NAME"] = sys.argv[1]
    django.setup()
    for line in sys.stdin:
        order, *arguments = json.loads(line)
        print(json.dumps(ORDERS[order](*arguments)), flush=True)


def _forget():
    """What a process keeps for its lifetime, but each test has a database of its own."""
    from kb.base import models as installation
    from tests.kb.index.searching import new_process

    new_process()
    installation.installation_id.cache_clear()


def _add(kb_id, *texts):
    from kb.models import KnowledgeBase
    from tests.factories import make_document

    return make_document(KnowledgeBase.objects.get(pk=kb_id), *texts).pk


def _search(kb_id, query):
    """Where the index came from, what it found, and how many this process has built so far."""
    from kb.index.bm25 import BM25Store
    from kb.models import KnowledgeBase
    from tests.kb.index.searching import PATIENCE, ranking

    kb = KnowledgeBase.objects.select_related("version_row").get(pk=kb_id)
    request = BM25Store().request(kb.pk, kb.version_row.version, kb.tokenizer_id)
    loaded = request.wait(time.monotonic() + PATIENCE)
    found, scores = ranking(loaded.index, query)
    return {
        "tier": loaded.detail["cache_tier"],
        "builds": BM25Store().cache.stats()["process"].builds,
        "found": found,
        "scores": scores,
    }


def _settle():
    """Waits for what goes on after a search has its index, and says how many this process has built so far."""
    from tests.kb.index.searching import builds, settle

    settle()
    return {"builds": builds()}


def _hold_build_lock(kb_id):
    """Holds it to the end of the process."""
    from kb.base.db.transactions import Purpose, try_lock

    _held.append(try_lock(Purpose.BUILD_INDEX, kb_id))
    return _held[-1].__enter__()


_held = []
ORDERS = {
    "forget": _forget,
    "add": _add,
    "search": _search,
    "settle": _settle,
    "hold build lock": _hold_build_lock,
}
