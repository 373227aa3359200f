"""A worker process that is killed half way, for real: its document is taken up again, whole and once."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.core.files.base import ContentFile
from django.db import connection
from django.utils import timezone

from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Document
from kb.services.documents import document_add
from kb.services.indexing import index_document
from kb.tasks import sweep_lost_documents
from tests.factories import make_kb

pytestmark = pytest.mark.django_db(transaction=True)

# Says that it has come to a stage, and stays there until it is killed.
WORKER = """
import importlib, sys, time
import django
from django.conf import settings
settings.DATABASES["default"]["NAME"], settings.MEDIA_ROOT = sys.argv[1], sys.argv[2]
django.setup()
from kb.services import indexing

def stay(*arguments, **keywords):
    if sys.argv[6] == "after":
        real(*arguments, **keywords)
    print("there", flush=True)
    time.sleep(600)

module = importlib.import_module(sys.argv[4])
real = getattr(module, sys.argv[5])
setattr(module, sys.argv[5], stay)
indexing.index_document(int(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("module", "stage", "when"),
    [
        ("kb.services.indexing", "_parse", "before"),
        ("kb.services.indexing", "split", "before"),
        ("kb.ingest.index", "tokenize", "before"),
        ("kb.ingest.index", "embed", "after"),
        ("kb.services.indexing", "write_chunks", "after"),
    ],
)
def test_a_killed_workers_document_is_indexed_once_by_the_next(module, stage, when):
    kb = make_kb()
    text = "\n\n".join(f"第{number}段讲的是保修与退货。" * 20 for number in range(5))
    document = document_add(knowledge_base=kb, file=ContentFile(text.encode()), name="a.txt", user=kb.owner)

    _kill_worker_at(document, module, stage, when)

    assert not Chunk.objects.exists()
    assert Document.objects.get().status == "processing"
    Document.objects.update(lease_until=timezone.now() - timedelta(seconds=1))  # as time would
    assert sweep_lost_documents() == 1
    index_document(document.pk)
    assert Document.objects.get().status == "ready"
    positions = list(Chunk.objects.order_by("position").values_list("position", flat=True))
    assert positions == list(range(len(positions)))
    assert len(positions) == ChunkPostings.objects.count() == ChunkEmbedding.objects.count() > 1
    joined = "".join(Chunk.objects.order_by("position").values_list("text", flat=True))
    assert all(f"第{number}段" in joined for number in range(5))


def _kill_worker_at(document, *where):
    arguments = (connection.settings_dict["NAME"], str(settings.MEDIA_ROOT), str(document.pk), *where)
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        said = worker.stdout.readline()
        worker.send_signal(signal.SIGKILL)
    assert said == "there\n"
