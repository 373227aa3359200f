import gzip

import pytest

from kb.ingest.connectors.listing import Order, Scope, site_of
from kb.ingest.connectors.robots import Robots
from kb.ingest.connectors.sitemap import SitemapListing, xml_sitemap
from kb.net.errors import FetchCode, FetchError
from tests.web_server import Page, client_for

BASE = "https://example.org/sitemap.xml"


def listing(web, path="/sitemap.xml", *, max_pages=100):
    client = client_for(web)
    return SitemapListing(client, Robots(client), Order(web.url(path), Scope(site_of(web.url(path))), max_pages))


def urls(web, *paths):
    return "<urlset>" + "".join(f"<url><loc> {web.url(path)} </loc></url>" for path in paths) + "</urlset>"


def paths_of(web, found):
    return [candidate.url.removeprefix(web.url("")) for candidate in found]


def test_an_index_leads_to_packed_sitemaps(web):
    web.pages["/sitemap.xml"] = Page(
        f"<sitemapindex><sitemap><loc>{web.url('/1.xml.gz')}</loc></sitemap></sitemapindex>"
    )
    web.pages["/1.xml.gz"] = Page(gzip.compress(urls(web, "/a", "/b").encode()), type="application/gzip")
    found = listing(web)
    assert paths_of(web, found) == ["/a", "/b"]
    assert found.is_complete


def test_an_index_that_leads_to_itself_ends(web):
    web.pages["/sitemap.xml"] = Page(
        f"<sitemapindex><sitemap><loc>{web.url('/sitemap.xml')}</loc></sitemap></sitemapindex>"
    )
    with pytest.raises(FetchError) as refusal:
        list(listing(web))
    assert refusal.value.code == FetchCode.EMPTY_LISTING


def test_addresses_of_other_hosts_are_left_out(web):
    web.pages["/sitemap.xml"] = Page(
        urls(web, "/a").replace("</urlset>", "<url><loc>http://10.0.0.1/</loc></url></urlset>")
    )
    assert paths_of(web, listing(web)) == ["/a"]


def test_more_addresses_than_wanted_leave_it_incomplete(web):
    web.pages["/sitemap.xml"] = Page(urls(web, "/a", "/b", "/c"))
    found = listing(web, max_pages=2)
    assert paths_of(web, found) == ["/a", "/b"]
    assert not found.is_complete


def test_a_plain_list_is_a_sitemap_too(web):
    web.pages["/sitemap.xml"] = Page(f"\ufeff{web.url('/a')}\n\n{web.url('/b')}\n", type="text/plain")
    assert paths_of(web, listing(web)) == ["/a", "/b"]


def test_a_packed_bomb_is_not_unpacked(web):
    web.pages["/sitemap.xml"] = Page(gzip.compress(b"\0" * 60 * 1024**2), type="application/gzip")
    with pytest.raises(FetchError) as refusal:
        list(listing(web))
    assert refusal.value.code == FetchCode.TOO_LARGE


def test_entities_are_not_expanded_and_files_not_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    page = (
        f'<!DOCTYPE urlset [<!ENTITY file SYSTEM "file://{secret}"><!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
        "<urlset><url><loc>https://example.org/&file;</loc></url><url><loc>https://example.org/&b;</loc></url></urlset>"
    )
    found = xml_sitemap(page.encode(), BASE).pages
    assert not any("secret" in url or "aaaa" in url for url in found)


@pytest.mark.parametrize("content", [b"", b"<html><body>Hello</body></html>", b"{}", b"\0\1\2", b"<rss></rss>"])
def test_what_is_no_sitemap_says_so(content):
    with pytest.raises(FetchError) as refusal:
        xml_sitemap(content, BASE)
    assert refusal.value.code == FetchCode.NOT_A_SITEMAP
