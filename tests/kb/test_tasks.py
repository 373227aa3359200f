import logging

import pytest
from django.core.files.base import ContentFile
from kombu.exceptions import OperationalError

from kb import signals
from kb.ingest.services.documents import document_add
from kb.tasks import enqueue, ingest_document
from tests.factories import make_kb


class Unreachable:
    """A task whose broker is down."""

    name = "a.task"

    def delay(self, *ids):
        raise OperationalError("connection refused")


def test_without_a_broker_a_task_waits_for_the_sweep_and_the_caller_goes_on(caplog):
    with caplog.at_level(logging.WARNING):
        enqueue(Unreachable(), 7)
    assert "a.task(7,) waits for the broker" in caplog.text


@pytest.mark.django_db
def test_an_uploaded_document_is_enqueued_once_it_is_committed(django_capture_on_commit_callbacks, monkeypatch):
    sent = []
    monkeypatch.setattr(signals, "enqueue", lambda task, *ids: sent.append((task.name, ids)))
    kb = make_kb()
    with django_capture_on_commit_callbacks(execute=True):
        document = document_add(knowledge_base=kb, file=ContentFile(b"text"), name="a.txt", user=kb.owner)
        assert sent == []
    assert sent == [("kb.tasks.ingest_document", (document.pk,))]


@pytest.mark.django_db
def test_the_task_indexes_the_document():
    kb = make_kb()
    document = document_add(knowledge_base=kb, file=ContentFile(b"text"), name="a.txt", user=kb.owner)
    ingest_document(document.pk)
    document.refresh_from_db()
    assert document.status == "ready"
