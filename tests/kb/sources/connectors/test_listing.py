from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from kb.base.net.addresses import FetchError
from kb.sources.connectors.listing import Scope
from kb.sources.connectors.markup import Markup, file_name, moment, normal, site_of, text_of


@pytest.mark.parametrize(
    ("url", "spelt"),
    [
        ("HTTPS://Example.ORG:443/a/../b?x=1#part", "https://example.org/b?x=1"),
        ("/b?utm_source=feed&x=1&fbclid=2", "https://example.org/b?x=1"),
        ("b", "https://example.org/a/b"),
        ("//cdn.example.org/x", "https://cdn.example.org/x"),
        ("mailto:desk@example.org", None),
        ("javascript:void(0)", None),
        ("http://user@example.org/", None),
        ("http://[::1", None),
        ("x" * 3_000, None),
    ],
)
def test_an_address_has_one_spelling(url, spelt):
    assert normal(url, "https://example.org/a/") == spelt


@given(st.text(max_size=100))
def test_a_spelling_is_its_own(text):
    spelt = normal(text, "https://example.org/a/")
    assert spelt is None or normal(spelt) == spelt


def test_a_site_is_the_same_with_and_without_www():
    assert site_of("https://www.example.org/a") == site_of("http://example.org") == "example.org"
    assert site_of("http://example.org:8080/") == "example.org:8080"


def test_an_expression_that_takes_too_long_is_refused():
    scope = Scope(include=(r"(a+)+$|(.*.*)*x{9}(?<=b)",))
    with pytest.raises(FetchError) as refusal:
        scope.accepts("https://example.org/" + "a" * 1_900 + "!")
    assert refusal.value.code == "slow_pattern"


def test_links_are_read_with_the_base_that_the_page_names():
    page = '<base href="/docs/"><a href="a">A</a><a href="a#x">again</a><a href="b" rel="nofollow">B</a><a>no</a>'
    assert list(Markup(page, "https://example.org/").links) == ["https://example.org/docs/a"]


def test_a_date_is_read_from_what_pages_state():
    page = '<meta itemprop="datePublished" content="2026-05-01">'
    assert Markup(page, "https://example.org/").published == datetime(2026, 5, 1, tzinfo=UTC)
    assert moment("Fri, 01 May 2026 08:00:00 GMT") == datetime(2026, 5, 1, 8, tzinfo=UTC)
    assert moment("yesterday") is None


def test_the_text_of_an_entry_has_its_blocks_on_lines():
    assert text_of("<p>One &amp; two</p><script>x()</script><p>three<br>four") == "One & two\nthree\nfour"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://example.org/", "example.org.html"),
        ("https://example.org/guide/start.html?x=1", "example.org_guide_start.html"),
        ("https://example.org/法律/民法典", "example.org_法律_民法典.html"),
        ("https://example.org/v1.2", "example.org_v1.2.html"),
    ],
)
def test_the_name_of_a_file_tells_its_address(url, name):
    assert file_name(url, ".html") == name


def test_an_expression_that_is_slow_over_each_of_many_addresses_is_refused():
    scope = Scope(include=(r"a+a+[x-z]",))
    address = "https://example.org/" + "a" * 400
    with pytest.raises(FetchError) as refusal:
        any(scope.accepts(f"{address}{number}") for number in range(1_000))
    assert refusal.value.code == "slow_pattern"


def test_quick_expressions_tire_nobody():
    scope = Scope(include=("/docs/",), exclude=(r"\.zip$",))
    assert all(scope.accepts(f"https://example.org/docs/{number}") for number in range(20_000))
