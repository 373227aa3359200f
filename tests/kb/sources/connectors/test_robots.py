import httpx
import pytest

from kb.base.net.addresses import AllowList, FetchError, Guard
from kb.sources.connectors.listing import MAX_DELAY_S, Robots
from tests.web_server import Page, client_for


def check(web, path, robots=None):
    return (robots or Robots(client_for(web))).check(httpx.URL(web.url(path)))


def rules(text):
    return Page(text, type="text/plain")


def test_without_a_file_everything_is_allowed(web):
    assert check(web, "/a") == 0.0


def test_rules_for_us_stand_before_those_for_all(web):
    web.pages["/robots.txt"] = rules(
        "User-agent: *\nDisallow: /\n\nUser-agent: zhiku\nDisallow: /private\nAllow: /private/open"
    )
    assert check(web, "/a") == check(web, "/private/open") == 0.0
    with pytest.raises(FetchError) as refusal:
        check(web, "/private/a")
    assert refusal.value.code == "robots"


def test_the_pause_that_a_site_asks_for_is_kept_within_reason(web):
    web.pages["/robots.txt"] = rules("User-agent: *\nCrawl-delay: 3600")
    assert check(web, "/a") == MAX_DELAY_S


def test_a_file_that_the_server_fails_to_send_forbids_everything(web):
    web.pages["/robots.txt"] = Page(status=500)
    with pytest.raises(FetchError) as refusal:
        check(web, "/a")
    assert refusal.value.code == "robots_unreadable"


def test_a_file_is_read_once(web):
    robots = Robots(client_for(web))
    for path in ("/a", "/b"):
        check(web, path, robots)
    assert len(web.asked) == 1


def test_the_rules_of_a_few_sites_are_kept_and_no_more(web, monkeypatch):
    monkeypatch.setattr("kb.sources.connectors.listing.SITES", 1)
    client = client_for(web, guard=Guard(AllowList.parse(["127.0.0.0/8"])))
    robots = Robots(client)
    for host in ("127.0.0.1", "127.0.0.1", "localhost", "127.0.0.1"):
        robots.check(httpx.URL(web.url("/a", host=host)))
    assert len(web.asked) == 3
