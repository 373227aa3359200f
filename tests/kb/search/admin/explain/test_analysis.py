import pytest
from django.urls import reverse

from kb.models import (
    Chunk,
    Concept,
    ConceptTerm,
    GraphFact,
)
from tests.kb.providers.language_model import language_model, no_language_model
from tests.kb.quality.debug.admin.debug_page import Page, words
from tests.servers import Reply

pytestmark = pytest.mark.django_db


@pytest.fixture
def travel(handbook):
    concept = Concept.objects.create(knowledge_base=handbook, name="rebooking")
    for name in ("changing a ticket", "flight change"):
        ConceptTerm.objects.create(concept=concept, text=name)
    return concept


def test_a_concept_is_linked_with_the_word_that_names_it_and_the_others_that_were_searched(
    open_debug, handbook, travel
):
    page = Page(open_debug(kb=handbook.pk, q="who pays for changing a ticket"))

    shown = page.one("//*[@data-testid='concepts']")
    assert shown.xpath(".//a/@href") == [reverse("admin:kb_concept_change", args=[travel.pk])]
    assert "rebooking ← changing a ticket also searched: rebooking · flight change" in page.text("concepts")


def test_terms_of_other_names_are_told_apart(open_debug, handbook, travel):
    page = Page(open_debug(kb=handbook.pk, q="rebooking"))

    others = page.tree.xpath("//*[@data-testid='terms']/li[contains(@class,'other')]/b/text()")
    assert "flight" in others
    assert "rebook" not in others


def test_language_intent_and_keywords_show(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="请问差旅报销标准是什么？"))

    assert "Chinese" in page.text("analysis")
    assert page.text("intent") == "差旅报销标准"
    assert "报销" in page.text("keywords")


def test_sub_queries_are_listed_and_each_channel_tells_what_it_found_for_them(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="Who rebooks a flight? Which hotels does the office book?"))

    assert page.text("sub-queries") == "Who rebooks a flight? Which hotels does the office book?"
    assert page.one("//td[@data-channel='bm25']").text_content().count("sub-query") == 2
    assert "3 queries" in words(page.one("//tr[@data-stage='analysis']"))


@pytest.mark.django_db(transaction=True)
def test_a_rewritten_query_names_the_model_that_has_written_it(open_debug, handbook, settings):
    with language_model(settings) as server:
        server.always("chat", Reply('{"query": "rebooking a flight", "sub_queries": []}'))

        page = Page(open_debug(kb=handbook.pk, q="what about it", rewrite="always"))

    assert page.text("rewritten") == f"“rebooking a flight” by {settings.LLM_MODEL}"


def test_a_query_that_was_not_rewritten_says_nothing_of_it(open_debug, handbook):
    assert not Page(open_debug(kb=handbook.pk, q="flight")).has("rewritten")


def test_a_rewrite_without_a_language_model_is_a_degradation(open_debug, handbook, settings):
    no_language_model(settings)

    page = Page(open_debug(kb=handbook.pk, q="flight", rewrite="always"))

    assert page.tree.xpath("//*[@data-code='llm_not_configured']")


def test_facts_stand_beside_the_results_with_their_source(open_debug, handbook):
    chunk = Chunk.objects.filter(knowledge_base=handbook).first()
    GraphFact.objects.create(
        knowledge_base=handbook, subject="office", predicate="books", object="hotels", source_chunk=chunk
    )

    page = Page(open_debug(kb=handbook.pk, q="which hotels does the office book"))

    assert page.text("facts").startswith("Facts of the graph 1 office books hotels")
    assert page.one("//*[@data-testid='facts']//a").get("href") == reverse("admin:kb_chunk_place", args=[chunk.pk])


def test_without_facts_there_is_no_place_for_them(open_debug, handbook):
    assert not Page(open_debug(kb=handbook.pk, q="flight")).has("facts")
