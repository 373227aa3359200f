"""Each kind of source of the web, read from a real server on the loopback into documents."""

import pytest
from django.db import OperationalError

from kb.base.net.client import WebClient
from kb.ingest.services.documents import document_delete
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document
from kb.sources.connectors.web.reading import MAX_SILENT
from kb.sources.services.working import run_source
from tests.kb.sources.connectors.web.sources import a_day_later, create, entry, feed, run, sitemap, states
from tests.web_server import ARTICLE, Page, article, client_for

pytestmark = pytest.mark.django_db


class TestAPage:
    def test_it_becomes_a_document_with_its_address(self, kb, web):
        web.pages["/hours.html"] = Page(article("Opening hours"))
        source = run(create(kb, web, "page", "/hours.html", tags=["archive"]), web)

        assert (source.status, source.counts) == ("done", {"added": 1})
        document = Document.objects.get()
        assert (document.title, document.source_type, document.tags) == ("Opening hours", "web", ["archive"])
        assert document.source == "127.0.0.1_hours.html"
        assert document.metadata["url"] == web.url("/hours.html")
        assert document.metadata["fetched_at"]
        index_document(document.pk)
        assert ARTICLE[:80] in Chunk.objects.get().text

    def test_the_date_that_the_page_states_is_kept(self, kb, web):
        head = '<meta property="article:published_time" content="2026-05-01T08:00:00+08:00">'
        web.pages["/"] = Page(article("Hours").replace("<head>", f"<head>{head}"))
        run(create(kb, web, "page"), web)
        assert Document.objects.get().metadata["published"] == "2026-05-01T08:00:00+08:00"

    def test_characters_that_only_the_header_declares_are_read(self, kb, web):
        text = "Öffnungszeiten für Besucher und Gäste. " * 10
        web.pages["/"] = Page(article("Zeiten", text).encode("cp1252"), type="text/html; charset=windows-1252")
        run(create(kb, web, "page"), web)
        document = Document.objects.get()
        index_document(document.pk)
        assert "Öffnungszeiten für Besucher" in Chunk.objects.first().text

    def test_a_page_that_is_as_it_was_is_not_sent_again(self, kb, web):
        web.pages["/"] = Page(article("Hours"), etag='"1"')
        source = run(create(kb, web, "page"), web)
        run(source, web)
        assert (source.counts, states(source)) == ({"unchanged": 1}, {"": "unchanged"})
        assert web.asked[-1].headers["If-None-Match"] == '"1"'

    def test_another_advertisement_is_no_change(self, kb, web):
        web.pages["/"] = Page(article("Hours"))
        source = run(create(kb, web, "page"), web)
        before = Document.objects.get()
        web.pages["/"] = Page(article("Hours").replace("<nav>", "<nav><script>advertise(7)</script>"))
        run(source, web)
        assert source.counts == {"unchanged": 1}
        assert Document.objects.get().sha256 == before.sha256

    def test_a_changed_page_replaces_the_file_of_its_document(self, kb, web, django_capture_on_commit_callbacks):
        web.pages["/"] = Page(article("Hours"))
        source = run(create(kb, web, "page"), web)
        document = Document.objects.get()
        old = document.file.path
        index_document(document.pk)
        web.pages["/"] = Page(article("New hours", "Open at ten from now on, also on Sundays and holidays. " * 8))

        with django_capture_on_commit_callbacks(execute=True):
            run(source, web)

        assert source.counts == {"changed": 1}
        document.refresh_from_db()
        assert (document.title, document.status) == ("New hours", "pending")
        assert not document.file.storage.exists(old)
        index_document(document.pk)
        assert "Open at ten" in Chunk.objects.get().text

    def test_the_title_that_a_curator_gave_stays(self, kb, web):
        web.pages["/"] = Page(article("Hours"))
        source = run(create(kb, web, "page"), web)
        Document.objects.update(title="When we are open")
        web.pages["/"] = Page(article("New hours", "Open at ten from now on, also on Sundays and holidays. " * 8))
        run(source, web)
        assert Document.objects.get().title == "When we are open"

    def test_a_page_that_is_gone_is_marked_first_and_its_document_deleted_then(self, kb, web):
        web.pages["/"] = Page(article("Hours"))
        source = run(create(kb, web, "page"), web)
        del web.pages["/"]

        run(source, web)
        assert (source.counts, states(source), Document.objects.count()) == ({"gone": 1}, {"": "gone"}, 1)
        a_day_later(source)
        run(source, web)
        assert (source.counts, states(source), Document.objects.count()) == ({"deleted": 1}, {"": "gone"}, 0)

    def test_a_page_that_is_there_again_is_gone_no_more(self, kb, web):
        page = web.pages["/"] = Page(article("Hours"), etag='"1"')
        source = run(create(kb, web, "page"), web)
        del web.pages["/"]
        run(source, web)
        web.pages["/"] = page
        run(source, web)
        assert states(source) == {"": "unchanged"}
        del web.pages["/"]
        run(source, web)
        assert Document.objects.count() == 1

    def test_a_failing_server_takes_nothing_away(self, kb, web):
        web.pages["/"] = Page(article("Hours"))
        source = run(create(kb, web, "page"), web)
        web.pages["/"] = Page(status=500)
        for _ in range(3):
            run(source, web)
        page = source.items.get()
        assert (page.state, page.error_code, page.error_params) == ("failed", "bad_status", {"status": 500})
        assert Document.objects.count() == 1

    def test_robots_are_refused_what_robots_txt_forbids(self, kb, web):
        web.pages["/robots.txt"] = Page("User-agent: Zhiku\nDisallow: /private", type="text/plain")
        web.pages["/private/a"] = Page(article("Hours"))
        source = run(create(kb, web, "page", "/private/a"), web)
        assert (source.counts, states(source)) == ({"refused": 1}, {"a": "refused"})
        assert web.paths == []

    def test_a_page_without_text_says_so(self, kb, web):
        web.pages["/"] = Page("<html><body><script>draw()</script></body></html>")
        source = run(create(kb, web, "page"), web)
        assert source.items.get().error_code == "empty_file"

    def test_what_another_document_holds_is_not_kept_twice(self, kb, web):
        web.pages["/"] = web.pages["/index.html"] = Page(article("Hours"))
        web.pages["/sitemap.xml"] = sitemap(web, "/", "/index.html")
        source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
        assert states(source) == {"": "kept", "index.html": "duplicate"}
        assert "Hours" in source.items.get(state="duplicate").error

    def test_a_document_that_a_curator_deleted_comes_again(self, kb, web):
        web.pages["/"] = Page(article("Hours"), etag='"1"')
        source = run(create(kb, web, "page"), web)
        document_delete(Document.objects.get())
        run(source, web)
        assert source.counts == {"added": 1}


