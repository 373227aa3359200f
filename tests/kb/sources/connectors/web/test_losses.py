"""Sites that show one page for many addresses, or none, for a while: documents stay until that is certain."""

import uuid

import pytest

from kb.access.services.attribution import acting
from kb.ingest.services.indexing import index_document
from kb.models import AuditEntry, Chunk, Document, SourceItemChange
from kb.sources.services.sources import (
    source_accept,
    source_cancel,
    source_create,
    source_request,
)
from kb.sources.services.working import run_source
from tests.kb.sources.connectors.web.sources import a_day_later, create, entry, feed, run, sitemap, states
from tests.web_server import ARTICLE, Page, article, client_for

pytestmark = pytest.mark.django_db

MAINTENANCE = article("Maintenance", "We are improving our site for you. Please come back in a little while. " * 5)


def paths(count):
    return [f"/{number:03}" for number in range(count)]


def words_page(number, text=""):
    """A page whose words differ from those of others, not only its numbers."""
    word = "".join("abcdefghij"[int(digit)] for digit in f"{number:04}")
    return Page(article(f"Title {word}", f"The {word} department {text} answers here. {ARTICLE}"))


def site(kb, web, count, **fields):
    """A source of so many pages that has been read once."""
    for number, path in enumerate(paths(count)):
        web.pages[path] = words_page(number)
    web.pages["/sitemap.xml"] = sitemap(web, *paths(count))
    source = run(create(kb, web, "sitemap", "/sitemap.xml", **fields), web)
    assert Document.objects.count() == count
    return source


def hashes():
    return dict(Document.objects.values_list("pk", "sha256"))


def maintain(web, count, body=MAINTENANCE):
    for path in paths(count):
        web.pages[path] = Page(body() if callable(body) else body)


