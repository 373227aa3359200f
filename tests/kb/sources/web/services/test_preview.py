"""What a source would bring, before it is kept."""

import pytest

from kb.models import WebPage, WebSource
from kb.sources.web.services.pages import web_source_preview
from tests.kb.sources.web.services.sources import sitemap
from tests.web_server import Page, article, client_for

pytestmark = pytest.mark.django_db


class TestAPreview:
    def test_it_shows_what_would_be_taken_and_writes_nothing(self, kb, web):
        web.pages["/robots.txt"] = Page("User-agent: *\nDisallow: /b", type="text/plain")
        web.pages["/a"] = Page(article("A"))
        web.pages["/sitemap.xml"] = sitemap(web, "/a", "/b", *[f"/{number}" for number in range(30)])
        source = WebSource(knowledge_base=kb, kind="sitemap", url=web.url("/sitemap.xml"))

        preview = web_source_preview(source, client_for(web))

        assert preview.has_more
        assert (preview.pages[0].title, preview.pages[0].error) == ("A", None)
        assert preview.pages[1].error.code == "robots"
        assert preview.pages[5].characters is None  # it was not read
        assert not WebPage.objects.exists()

    def test_it_says_why_the_whole_cannot_be_read(self, kb, web):
        source = WebSource(knowledge_base=kb, kind="feed", url=web.url("/"))
        web.pages["/"] = Page(article("No feed"))
        assert web_source_preview(source, client_for(web)).error.code == "not_a_feed"

    def test_it_ends_in_time(self, kb, web):
        web.pages["/"] = Page("text" * 100, hang_after=10)
        source = WebSource(knowledge_base=kb, kind="sitemap", url=web.url("/"))
        assert web_source_preview(source, client_for(web), seconds=0.3).error.code == "timeout"
