"""What a source would bring, before it is kept."""

import pytest

from kb.models import Source, SourceItem
from kb.sources.connectors.web.preview import web_preview
from tests.kb.sources.connectors.web.sources import entry, feed, sitemap
from tests.web_server import Page, article, client_for

pytestmark = pytest.mark.django_db


class TestAPreview:
    def test_it_shows_what_would_be_taken_and_writes_nothing(self, kb, web):
        web.pages["/robots.txt"] = Page("User-agent: *\nDisallow: /b", type="text/plain")
        web.pages["/a"] = Page(article("A"))
        web.pages["/sitemap.xml"] = sitemap(web, "/a", "/b", *[f"/{number}" for number in range(30)])
        source = Source(knowledge_base=kb, kind="sitemap", url=web.url("/sitemap.xml"))

        preview = web_preview(source, client_for(web))

        assert preview.has_more
        assert (preview.items[0].title, preview.items[0].error) == ("A", None)
        assert preview.items[1].error.code == "robots"
        assert preview.items[5].characters is None  # it was not read
        assert not SourceItem.objects.exists()

    def test_entries_that_a_feed_holds_in_full_need_no_leave_of_their_site(self, kb, web):
        web.pages["/robots.txt"] = Page("User-agent: *\nDisallow: /news", type="text/plain")
        full = [entry(web, f"/news/{number}", f"News {number}", content="<p>In full.</p>") for number in range(4)]
        web.pages["/feed"] = feed(web, *full, entry(web, "/news/4", "News 4", summary="In short."))
        source = Source(knowledge_base=kb, kind="feed", url=web.url("/feed"))

        preview = web_preview(source, client_for(web))

        assert [item.error and item.error.code for item in preview.items] == [None, None, None, None, "robots"]
        assert ["In full." in item.excerpt for item in preview.items] == [True, True, True, False, False]

    def test_it_says_why_the_whole_cannot_be_read(self, kb, web):
        source = Source(knowledge_base=kb, kind="feed", url=web.url("/"))
        web.pages["/"] = Page(article("No feed"))
        assert web_preview(source, client_for(web)).error.code == "not_a_feed"

    def test_it_ends_in_time(self, kb, web):
        web.pages["/"] = Page("text" * 100, hang_after=10)
        source = Source(knowledge_base=kb, kind="sitemap", url=web.url("/"))
        assert web_preview(source, client_for(web), seconds=0.3).error.code == "timeout"