class TestAMaintenancePage:
    @pytest.mark.parametrize("count", [2, 5])
    def test_no_document_is_deleted_or_overwritten(self, kb, web, count):
        source = site(kb, web, count)
        before = hashes()
        maintain(web, count)

        for _ in range(2):  # as often as a schedule comes within the hours of maintenance
            run(source, web)

        assert hashes() == before
        assert (source.status, source.error_code) == ("failed", "one_text")
        assert "accept the changes" in source.error
        assert "improving our site" in source.error
        assert not SourceItemChange.objects.exists()

    def test_edits_survive_it(self, kb, web):
        source = site(kb, web, 4)
        document = Document.objects.earliest("pk")
        index_document(document.pk)
        Chunk.objects.filter(document=document).update(text="As a curator put it.")
        maintain(web, 4)
        run(source, web)
        for number, path in enumerate(paths(4)):
            web.pages[path] = words_page(number)
        run(source, web)
        assert source.counts == {"unchanged": 4}
        assert set(states(source).values()) == {"unchanged"}
        assert Chunk.objects.get(document=document).text == "As a curator put it."

    def test_the_site_is_not_asked_to_its_end(self, kb, web):
        source = site(kb, web, 9)
        maintain(web, 9)
        web.forget()
        run(source, web)
        assert len(web.paths) == 1 + 3  # the sitemap, and a quarter of the pages

    def test_one_with_numbers_and_identifiers_in_it_is_known_too(self, kb, web):
        source = site(kb, web, 4)
        before = hashes()

        def numbered():
            return MAINTENANCE.replace("little while", f"while (request {uuid.uuid4()}, 12:{uuid.uuid4().int % 60:02})")

        maintain(web, 4, numbered)
        run(source, web)
        assert (hashes(), source.error_code) == (before, "one_text")

    def test_a_login_page_that_every_address_leads_to_is_one(self, kb, web):
        source = site(kb, web, 4)
        before = hashes()
        web.pages["/login"] = Page(MAINTENANCE)
        for path in paths(4):
            web.pages[path] = Page(location=f"/login?next={path}")
            web.pages[f"/login?next={path}"] = Page(MAINTENANCE)
        run(source, web)
        assert (hashes(), source.error_code) == (before, "one_text")

    def test_addresses_that_lead_to_the_first_page_keep_their_documents(self, kb, web):
        source = site(kb, web, 4)
        before = hashes()
        for path in paths(4)[1:]:
            web.pages[path] = Page(location=paths(1)[0])
        run(source, web)
        assert (hashes(), source.error_code) == (before, "one_text")

    def test_one_over_a_part_of_a_site_takes_nothing_of_it(self, kb, web):
        source = site(kb, web, 9)
        before = hashes()
        maintain(web, 2)
        web.pages["/008"] = words_page(8, "from now on")

        run(source, web)

        assert (source.status, source.counts) == ("done", {"duplicate": 2, "changed": 1, "unchanged": 6})
        changed = {pk for pk, digest in hashes().items() if before[pk] != digest}
        assert len(changed) == 1
        assert source.items.filter(error_code="same_text").count() == 2

    def test_sources_of_one_page_each_keep_all_but_the_first(self, kb, web):
        sources = []
        for number, path in enumerate(paths(3)):
            web.pages[path] = words_page(number)
            fields = {"knowledge_base": kb, "user": kb.owner, "kind": "page", "name": path, "url": web.url(path)}
            sources.append(run(source_create(**fields), web))
        before = hashes()
        maintain(web, 3, lambda: MAINTENANCE.replace("while", f"while ({uuid.uuid4()})"))
        for source in sources:
            run(source, web)
        assert sum(before[pk] == digest for pk, digest in hashes().items()) == 2

    def test_entries_of_a_feed_keep_their_documents(self, kb, web):
        texts = [f"<p>About {word}. {ARTICLE}</p>" for word in ("ships", "trains", "roads")]
        items = [entry(web, f"/{place}", "News", content=text) for place, text in enumerate(texts)]
        web.pages["/feed"] = feed(web, *items)
        source = run(create(kb, web, "feed", "/feed"), web)
        before = hashes()
        web.pages["/feed"] = feed(
            web, *(entry(web, f"/{n}", "News", content="<p>Please sign in.</p>") for n in range(3))
        )
        run(source, web)
        assert (hashes(), source.error_code) == (before, "one_text")

    def test_a_run_in_slices_takes_nothing_either(self, kb, web):
        source = site(kb, web, 4)
        before = hashes()
        maintain(web, 4)
        source_request(source)
        while run_source(source.pk, client=client_for(web), slice_s=0):
            assert hashes() == before
        source.refresh_from_db()
        assert (hashes(), source.error_code) == (before, "one_text")

    def test_one_before_the_site_asks_for_fewer_requests_takes_nothing(self, kb, web):
        source = site(kb, web, 3)
        before = hashes()
        web.pages["/000"] = Page(MAINTENANCE)
        web.pages["/001"] = Page(status=503, headers={"Retry-After": "60"})
        run(source, web)
        assert (source.error_code, hashes()) == ("too_many_requests", before)

    def test_what_a_cancelled_run_held_is_dropped(self, kb, web):
        source = site(kb, web, 3)
        before = hashes()
        web.pages["/000"] = words_page(0, "from now on")
        source_request(source)
        assert run_source(source.pk, client=client_for(web), slice_s=0)
        assert SourceItemChange.objects.count() == 1
        source_cancel(source)
        assert (SourceItemChange.objects.count(), hashes()) == (0, before)
        run(source, web)
        assert source.counts == {"changed": 1, "unchanged": 2}


class TestAPageThatEqualsAnother:
    def test_it_keeps_its_document_until_a_run_a_day_later_agrees(self, kb, web):
        source = site(kb, web, 5)
        web.pages["/001"] = web.pages["/000"]
        for _ in range(2):
            run(source, web)
            assert (Document.objects.count(), states(source)["001"]) == (5, "duplicate")
        a_day_later(source)
        run(source, web)
        assert (Document.objects.count(), source.counts) == (4, {"deleted": 1, "unchanged": 4})
        run(source, web)
        assert source.counts == {"duplicate": 1, "unchanged": 4}

    def test_the_day_begins_again_after_it_showed_its_own_text(self, kb, web):
        source = site(kb, web, 5)
        own = web.pages["/001"]
        web.pages["/001"] = web.pages["/000"]
        run(source, web)
        web.pages["/001"] = own
        a_day_later(source)
        run(source, web)
        assert states(source)["001"] == "unchanged"
        web.pages["/001"] = web.pages["/000"]
        run(source, web)
        assert Document.objects.count() == 5

    def test_what_is_accepted_goes_at_once(self, kb, web):
        source = site(kb, web, 5)
        web.pages["/001"] = web.pages["/000"]
        run(source, web)
        source_accept(source)
        run_source(source.pk, client=client_for(web))
        source.refresh_from_db()
        assert (Document.objects.count(), source.status, source.accepted_keys) == (4, "done", [])

    def test_pages_that_were_alike_before_change_together(self, kb, web):
        for path in paths(4):
            web.pages[path] = Page(article("Room", f"Room {path[1:]} opens at {path[1:]}. {ARTICLE}"))
        web.pages["/sitemap.xml"] = sitemap(web, *paths(4))
        source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
        assert source.counts == {"added": 4}
        for path in paths(4):
            web.pages[path] = Page(article("Room", f"Room {path[1:]} is open until {path[1:]}. {ARTICLE}"))
        run(source, web)
        assert (source.status, source.counts) == ("done", {"changed": 4})


