import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kb.base.net.addresses import FetchError
from kb.sources.connectors.listing import MAX_ADDRESSES, Scope, SitemapListing, plain_sitemap, xml_sitemap
from kb.sources.connectors.markup import site_of
from tests.web_server import Page, client_for

BASE = "https://example.org/sitemap.xml"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[4])}


def listing(web, path="/sitemap.xml", *, max_pages=100):
    client = client_for(web)
    return SitemapListing(client, web.url(path), Scope(site_of(web.url(path))), max_pages)


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
    assert refusal.value.code == "empty_listing"


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
    assert refusal.value.code == "too_large"


def test_entities_are_not_expanded_and_files_not_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    page = (
        f'<!DOCTYPE urlset [<!ENTITY file SYSTEM "file://{secret}"><!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
        "<urlset><url><loc>https://example.org/&file;</loc></url><url><loc>https://example.org/&b;</loc></url></urlset>"
    )
    found = xml_sitemap(page.encode(), BASE)[0]
    assert not any("secret" in url or "aaaa" in url for url in found)


@pytest.mark.parametrize("content", [b"", b"<html><body>Hello</body></html>", b"{}", b"\0\1\2", b"<rss></rss>"])
def test_what_is_no_sitemap_says_so(content):
    with pytest.raises(FetchError) as refusal:
        xml_sitemap(content, BASE)
    assert refusal.value.code == "not_a_sitemap"


def test_an_entry_without_an_address_is_left_out():
    content = b"<urlset><url/><url><loc> </loc></url><url><loc>/a</loc></url></urlset>"
    assert xml_sitemap(content, BASE)[0] == ["https://example.org/a"]


def test_a_file_of_more_addresses_than_the_protocol_allows_is_cut(monkeypatch):
    assert MAX_ADDRESSES == 50_000
    monkeypatch.setattr("kb.sources.connectors.listing.MAX_ADDRESSES", 1_000)
    entries = b"<url><image><loc>https://example.org/i</loc></image><loc>https://example.org/a</loc></url>"
    pages, _sitemaps, is_cut = xml_sitemap(b"<urlset>" + entries * 1_001 + b"</urlset>", BASE)
    assert (len(pages), set(pages), is_cut) == (1_000, {"https://example.org/a"}, True)
    pages, _sitemaps, is_cut = plain_sitemap(b"https://example.org/a\n" * 1_001)
    assert (len(pages), is_cut) == (1_000, True)


@pytest.mark.parametrize("junk", [b"<x/>", b"<url/>", b"<url><x/></url>"], ids=["others", "empty", "nested"])
def test_millions_of_empty_elements_are_forgotten_as_they_are_read(junk):
    """In a process of its own, whose memory is bounded."""
    program = (
        "import django, resource, sys\n"
        "django.setup()\n"
        "from kb.sources.connectors.listing import xml_sitemap\n"
        "from kb.base.net.addresses import FetchError\n"
        f"data = b'<urlset>' + {junk!r} * 1_000_000 + b'</urlset>'\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "xml_sitemap(data, 'https://example.org/')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert int(done.stdout) < 60 * 1024  # KiB; kept, they take more than a hundred MiB


def test_whoever_reads_many_files_is_heard_of_before_each(web):
    heard = []
    web.pages["/sitemap.xml"] = Page(f"<sitemapindex><sitemap><loc>{web.url('/1')}</loc></sitemap></sitemapindex>")
    web.pages["/1"] = Page(urls(web, "/a"))
    client = client_for(web)
    list(SitemapListing(client, web.url("/sitemap.xml"), Scope(), 10, alive=lambda: heard.append(len(web.paths))))
    assert heard == [0, 1]
