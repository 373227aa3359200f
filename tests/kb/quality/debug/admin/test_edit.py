"""Correcting a passage inside of a result."""

import lxml.html
import pytest
from django.test import Client
from django.urls import reverse

from kb.models import Chunk
from tests.factories import make_document, make_member
from tests.kb.quality.debug.admin.debug_page import Page, words

pytestmark = pytest.mark.django_db

TEXT, QUESTION = "admin:search_debug_text", "admin:search_debug_question"


@pytest.fixture
def chunk(handbook):
    return Chunk.objects.get(text__contains="flight", knowledge_base=handbook)


def fragment(response):
    return lxml.html.fragment_fromstring(response.content.decode(), "div")


def test_the_text_is_changed_and_the_page_loaded_again(client, chunk):
    form = fragment(client.get(reverse(TEXT, args=[chunk.pk])))
    assert form.xpath(".//textarea/text()")[0].strip() == chunk.text

    [shown] = form.xpath(".//input[@name='hash']/@value")
    response = client.post(reverse(TEXT, args=[chunk.pk]), {"value": "Late flights are rebooked.", "hash": shown})

    assert response.headers["HX-Refresh"] == "true"
    chunk.refresh_from_db()
    assert chunk.text == "Late flights are rebooked."


def test_a_text_that_somebody_else_has_changed_since_is_not_overwritten(client, chunk):
    [shown] = fragment(client.get(reverse(TEXT, args=[chunk.pk]))).xpath(".//input[@name='hash']/@value")
    client.post(reverse(TEXT, args=[chunk.pk]), {"value": "The first.", "hash": shown})

    response = client.post(reverse(TEXT, args=[chunk.pk]), {"value": "The second.", "hash": shown})

    assert "HX-Refresh" not in response.headers
    assert words(fragment(response).xpath(".//*[@role='alert']")[0])
    assert Chunk.objects.get(pk=chunk.pk).text == "The first."


@pytest.mark.parametrize("name", [TEXT, QUESTION])
@pytest.mark.parametrize("value", ["", "x" * 100_001])
def test_what_cannot_be_saved_is_said_at_the_field(client, chunk, name, value):
    response = client.post(reverse(name, args=[chunk.pk]), {"value": value})

    assert "HX-Refresh" not in response.headers
    assert words(fragment(response).xpath(".//*[@role='alert']")[0])
    assert Chunk.objects.get(pk=chunk.pk).text == chunk.text


def test_the_query_is_proposed_as_the_question(client, chunk):
    form = fragment(client.get(reverse(QUESTION, args=[chunk.pk]), {"q": "谁付改签的钱"}))

    assert form.xpath(".//input[@name='value']/@value") == ["谁付改签的钱"]


def test_a_question_makes_the_passage_the_first_result_at_the_usual_cut(client, open_debug, handbook, chunk):
    """Which refused it before, as it shares no word with the query."""
    make_document(handbook, *[f"Notes on travel number {number}." for number in range(40)], title="Notes")
    query = "who pays when I am delayed"
    before = Page(open_debug(kb=handbook.pk, q=query))
    assert str(chunk.pk) not in [each.get("data-chunk-id") for each in before.hits("results")]

    client.post(reverse(QUESTION, args=[chunk.pk]), {"value": query})

    first = Page(open_debug(kb=handbook.pk, q=query)).hits("results")[0]
    assert first.get("data-chunk-id") == str(chunk.pk)
    assert Chunk.objects.get(pk=chunk.pk).questions == [query]


@pytest.mark.parametrize("name", [TEXT, QUESTION])
def test_who_may_only_read_is_not_offered_it_and_may_not(client, open_debug, handbook, chunk, name):
    viewer = Client()
    viewer.force_login(make_member(handbook))

    assert viewer.post(reverse(name, args=[chunk.pk]), {"value": "x"}).status_code == 403
    assert viewer.get(reverse(name, args=[chunk.pk])).status_code == 403
    page = Page(viewer.get(reverse("admin:search_debug"), {"kb": handbook.pk, "q": "flight"}))
    assert page.hits("results")
    assert not page.tree.xpath("//*[@data-rt-edit or @data-rt-question]")


@pytest.mark.parametrize("name", [TEXT, QUESTION])
def test_a_strangers_passage_does_not_exist(client, foreign, name):
    assert client.get(reverse(name, args=[foreign.chunks.get().pk])).status_code == 404
    assert client.post(reverse(name, args=[foreign.chunks.get().pk]), {"value": "x"}).status_code == 404