class TestAMerge:
    def test_pages_that_became_one_go_through_when_that_is_accepted(self, kb, web):
        source = site(kb, web, 4)
        maintain(web, 4)
        run(source, web)
        assert source.error_code == "one_text"

        with acting("admin", user=kb.owner):
            source_accept(source)
        run_source(source.pk, client=client_for(web))

        source.refresh_from_db()
        assert (source.status, source.counts) == ("done", {"changed": 1, "deleted": 3})
        entry = AuditEntry.objects.filter(object_type="source", action="update").latest("pk")
        assert (entry.username, list(entry.changes)) == (kb.owner.username, ["accepted_at"])

    def test_another_text_than_the_accepted_one_stops_the_run_again(self, kb, web):
        source = site(kb, web, 5)
        maintain(web, 5)
        run(source, web)
        before = hashes()
        maintain(web, 5, MAINTENANCE.replace("improving", "repairing"))
        source_accept(source)
        run_source(source.pk, client=client_for(web))
        source.refresh_from_db()
        assert (source.error_code, hashes()) == ("one_text", before)


class TestManyPagesThatAreGone:
    def test_two_runs_within_the_hours_of_an_outage_delete_nothing(self, kb, web):
        source = site(kb, web, 5)
        del web.pages["/000"]
        for _ in range(2):
            run(source, web)
            assert (source.counts, Document.objects.count()) == ({"gone": 1, "unchanged": 4}, 5)

    def test_a_large_share_stays_until_somebody_accepts(self, kb, web):
        source = site(kb, web, 5)
        for path in paths(2):
            del web.pages[path]
        run(source, web)
        a_day_later(source)
        run(source, web)
        assert (source.status, source.error_code, Document.objects.count()) == ("failed", "many_gone", 5)

        source_accept(source)
        run_source(source.pk, client=client_for(web))
        source.refresh_from_db()
        assert (source.status, source.counts, Document.objects.count()) == ("done", {"deleted": 2, "unchanged": 3}, 3)

    def test_a_sitemap_that_lists_few_of_its_pages_takes_nothing_away(self, kb, web):
        source = site(kb, web, 5)
        web.pages["/sitemap.xml"] = sitemap(web, *paths(2))
        run(source, web)
        a_day_later(source)
        run(source, web)
        assert (source.error_code, Document.objects.count()) == ("many_gone", 5)

    def test_an_empty_feed_takes_nothing_away(self, kb, web):
        web.pages["/feed"] = feed(web, entry(web, "/1", "First", content=f"<p>{ARTICLE}</p>"))
        source = run(create(kb, web, "feed", "/feed"), web)
        web.pages["/feed"] = feed(web)
        for _ in range(2):
            run(source, web)
            a_day_later(source)
        assert (source.error_code, Document.objects.count()) == ("empty_listing", 1)


def test_many_changes_are_written_before_the_run_ends(kb, web, monkeypatch):
    from kb.sources.connectors.web import reading as runs

    monkeypatch.setattr(runs, "MOST_HELD", 4)
    source = site(kb, web, 6)
    for number, path in enumerate(paths(6)):
        web.pages[path] = words_page(number, "from now on")
    web.pages["/robots.txt"] = Page("", type="text/plain")
    run(source, web)
    assert (source.status, source.counts) == ("done", {"changed": 6})


def numbered(number):
    """Pages that differ by their number alone."""
    return Page(article("Record", f"This is the record number {number} of the archive. {ARTICLE}"))


@pytest.mark.parametrize("count", [2, 4])
def test_a_page_that_is_again_what_it_was_is_written_at_once_although_others_differ_by_numbers_only(kb, web, count):
    for number, path in enumerate(paths(count)):
        web.pages[path] = numbered(number)
    web.pages["/sitemap.xml"] = sitemap(web, *paths(count))
    source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
    assert source.counts == {"added": count}
    before = hashes()
    web.pages["/000"] = Page(MAINTENANCE)
    assert run(source, web).counts == {"unchanged": count - 1, "changed": 1}
    web.pages["/000"] = numbered(0)
    assert run(source, web).counts == {"unchanged": count - 1, "changed": 1}
    assert hashes() == before
