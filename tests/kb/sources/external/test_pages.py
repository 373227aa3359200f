"""What the pages of the admin tell of sources elsewhere."""

import pytest
from django.urls import reverse

from tests.kb.quality.debug.admin.debug_page import Page
from tests.kb.sources.external.sources import feed, live_feed, vertex_source
from tests.vertex_server import page as found

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def opened(client, owner, kb):
    client.force_login(owner)
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"

    def opened(name, **parameters):
        query = {"q": "when does the archive open", "kb": kb.pk, "threshold": "0", **parameters}
        return Page(client.get(reverse(f"admin:{name}"), query))

    return opened


def test_search_debug_shows_each_source_with_its_weight_and_what_it_found(opened, kb, web, service):
    feed(web, ("News", "The archive opens at ten on Sundays from May."))
    live_feed(kb, web)
    service.results = [found("Hall", "https://example.org/hall", "The archive opens its new hall.")]
    vertex_source(kb, service, weight=0.25)

    page = opened("search_debug", view="process")

    assert page.status == 200
    cells = {
        cell.get("data-channel"): " ".join(cell.text_content().split())
        for cell in page.tree.xpath("//td[@data-channel]")
    }
    assert "1 found" in cells["web:news"]
    assert "weight 0.4" in cells["web:news"]
    assert "1 found" in cells["external:site search"]
    assert "weight 0.25" in cells["external:site search"]
    links = page.tree.xpath("//*[@data-testid='candidates']//a/@href")
    assert "https://example.org/hall" in links
    assert web.url("/1") in links


def test_search_debug_names_a_source_that_may_not_be_asked(opened, kb, service, settings):
    settings.EXTERNAL_PROVIDERS = []
    vertex_source(kb, service)

    (cell,) = opened("search_debug", view="process").tree.xpath("//td[@data-channel='external:site search']")

    assert cell.xpath(".//@data-error") == ["external_not_configured"]


def test_two_searches_with_results_from_elsewhere_are_compared(opened, kb, web):
    feed(web, ("News", "The archive opens at ten on Sundays from May."))
    live_feed(kb, web)

    page = opened("compare", b_top_k=3)

    assert page.status == 200
    assert web.url("/1") in page.tree.xpath("//a/@href")


def test_why_not_found_asks_no_source_elsewhere_for_a_chunk(opened, kb, web):
    feed(web, ("News", "The archive opens at ten on Sundays from May."))
    live_feed(kb, web)
    chunk = kb.chunks.last()

    page = opened("why_not", chunk=chunk.pk)

    assert page.status == 200
    assert not [name for name in page.tree.xpath("//tr/@data-channel") if name.startswith(("web", "external"))]
