"""The thread that writes the search log."""

import threading
import uuid

import pytest
from django.db import DatabaseError
from django.utils import timezone

from kb.models import SearchLog
from kb.search.services import search_log
from kb.search.services.search_log import BackgroundWriter

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def writer(monkeypatch):
    monkeypatch.setattr(search_log, "GATHERING_S", 0.01)
    made = BackgroundWriter()
    yield made
    made.flush()


def entry():
    pk = uuid.uuid4()
    fields = {"profile_version": 1, "configuration": {}, "trace": {}, "result_count": 0, "duration_ms": 1.0}
    now = timezone.now()
    return pk, lambda: SearchLog(id=pk, query="heater", knowledge_base_ids=[], created_at=now, **fields)


def flushed(writer):
    """Whether a flush in a thread of its own comes back."""
    thread = threading.Thread(target=writer.flush, daemon=True)
    thread.start()
    return thread


def test_a_flush_waits_for_what_was_put_before_and_for_nothing_that_comes_meanwhile(writer, monkeypatch):
    monkeypatch.setattr(search_log, "BATCH", 1)
    begun, go_on = threading.Event(), threading.Event()
    before, make_before = entry()

    def slowly():
        begun.set()
        assert go_on.wait(60)
        return make_before()

    writer.put((before, slowly))
    assert begun.wait(60)
    flush = flushed(writer)
    while writer._waiting.empty():  # until the flush is in the line
        pass
    held = threading.Event()
    writer.put((uuid.uuid4(), lambda: held.wait(60) and entry()[1]()))
    go_on.set()
    flush.join(60)
    assert not flush.is_alive()
    assert SearchLog.objects.filter(pk=before).exists()
    held.set()


@pytest.mark.parametrize("error", [KeyError("rows"), DatabaseError("the connection is lost")])
def test_a_fault_of_whoever_takes_logged_searches_does_not_end_the_writing(writer, error):
    def fail(**_sent):
        raise error

    search_log.searches_logged.connect(fail)
    try:
        writer.put(entry())
        flush = flushed(writer)
        flush.join(60)
        assert not flush.is_alive()
    finally:
        search_log.searches_logged.disconnect(fail)
    after, make = entry()
    writer.put((after, make))
    writer.flush()
    assert SearchLog.objects.filter(pk=after).exists()


def test_searches_do_not_wait_for_a_writer_that_falls_behind(monkeypatch, caplog):
    monkeypatch.setattr(search_log, "WAITING_ENTRIES", 1)
    monkeypatch.setattr(search_log, "GATHERING_S", 0.0)
    writer, begun, go_on = BackgroundWriter(), threading.Event(), threading.Event()
    (busy, make_busy), (waits, make_waits), (lost, make_lost) = entry(), entry(), entry()
    writer.put((busy, lambda: begun.set() or (go_on.wait(60) and make_busy())))
    assert begun.wait(60)

    writer.put((waits, make_waits))
    writer.put((lost, make_lost))

    assert f"the search log falls behind: entry {lost} was not stored" in caplog.messages
    go_on.set()
    writer.flush()
    assert {*SearchLog.objects.values_list("pk", flat=True)} == {busy, waits}