class TestASitemap:
    def test_its_pages_become_documents(self, kb, web):
        for path in ("/a", "/b"):
            web.pages[path] = Page(article(f"Title {path}", f"{path} says: {ARTICLE}"))
        web.pages["/sitemap.xml"] = sitemap(web, "/a", "/b", "/a")
        source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
        assert sorted(Document.objects.values_list("title", flat=True)) == ["Title /a", "Title /b"]
        assert source.counts == {"added": 2}

    def test_a_page_that_leaves_it_goes_at_the_second_run(self, kb, web):
        for path in ("/a", "/b"):
            web.pages[path] = Page(article(path, f"{path} {ARTICLE}"))
        web.pages["/sitemap.xml"] = sitemap(web, "/a", "/b")
        source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
        web.pages["/sitemap.xml"] = sitemap(web, "/a")

        run(source, web)
        assert (states(source), Document.objects.count()) == ({"a": "unchanged", "b": "gone"}, 2)
        a_day_later(source)
        run(source, web)
        assert (source.counts, Document.objects.count()) == ({"unchanged": 1, "deleted": 1}, 1)
        run(source, web)
        assert source.counts == {"unchanged": 1}

    @pytest.mark.parametrize("broken", [Page(status=500), Page("<html></html>"), Page("<urlset/>", type="text/xml")])
    def test_one_that_cannot_be_read_takes_nothing_away(self, kb, web, broken):
        web.pages["/a"] = Page(article("A"))
        web.pages["/sitemap.xml"] = sitemap(web, "/a")
        source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
        web.pages["/sitemap.xml"] = broken
        run(source, web)
        assert (source.status, states(source)) == ("failed", {"a": "kept"})
        assert source.error

    def test_where_a_part_of_it_cannot_be_read_nothing_is_gone(self, kb, web):
        web.pages["/a"] = Page(article("A"))
        web.pages["/b"] = Page(article("B", f"B {ARTICLE}"))
        parts = "".join(f"<sitemap><loc>{web.url(path)}</loc></sitemap>" for path in ("/1.xml", "/2.xml"))
        web.pages["/sitemap.xml"] = Page(f"<sitemapindex>{parts}</sitemapindex>", type="text/xml")
        web.pages["/1.xml"], web.pages["/2.xml"] = sitemap(web, "/a"), sitemap(web, "/b")
        source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
        del web.pages["/2.xml"]
        run(source, web)
        assert states(source) == {"a": "unchanged", "b": "kept"}

    def test_a_site_that_leads_elsewhere_is_not_followed(self, kb, web):
        web.pages["/a"] = Page(location="http://169.254.169.254/")
        web.pages["/sitemap.xml"] = sitemap(web, "/a")
        source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
        assert source.items.get().error_code == "off_site"

    def test_a_site_that_is_out_of_reach_ends_the_run(self, kb, web):
        paths = [f"/{number}" for number in range(MAX_SILENT + 5)]
        web.pages["/sitemap.xml"] = sitemap(web, *paths)
        web.pages["/robots.txt"] = Page(status=500)
        source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
        assert (source.status, source.error_code) == ("failed", "robots_unreadable")
        assert source.items.count() == MAX_SILENT

    def test_a_site_that_asks_for_fewer_requests_is_left_alone(self, kb, web):
        web.pages["/a"] = Page(status=429)
        web.pages["/sitemap.xml"] = sitemap(web, "/a", "/b")
        source = run(create(kb, web, "sitemap", "/sitemap.xml"), web)
        assert (source.status, source.error_code) == ("failed", "too_many_requests")
        assert web.paths == ["/sitemap.xml", "/a"]


