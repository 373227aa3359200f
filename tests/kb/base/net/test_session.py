import httpx
import pytest

from kb.base.net.addresses import AllowList, FetchError, Guard
from kb.base.net.session import Session, within_site
from tests.web_server import Page

GUARD = Guard(AllowList.parse(["127.0.0.1"]), lambda *_: ["127.0.0.1"])


@pytest.fixture
def session():
    each = Session(GUARD, headers={"Authorization": "Basic x"}, seconds=20)
    yield each
    each.close()


def read(session, url):
    with session.request("GET", httpx.URL(url)) as (at, response):
        return str(at), response.status, response.read()


def test_answers_come_with_the_address_that_has_given_them(web, session):
    web.pages["/a"] = Page(location="/b")
    web.pages["/b"] = Page("text")
    assert read(session, web.url("/a")) == (web.url("/b"), 200, b"text")
    assert [each.headers["Authorization"] for each in web.asked] == ["Basic x"] * 2


def test_a_redirect_in_a_circle_ends(web, session):
    web.pages["/a"] = Page(location="/a")
    with pytest.raises(FetchError) as caught:
        read(session, web.url("/a"))
    assert caught.value.code == "too_many_redirects"


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("b", "http://example.org:8080/b"),
        ("//example.org:8080/b#part", "http://example.org:8080/b"),
        ("https://example.org/b", "https://example.org/b"),
        ("http://example.org/b", None),
        ("https://elsewhere.example.org/b", None),
        ("http://me:secret@example.org:8080/b", None),
        ("file:///etc/passwd", None),
    ],
)
def test_credentials_stay_within_the_site(location, target):
    at = httpx.URL("http://example.org:8080/a")
    if target is not None:
        assert str(within_site(at, location)) == target
        return
    with pytest.raises(FetchError) as caught:
        within_site(at, location)
    assert caught.value.code in {"off_site", "has_userinfo", "bad_scheme"}


def test_https_never_leads_back_to_http():
    with pytest.raises(FetchError) as caught:
        within_site(httpx.URL("https://example.org/a"), "http://example.org/a")
    assert caught.value.code == "off_site"


def test_the_certificate_is_that_of_the_name(tls_web):
    web, trusted = tls_web
    web.pages["/a"] = Page("text")
    session = Session(GUARD, headers={}, seconds=20, tls=trusted)
    assert read(session, f"https://named.example.org:{web.port}/a")[1:] == (200, b"text")
    with pytest.raises(FetchError) as caught:
        read(session, f"https://other.example.org:{web.port}/a")
    session.close()
    assert caught.value.code == "tls_failed"
