import uuid

import pytest
from django.core.cache.backends.locmem import LocMemCache

from kb.base.net.addresses import FetchError
from kb.models import Source
from kb.sources.connectors.live import live_entries
from tests.web_server import ARTICLE, Page, article, client_for


def source(web, kind, path="/"):
    return Source(kind=kind, url=web.url(path), name="site")


def cache(**settings):
    return LocMemCache(uuid.uuid4().hex, settings)


def feed(web, *titles):
    items = "".join(
        f"<item><title>{title}</title><link>{web.url('/1')}</link><description>About {title}</description></item>"
        for title in titles
    )
    return Page(f"<rss version='2.0'><channel>{items}</channel></rss>", type="text/xml")


def test_entries_of_a_feed_are_those_of_this_moment(web):
    web.pages["/feed"] = feed(web, "First")
    [entry] = live_entries(source(web, "feed", "/feed"), client_for(web), seconds=10, cache=cache())
    assert (entry.title, entry.text, entry.url) == ("First", "About First", web.url("/1"))


def test_a_page_is_read_as_it_is_ingested(web):
    web.pages["/"] = Page(article("Hours"))
    [entry] = live_entries(source(web, "page"), client_for(web), seconds=30, cache=cache())
    assert entry.title == "Hours"
    assert ARTICLE[:60] in entry.text


def test_a_second_query_asks_nobody(web):
    web.pages["/feed"] = feed(web, "First")
    kept = cache()
    for _ in range(2):
        live_entries(source(web, "feed", "/feed"), client_for(web), seconds=10, cache=kept)
    assert web.paths == ["/feed"]


def test_what_was_said_too_long_ago_is_asked_again(web):
    web.pages["/feed"] = feed(web, "First")
    kept = cache(TIMEOUT=0)
    for _ in range(2):
        live_entries(source(web, "feed", "/feed"), client_for(web), seconds=10, cache=kept)
    assert web.paths == ["/feed", "/feed"]


def test_a_source_that_takes_too_long_is_given_up(web):
    web.pages["/feed"] = Page("x" * 100, hang_after=10)
    with pytest.raises(FetchError) as refusal:
        live_entries(source(web, "feed", "/feed"), client_for(web), seconds=0.2, cache=cache())
    assert refusal.value.code == "timeout"


def test_a_crawl_cannot_be_asked_while_somebody_waits(web):
    assert live_entries(source(web, "crawl"), client_for(web), seconds=1, cache=cache()) == ()
    assert web.asked == []