class TestACrawl:
    def site(self, web):
        web.pages["/"] = Page(article("Home", f"Home {ARTICLE}", ("/a", "/b?utm_source=x", "#top")), etag='"home"')
        web.pages["/a"] = Page(article("A", f"A {ARTICLE}", ("/deep",)))
        web.pages["/b"] = Page(article("B", f"B {ARTICLE}", ("http://other.example.org/",)))
        web.pages["/deep"] = Page(article("Deep", f"Deep {ARTICLE}", ("/deeper",)))

    def test_it_follows_links_as_deep_as_it_may(self, kb, web):
        self.site(web)
        source = run(create(kb, web, "crawl", max_depth=2), web)
        assert web.paths == ["/", "/a", "/b", "/deep"]
        assert source.counts == {"added": 4}

    def test_it_takes_no_more_pages_than_it_may(self, kb, web):
        self.site(web)
        source = run(create(kb, web, "crawl", max_pages=2), web)
        assert source.counts == {"added": 2}

    def test_it_takes_only_what_its_addresses_are_to_be_like(self, kb, web):
        self.site(web)
        run(create(kb, web, "crawl", include=["/$", "/[ab]$"], exclude=["/a$"]), web)
        assert web.paths == ["/", "/b"]

    def test_pages_behind_one_that_was_not_sent_again_are_still_found(self, kb, web):
        self.site(web)
        source = run(create(kb, web, "crawl"), web)
        web.pages["/a"] = Page(article("A", f"Another A {ARTICLE}", ("/deep",)))
        web.forget()
        run(source, web)
        assert web.paths == ["/", "/a", "/b", "/deep"]
        assert source.counts == {"unchanged": 3, "changed": 1}

    def test_a_known_page_that_no_link_leads_to_is_asked_for_itself(self, kb, web):
        self.site(web)
        source = run(create(kb, web, "crawl"), web)
        web.pages["/"] = Page(article("Home", f"Home {ARTICLE}", ("/a",)))
        del web.pages["/deep"]
        run(source, web)
        assert states(source)["b"] == "unchanged"
        assert states(source)["deep"] == "gone"

    def test_a_run_that_was_interrupted_goes_on_where_it_was(self, kb, web):
        self.site(web)
        source = create(kb, web, "crawl")
        whole = client_for(web)

        class Interrupted(WebClient):
            def fetch(self, url, **wanted):
                if url.endswith("/b"):
                    raise OperationalError("the database is restarted")
                return whole.fetch(url, **wanted)

        run_source(source.pk, client=Interrupted(whole.guard, whole.politeness, whole.user_agent))
        source.refresh_from_db()
        assert (source.status, source.counts) == ("waiting", {"added": 2})
        web.forget()

        run_source(source.pk, client=whole)
        source.refresh_from_db()
        assert (source.status, source.counts) == ("done", {"added": 4})
        assert web.paths == ["/b", "/deep"]

    def test_a_run_lets_other_tasks_have_their_turn(self, kb, web):
        self.site(web)
        source = create(kb, web, "crawl")
        assert run_source(source.pk, client=client_for(web), slice_s=0)
        source.refresh_from_db()
        assert (source.status, source.attempts) == ("waiting", 0)


