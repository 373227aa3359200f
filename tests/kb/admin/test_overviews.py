"""The overviews of Quality and System: charts of how searches went and of what the server does."""

import lxml.html
import pytest
from django.core.cache import cache
from django.urls import reverse

from kb.models import Document
from kb.search.services.search import SearchRequest, search
from tests.factories import principal
from tests.kb.admin.searches import logged
from tests.kb.web.admin.pages import words

OVERVIEWS = ("quality_overview", "system_overview")


pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def opened(client):
    def get(name):
        page = client.get(reverse(f"admin:{name}"), headers={"accept-language": "en"})
        assert page.status_code == 200
        return lxml.html.fromstring(page.content.decode())

    return get


@pytest.fixture
def chart(opened):
    """A card of the overviews by its name: its words, and whether something is drawn."""

    def find(name):
        page = opened("system_overview" if name in ("stages", "caches", "documents") else "quality_overview")
        (card,) = page.xpath(f"//*[@data-chart='{name}']")
        return words(card), bool(card.xpath(".//canvas"))

    return find


def test_every_chart_has_a_name_for_those_who_cannot_see_it_and_its_figures_as_a_table(opened, superuser, kb, document):
    logged(kb, degraded=[{"stage": "s", "code": "model_unavailable", "detail": "d"}])
    search(principal(kb.owner), SearchRequest(query="违约金", knowledge_base_ids=[kb.pk]))

    drawn = [canvas for name in OVERVIEWS for canvas in opened(name).xpath("//canvas")]
    assert len(drawn) == 6
    for canvas in drawn:
        (card,) = canvas.xpath("ancestor::*[@data-chart]")
        assert canvas.xpath("ancestor::*[@role='img']/@aria-label")
        assert card.xpath(".//table//tbody//td")


def test_searches_are_counted(chart, kb, document):
    for outcome in ("found", "gated", "nothing"):
        logged(kb, outcome=outcome)

    told, is_drawn = chart("searches")
    assert "3 in 14 days" in told
    assert is_drawn


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (0.5, 0.9, "Rising: 90 % in the last 7 days, 50 % in the 7 before"),
        (0.5, 0.1, "Falling: 10 % in the last 7 days, 50 % in the 7 before"),
        (0.5, 0.5, "Steady: 50 % in the last 7 days, 50 % in the 7 before"),
        (None, 0.2, "20 % in the last 7 days"),
        (0.2, None, "No search in the last 7 days"),
    ],
)
def test_the_share_without_a_result_is_compared_with_the_week_before(chart, kb, document, before, now, verdict):
    for days, share in ((8, before), (0, now)):
        for number in range(0 if share is None else 10):
            logged(kb, days, outcome="nothing" if number < 10 * share else "found")

    assert verdict in chart("without-result")[0]


def test_stages_are_timed(superuser, chart, kb, document):
    logged(kb)
    logged(kb)

    told, is_drawn = chart("stages")
    assert "P50 30.0 ms" in told
    assert "Vector 20.0 20.0" in told
    assert is_drawn


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("ready", "All are ready: 1"),
        ("pending", "1 document is being processed"),
        ("failed", "1 document failed: open it, and retry"),
    ],
)
def test_documents_are_told_by_status(superuser, chart, document, status, verdict):
    Document.objects.update(status=status)

    assert verdict in chart("documents")[0]


def test_degradations_are_told_in_words(chart, kb, document):
    logged(kb)
    assert "No search in 14 days" in chart("degradations")[0]

    logged(kb, degraded=[{"stage": "s", "code": "llm_timeout", "detail": "d"}])
    cache.clear()
    told, _ = chart("degradations")
    assert "50 % of the searches" in told
    assert "The chat model did not answer in time 1" in told


def test_what_others_search_is_not_counted(chart, kb, document, foreign):
    logged(foreign.knowledge_base)

    assert "No search in 14 days" in chart("searches")[0]


def test_the_overview_of_the_system_is_for_superusers(client):
    assert client.get(reverse("admin:system_overview")).status_code == 403


@pytest.mark.parametrize("name", OVERVIEWS)
def test_an_overview_takes_few_queries(opened, superuser, kb, document, django_assert_max_num_queries, name):
    logged(kb)

    with django_assert_max_num_queries(9):
        opened(name)
