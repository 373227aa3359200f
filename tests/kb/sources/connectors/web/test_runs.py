"""Runs of sources: what stops, interrupts and changes them."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from kb import tasks
from kb.base.errors import Rejected
from kb.jobs.leases import LeaseLost
from kb.models import Document, Source, SourceItem
from kb.sources.connectors.listing import CrawlListing, Scope, SitemapListing
from kb.sources.connectors.web import reading
from kb.sources.services.runs import Run
from kb.sources.services.sources import (
    LEASE,
    source_cancel,
    source_create,
    source_delete,
    source_request,
    source_update,
    sweep_sources,
)
from kb.sources.services.working import MAX_ATTEMPTS, run_source
from tests.kb.sources.connectors.web.sources import create, run, sitemap, states
from tests.web_server import Page, article, client_for

pytestmark = pytest.mark.django_db


class TestARun:
    def test_a_source_that_is_read_is_not_taken_twice(self, kb, web):
        source = create(kb, web, "page")
        assert Run.claim(source.pk) is not None
        assert Run.claim(source.pk) is None
        assert not source_request(source)

    def test_a_cancelled_run_writes_nothing_more(self, kb, web):
        source = create(kb, web, "page")
        held = Run.claim(source.pk)
        source_cancel(source)
        assert source.status == "cancelled"
        with pytest.raises(LeaseLost):
            held.end("done")
        with pytest.raises(LeaseLost), held.holding():
            pass

    def test_the_sweep_takes_up_a_source_whose_worker_was_lost(self, kb, web):
        web.pages["/"] = Page(article("Hours"))
        source = create(kb, web, "page")
        Run.claim(source.pk)
        assert sweep_sources() == []
        Source.objects.update(lease_until=timezone.now() - LEASE)
        assert sweep_sources() == [source.pk]
        run_source(source.pk, client=client_for(web))
        source.refresh_from_db()
        assert source.status == "done"

    def test_a_source_that_stops_its_workers_is_given_up(self, kb, web):
        source = create(kb, web, "page")
        Source.objects.update(attempts=MAX_ATTEMPTS)
        run_source(source.pk, client=client_for(web))
        source.refresh_from_db()
        assert source.status == "failed"
        assert "three times" in source.error

    def test_a_source_is_due_again_after_its_time(self, kb, web):
        web.pages["/"] = Page(article("Hours"))
        source = run(create(kb, web, "page", every_minutes=60), web)
        assert timedelta(minutes=59) < source.next_run_at - timezone.now() < timedelta(minutes=61)
        assert sweep_sources() == []
        Source.objects.update(next_run_at=timezone.now())
        assert sweep_sources() == [source.pk]
        source.refresh_from_db()
        assert source.status == "waiting"

    def test_a_source_that_is_switched_off_is_not_due(self, kb, web):
        source = create(kb, web, "page", every_minutes=60, enabled=False)
        assert (source.status, source.next_run_at) == ("never", None)
        source_update(source, every_minutes=30)
        assert source.next_run_at is None

    def test_a_run_that_is_asked_for_is_sent_to_a_worker_on_commit(
        self, kb, web, django_capture_on_commit_callbacks, monkeypatch
    ):
        from kb import signals

        sent = []
        monkeypatch.setattr(signals, "enqueue", lambda task, *ids: sent.append((task.name, ids)))
        with django_capture_on_commit_callbacks(execute=True):
            source = create(kb, web, "page")
        assert sent == [("kb.tasks.read_web_source", (source.pk,))]

    def test_the_sweep_s_task_begins_what_is_due_and_a_task_reads_it(self, kb, web, settings, monkeypatch):
        settings.WEB_ALLOWED_HOSTS, settings.WEB_DELAY_SECONDS = ["127.0.0.1"], 0.0
        web.pages["/"] = Page(article("Hours"))
        source = create(kb, web, "page", every_minutes=60)
        Source.objects.update(status="done", next_run_at=timezone.now())
        sent = []
        monkeypatch.setattr(tasks, "enqueue", lambda task, *ids: sent.append((task, ids)))

        tasks.sweep_due_sources()

        assert sent == [(tasks.read_source, (source.pk,))]
        tasks.read_source(source.pk)
        source.refresh_from_db()
        assert (source.status, source.counts) == ("done", {"added": 1})


class TestChanges:
    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"url": "file:///etc/passwd"}, "url_refused"),
            ({"include": ["("]}, "include_invalid"),
            ({"exclude": ["*"]}, "exclude_invalid"),
            ({"name": "site"}, "name_taken"),
        ],
    )
    def test_what_cannot_be_is_refused(self, kb, web, fields, code):
        create(kb, web, "page")
        values = {"name": "other", "kind": "page", "url": web.url("/")} | fields
        with pytest.raises(Rejected) as refusal:
            source_create(knowledge_base=kb, user=kb.owner, **values)
        assert refusal.value.code == code

    def test_another_address_is_read_at_once(self, kb, web):
        web.pages["/"] = Page(article("Hours"))
        source = run(create(kb, web, "page"), web)
        source_update(source, name="renamed")
        assert source.status == "done"
        source_update(source, url=web.url("/other"))
        assert source.status == "waiting"

    @pytest.mark.parametrize("keep", [True, False])
    def test_a_source_goes_with_its_documents_or_without(self, kb, web, keep):
        web.pages["/"] = Page(article("Hours"))
        source = run(create(kb, web, "page"), web)
        source_delete(source, keep_documents=keep)
        assert SourceItem.objects.count() == 0
        assert Document.objects.count() == int(keep)


class TestChangesDuringARun:
    def test_a_change_of_what_is_read_begins_again(self, kb, web):
        web.pages |= {"/a": Page(article("A")), "/b": Page(article("B"))}
        source = create(kb, web, "page", "/a")
        before = Run.claim(source.pk)
        source.refresh_from_db()

        source_update(source, url=web.url("/b"))

        assert source.status == Source.Status.WAITING
        with pytest.raises(LeaseLost):
            before.report()
        run_source(source.pk, client=client_for(web))
        assert states(source) == {"b": "kept"}

    def test_a_schedule_that_was_taken_away_is_not_planned_by_the_run_that_ends(self, kb, web):
        web.pages["/a"] = Page(article("A"))
        source = create(kb, web, "page", "/a", every_minutes=5)
        run_under_way = Run.claim(source.pk)
        source_update(Source.objects.get(pk=source.pk), every_minutes=None)

        run_under_way.end("done")

        source.refresh_from_db()
        assert (source.status, source.next_run_at) == ("done", None)

    def test_a_run_whose_source_is_deleted_as_it_ends_writes_nothing(self, kb, web):
        source = create(kb, web, "page", "/a")
        run_under_way = Run.claim(source.pk)
        source_delete(source, keep_documents=True)
        with pytest.raises(LeaseLost):
            run_under_way.end("done")


def test_a_run_whose_listing_takes_longer_than_a_slice_comes_to_an_end(kb, web):
    web.pages |= {f"/{name}": Page(article(name)) for name in "abc"}
    web.pages["/sitemap.xml"] = sitemap(web, "/a", "/b", "/c")
    source = create(kb, web, "sitemap", "/sitemap.xml")

    slices = 1
    while run_source(source.pk, client=client_for(web), slice_s=0):
        slices += 1
        assert slices < 10

    source.refresh_from_db()
    assert (source.status, source.counts) == ("done", {"added": 3})


def test_a_page_of_thousands_of_links_queues_no_more_than_are_read(kb, web):
    links = tuple(f"/{number}" for number in range(3_000))
    web.pages["/"] = Page(article("Start", links=links))
    listing = CrawlListing(client_for(web), web.url("/"), Scope(), max_pages=5, max_depth=3)
    met = []
    for candidate in listing:
        met.append(candidate.url)
        listing.met(candidate, [web.url(link) for link in links])
    assert (len(met), listing.is_complete, len(listing._met)) == (5, False, 6)


class TestLongListings:
    """Sitemaps that take longer to read than a worker's turn."""

    @pytest.fixture
    def source(self, kb, web):
        names = ("one", "two", "three")
        links = "".join(f"<sitemap><loc>{web.url(f'/{name}.xml')}</loc></sitemap>" for name in names)
        web.pages["/sitemap.xml"] = Page(f"<sitemapindex>{links}</sitemapindex>", type="application/xml")
        for name in names:
            web.pages[f"/{name}.xml"] = sitemap(web, f"/{name}")
            web.pages[f"/{name}"] = Page(article(name))
        return create(kb, web, "sitemap", "/sitemap.xml")

    def test_each_turn_goes_on_with_the_next_sitemap(self, source, web, monkeypatch):
        monkeypatch.setattr(reading, "LISTING_S", 0.0)
        assert run(source, web).counts == {"added": 3}
        assert (source.status, source.listing) == ("done", None)
        assert sorted(path for path in web.paths if "xml" in path) == sorted(
            ["/sitemap.xml", "/one.xml", "/two.xml", "/three.xml"]
        )

    def test_what_the_sitemaps_of_other_turns_listed_is_not_gone(self, source, web, monkeypatch):
        run(source, web)
        monkeypatch.setattr(reading, "LISTING_S", 0.0)
        web.pages["/two.xml"] = sitemap(web)
        assert run(source, web).counts == {"unchanged": 2, "gone": 1}

    def test_the_clock_of_a_slice_starts_with_the_first_page(self, source, web, monkeypatch):
        now, read = 0.0, SitemapListing._read

        def slow(listing, url):
            nonlocal now
            now += 5_000
            return read(listing, url)

        monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now))
        monkeypatch.setattr(reading, "LISTING_S", 100_000.0)
        monkeypatch.setattr(SitemapListing, "_read", slow)
        assert run_source(source.pk, client=client_for(web), slice_s=6_000)
        assert states(source) == {"one": "kept", "two": "kept"}


