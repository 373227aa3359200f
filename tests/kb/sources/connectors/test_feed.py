from datetime import UTC, datetime

import pytest

from kb.base.net.addresses import FetchError
from kb.base.net.client import Deadline, Fetched
from kb.sources.connectors.listing import read_feed

URL = "https://example.org/feed"
ATOM = """<?xml version="1.0" encoding="utf-8"?><feed xmlns="http://www.w3.org/2005/Atom"><title>News</title>
<entry><title>第一条</title><id>urn:1</id><link href="/1"/><updated>2026-11-02T08:00:00Z</updated>
<content type="html">&lt;p onclick="x()"&gt;全文&lt;script&gt;x()&lt;/script&gt;&lt;/p&gt;</content></entry>
<entry><title>Second</title><id>urn:2</id><link href="/2"/><updated>2026-11-03T08:00:00Z</updated>
<summary>In short</summary></entry></feed>"""


def feed(text, media_type="application/atom+xml", **options):
    return read_feed(Fetched(URL, text.encode(), media_type=media_type), **options)


def test_entries_of_atom_are_read_with_address_title_and_date():
    first, second = feed(ATOM)
    assert (first.url, first.title) == ("https://example.org/1", "第一条")
    assert first.published == datetime(2026, 11, 2, 8, tzinfo=UTC)
    assert "全文" in first.content
    assert "script" not in first.content
    assert second.content is None
    assert feed(ATOM, texts=2)[1].text == "In short"


def test_an_entry_that_changes_has_another_version():
    before, after = feed(ATOM), feed(ATOM.replace("In short", "In brief"))
    assert [a.version == b.version for a, b in zip(before, after, strict=True)] == [True, False]


def test_an_entry_without_a_link_is_taken_by_its_id():
    page = "<rss version='2.0'><channel><item><guid isPermaLink='false'>7</guid><description>Text</description></item></channel></rss>"
    [entry] = feed(page, "text/xml")
    assert entry.url.startswith(f"{URL}#")
    assert entry.content == "Text"


def test_an_entry_that_leads_to_no_web_page_and_says_nothing_is_left_out():
    page = "<rss version='2.0'><channel><item><title>x</title><link>javascript:x()</link></item></channel></rss>"
    assert feed(page, "text/xml") == []


def test_entities_of_a_feed_read_no_file(tmp_path):
    (tmp_path / "secret").write_text("secret")
    page = f'<!DOCTYPE rss [<!ENTITY f SYSTEM "file://{tmp_path}/secret">]>' + (
        "<rss version='2.0'><channel><item><title>&f;</title><link>/1</link></item></channel></rss>"
    )
    assert all("secret" not in entry.title for entry in feed(page, "text/xml"))


@pytest.mark.parametrize("content", ["", "<html><body>Hello</body></html>", "{}", "/etc/passwd", "http://127.0.0.1/"])
def test_what_is_no_feed_says_so(content):
    with pytest.raises(FetchError) as refusal:
        feed(content, "text/html")
    assert refusal.value.code == "not_a_feed"


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "content",
    [
        # Each takes the library, or what makes text of it, hours: it is given up.
        "\n" * 3_000_000 + "<rss version='2.0'><channel></channel></rss>",
        "<rss version='2.0'><channel><item><link>/1</link><description>"
        + "&lt;a href='" * 200_000
        + "</description></item></channel></rss>",
    ],
    ids=["blank lines", "unfinished tags"],
)
def test_a_feed_that_is_made_to_take_hours_is_given_up(content):
    with pytest.raises(FetchError) as refusal:
        read_feed(Fetched(URL, content.encode(), media_type="text/xml"), deadline=Deadline(3), texts=10)
    assert refusal.value.code == "slow_feed"


def test_the_text_of_the_first_entries_is_read_where_it_is_wanted():
    first, second = read_feed(Fetched(URL, ATOM.encode(), media_type="application/atom+xml"), texts=1)
    assert (first.text, second.text) == ("全文", "")