class TestAFeed:
    def test_an_entry_with_its_content_is_taken_as_it_is(self, kb, web):
        web.pages["/feed"] = feed(web, entry(web, "/1", "First", content=f"<p>{ARTICLE}</p>"))
        run(create(kb, web, "feed", "/feed"), web)
        document = Document.objects.get()
        assert (document.title, document.metadata["url"]) == ("First", web.url("/1"))
        assert document.metadata["published"] == "2026-11-02T08:00:00+00:00"
        assert web.paths == ["/feed"]

    def test_of_an_entry_with_a_summary_the_page_is_read(self, kb, web):
        web.pages["/feed"] = feed(web, entry(web, "/1", "First", summary="In short."))
        web.pages["/1"] = Page(article("First at length"))
        run(create(kb, web, "feed", "/feed"), web)
        assert Document.objects.get().title == "First"
        assert web.paths == ["/feed", "/1"]

    def test_an_entry_that_the_feed_tells_the_same_of_is_not_asked_again(self, kb, web):
        web.pages["/feed"] = feed(web, entry(web, "/1", "First", summary="In short."))
        web.pages["/1"] = Page(article("First at length"))
        source = run(create(kb, web, "feed", "/feed"), web)
        run(source, web)
        assert web.paths == ["/feed", "/1", "/feed"]

    def test_an_entry_that_leaves_the_feed_stays(self, kb, web):
        first = entry(web, "/1", "First", content=f"<p>{ARTICLE}</p>")
        web.pages["/feed"] = feed(web, first)
        source = run(create(kb, web, "feed", "/feed"), web)
        web.pages["/feed"] = feed(web, entry(web, "/2", "Second", content=f"<p>Second {ARTICLE}</p>"))
        for _ in range(3):
            run(source, web)
        assert (Document.objects.count(), states(source)) == (2, {"1": "kept", "2": "unchanged"})
