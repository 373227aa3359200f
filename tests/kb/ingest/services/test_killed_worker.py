"""Celery workers that are killed half way, for real: their documents are taken up again, whole and once."""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.files.base import ContentFile
from django.db import connection
from django.utils import timezone

from kb.ingest.services.documents import document_add
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Document
from kb.tasks import ingest_document, ingest_documents, sweep_lost_documents
from tests.factories import make_kb

pytestmark = pytest.mark.django_db(transaction=True)

# A worker of one child that listens to a queue of its own. Where a stage is named, it says that it has come there and
# stays until it is killed; else it says which task it has done.
WORKER = """
import importlib, os, sys, time
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
from django.conf import settings
database, media, queue, module, name, when = sys.argv[1:]
settings.DATABASES["default"]["NAME"], settings.MEDIA_ROOT = database, media
from config.celery import app
from celery.signals import task_postrun
import django
django.setup()

def say(words):
    os.write(1, (words + "\\n").encode())

@task_postrun.connect
def done(task=None, **_):
    say("done " + task.name.rpartition(".")[2])

def stay(*arguments, **keywords):
    if when == "after":
        real(*arguments, **keywords)
    say("there")
    time.sleep(600)

if name:
    module = importlib.import_module(module)
    real = getattr(module, name)
    setattr(module, name, stay)
app.conf.task_default_queue = queue
app.conf.task_routes = {}
app.conf.worker_redirect_stdouts = False
app.worker_main(["worker", "--pool", "prefork", "--concurrency", "1", "--queues", queue, "--loglevel", "ERROR",
                 "--without-gossip", "--without-mingle", "--without-heartbeat"])
"""


class Worker:
    def __init__(self, process, queue):
        self.process, self.queue = process, queue

    def send(self, task, *args):
        task.apply_async(args, queue=self.queue)

    def wait_for(self, words):
        for line in self.process.stdout:
            if line.strip() == words:
                return
        pytest.fail(f"the worker ended before it said {words!r}")

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)  # the main process and its child, which share a group


@contextmanager
def running_worker(media, module="", name="", when=""):
    queue = f"test-{uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, connection.settings_dict["NAME"], str(media), queue, module, name, when],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    worker = Worker(process, queue)
    try:
        yield worker
    finally:
        if process.poll() is None:
            worker.kill()
        process.stdout.close()
        process.wait()


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    return tmp_path_factory.mktemp("media")


@pytest.fixture
def document(media, settings):
    settings.MEDIA_ROOT = media
    kb = make_kb()
    text = "\n\n".join(f"第{number}段讲的是保修与退货。" * 20 for number in range(5))
    return document_add(knowledge_base=kb, file=ContentFile(text.encode()), name="a.txt", user=kb.owner)


@pytest.fixture(scope="module")
def survivor(media, django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), running_worker(media) as worker:
        yield worker


@pytest.mark.parametrize(
    ("module", "stage", "when"),
    [
        pytest.param("kb.ingest.services.indexing", "_parse", "before", id="parse"),
        pytest.param("kb.ingest.services.indexing", "split", "before", id="chunk"),
        pytest.param("kb.index.services.writing", "tokenize", "before", id="tokenize"),
        pytest.param("kb.index.services.writing", "embed", "after", id="embed"),
        pytest.param("kb.ingest.services.indexing", "write_recuts", "after", id="write"),
    ],
)
def test_a_killed_workers_document_is_indexed_once_by_the_next(document, media, survivor, module, stage, when):
    with running_worker(media, module, stage, when) as worker:
        worker.send(ingest_document, document.pk)
        worker.wait_for("there")
        survivor.send(ingest_document, document.pk)  # the broker delivers it a second time while the first one runs
        survivor.wait_for("done ingest_document")
        worker.kill()

    assert Document.objects.get().status == "processing"
    assert not Chunk.objects.exists()
    Document.objects.update(lease_until=timezone.now() - timedelta(seconds=1))  # as time would
    survivor.send(sweep_lost_documents)
    survivor.wait_for("done ingest_document")
    assert Document.objects.get().status == "ready"
    positions = list(Chunk.objects.order_by("position").values_list("position", flat=True))
    assert positions == list(range(len(positions)))
    assert len(positions) == ChunkPostings.objects.count() == ChunkEmbedding.objects.count() > 1
    joined = "".join(Chunk.objects.order_by("position").values_list("text", flat=True))
    assert all(f"第{number}段" in joined for number in range(5))


@pytest.mark.parametrize(
    ("module", "stage", "when"),
    [
        pytest.param("kb.ingest.services.indexing", "_parse", "after", id="parse"),
        pytest.param("kb.ingest.services.indexing", "split", "before", id="chunk"),
        pytest.param("kb.index.services.writing", "tokenize", "before", id="tokenize"),
        pytest.param("kb.index.services.writing", "embed", "after", id="embed"),
        pytest.param("kb.ingest.services.indexing", "_finish", "after", id="write"),
    ],
)
def test_a_killed_workers_small_documents_are_indexed_once_by_the_next(media, survivor, settings, module, stage, when):
    settings.MEDIA_ROOT = media
    kb = make_kb()
    ids = [
        document_add(knowledge_base=kb, file=ContentFile(f"第{number}条".encode()), name=f"{number}.txt", user=None).pk
        for number in range(3)
    ]
    with running_worker(media, module, stage, when) as worker:
        worker.send(ingest_documents, *ids)
        worker.wait_for("there")
        survivor.send(ingest_documents, *ids)
        survivor.wait_for("done ingest_documents")
        worker.kill()

    assert set(Document.objects.values_list("status", flat=True)) == {"processing"}
    assert not Chunk.objects.exists()
    Document.objects.update(lease_until=timezone.now() - timedelta(seconds=1))  # as time would
    survivor.send(sweep_lost_documents)
    for _ in ids:
        survivor.wait_for("done ingest_document")
    assert set(Document.objects.values_list("status", "attempts")) == {("ready", 0)}
    assert Chunk.objects.count() == ChunkPostings.objects.count() == ChunkEmbedding.objects.count() == len(ids)
