"""A source that is deleted, cancelled or paused while its place is silent: the worker leaves the place, and nothing is said against it."""

from threading import Event

import pytest

from kb.base.net.addresses import AllowList, Guard
from kb.base.net.client import Politeness, WebClient
from kb.models import Source
from kb.sources.services.sources import source_cancel, source_create, source_delete, source_pause
from kb.sources.services.working import run_source
from tests.silent_server import SilentServer, ends_when_cancelled

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def silent(settings):
    settings.WEB_ALLOWED_HOSTS = ["127.0.0.1"]
    settings.WEB_SECONDS = settings.GIT_SECONDS = 300
    with SilentServer() as server:
        yield server


def waiting(kb, server, kind):
    """A source that waits for a worker, of a kind that asks the server."""
    places = {
        "webdav": {"settings": {"url": f"{server.url}/dav/"}},
        "s3": {"settings": {"endpoint": server.url, "bucket": "manuals"}},
        "git": {"settings": {"url": f"{server.url}/manuals.git"}},
        "sitemap": {"url": f"{server.url}/sitemap.xml"},
        "feed": {"url": f"{server.url}/feed.xml"},
        "page": {"url": f"{server.url}/page"},  # whose robots.txt is asked for first
    }
    return source_create(knowledge_base=kb, user=kb.owner, name=kind, kind=kind, **places[kind])


@pytest.mark.parametrize("kind", ["webdav", "s3", "git", "sitemap", "feed", "page"])
def test_the_place_of_a_deleted_source_is_left_wherever_the_run_waits(kb, silent, kind, monkeypatch):
    source = waiting(kb, silent, kind)

    def delete():
        source_delete(source, keep_documents=True)

    assert ends_when_cancelled(monkeypatch, silent.asked, run_source, delete, source.pk)
    assert silent.is_left()


@pytest.mark.parametrize(("end", "status"), [(source_cancel, "cancelled"), (source_pause, "waiting")])
def test_a_run_that_was_ended_is_no_failure(kb, silent, end, status, monkeypatch):
    source = waiting(kb, silent, "webdav")
    assert ends_when_cancelled(monkeypatch, silent.asked, run_source, lambda: end(source), source.pk)
    source = Source.objects.get(pk=source.pk)
    assert (source.status, source.error, source.failures) == (status, "", 0)


def test_a_pause_that_a_site_asks_for_ends_too(kb, silent, monkeypatch):
    source = waiting(kb, silent, "page")
    asked = Event()
    politeness = Politeness(10_000)
    politeness.wait(f"127.0.0.1:{silent.port}")
    wait = politeness.wait

    def waits(*arguments):
        asked.set()
        wait(*arguments)

    monkeypatch.setattr(politeness, "wait", waits)
    client = WebClient(Guard(AllowList.parse(["127.0.0.1"])), politeness, "Zhiku")
    read = lambda: run_source(source.pk, client=client)  # noqa: E731
    assert ends_when_cancelled(monkeypatch, asked, read, lambda: source_cancel(source))


def test_the_name_of_a_host_that_nobody_answers_is_waited_for_no_longer(kb, silent, monkeypatch):
    source, asked, released = waiting(kb, silent, "page"), Event(), Event()

    def silent_resolver(_host, _port):
        asked.set()
        released.wait()
        return []

    client = WebClient(Guard(resolver=silent_resolver), Politeness(0), "Zhiku")
    read = lambda: run_source(source.pk, client=client)  # noqa: E731
    try:
        assert ends_when_cancelled(monkeypatch, asked, read, lambda: source_cancel(source))
    finally:
        released.set()