def test_a_new_source_of_which_no_page_is_there_has_failed(kb, web):
    source = run(create(kb, web, "page", "/missing"), web)
    assert (source.status, source.error_code, source.counts) == ("failed", "gone", {"gone": 1})


def test_a_source_with_documents_whose_only_page_is_missing_now_has_not_failed(kb, web):
    web.pages["/"] = Page(article("Hours"))
    source = run(create(kb, web, "page"), web)
    del web.pages["/"]
    assert (run(source, web).status, source.counts) == ("done", {"gone": 1})


def test_a_page_whose_text_is_too_large_is_not_stored_and_an_older_text_of_it_stays(kb, web, settings):
    web.pages |= {"/a": Page(article("A")), "/b": Page(article("B"))}
    web.pages["/sitemap.xml"] = sitemap(web, "/a", "/b")
    source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
    before = dict(Document.objects.values_list("pk", "sha256"))
    settings.MAX_UPLOAD_BYTES = 10_000
    web.pages["/b"] = Page(article("B", "The reading room has a hundred desks. " * 1_000))
    web.pages["/c"] = Page(article("C", "The catalogue has a million cards. " * 1_000))
    web.pages["/sitemap.xml"] = sitemap(web, "/a", "/b", "/c")

    run(source, web)

    assert (source.status, source.counts) == ("done", {"unchanged": 1, "failed": 2})
    assert dict(Document.objects.values_list("pk", "sha256")) == before
    failed = source.items.filter(state="failed").values_list("url", "error_code")
    assert set(failed) == {(web.url("/b"), "too_large"), (web.url("/c"), "too_large")}
