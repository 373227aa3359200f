from dataclasses import replace

import pytest
from django.urls import reverse
from django.utils.translation import override

from kb.models import Chunk, ChunkEmbedding
from kb.search.admin.explain import rows as explain_drops
from kb.search.admin.explain.rows import drops
from kb.search.services.search import SearchRequest, search
from retrieval.types import Dropped
from tests.factories import make_document, make_kb, principal
from tests.kb.quality.debug.admin.debug_page import Page, words

pytestmark = pytest.mark.django_db


def dropped(page, stage):
    """What the list of a stage says of each chunk."""
    return [words(each) for each in page.tree.xpath(f"//tr[@data-stage='{stage}']//*[@data-testid='drops']//li")]


def test_each_stage_lists_the_candidates_that_it_cut_with_the_reason_and_a_way_to_their_rows(open_debug, flights):
    page = Page(open_debug(kb=flights.pk, q="flight"))

    assert len(dropped(page, "fusion")) == 5
    assert len(dropped(page, "selection")) == 20
    assert dropped(page, "gate") == []
    assert "Fused rank 30: only the first 25 go on." in dropped(page, "fusion")[-1]
    links = page.tree.xpath("//tr[@data-stage='fusion']//*[@data-testid='drops']//a/@href")
    assert [link for link in links if link.startswith("#")] == [
        f"#{row.get('id')}" for row in page.rows() if row.get("data-cut") == "fusion"
    ]


def test_what_stands_too_far_back_in_every_channel_is_listed_with_its_ranks(open_debug, flights, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "vector_top_k": 1, "bm25_top_k": 1}

    page = Page(open_debug(kb=flights.pk, q="flight"))

    (first, *_) = dropped(page, "channels")
    assert first.startswith("Flights, chunk ")
    assert "Too far back in every channel: rank 2 in “" in first
    assert "whose first 1 go on" in first


def test_a_double_is_listed_with_the_chunk_that_stands_for_it(open_debug, curator):
    kb = make_kb(curator)
    make_document(kb, "The flight.", "The flight.", title="Doubles")
    first, second = Chunk.objects.filter(knowledge_base=kb).order_by("pk")

    page = Page(open_debug(kb=kb.pk, q="flight"))

    assert dropped(page, "dedupe") == [f"Doubles, chunk 2 Chunk {first.pk} stands for its content. why?"]
    links = page.tree.xpath("//tr[@data-stage='dedupe']//*[@data-testid='drops']//a/@href")
    assert reverse("admin:kb_chunk_place", args=[second.pk]) in links


def test_a_chunk_that_is_gone_or_not_to_be_seen_is_listed_without_title_and_link(curator, handbook, foreign):
    outcome = search(principal(curator), SearchRequest(query="flight", knowledge_base_ids=[handbook.pk], explain=True))
    secret = foreign.chunks.get()
    lost = Dropped("passages", handbook.pk, secret.pk, {"bm25": 1})
    outcome = replace(outcome, result=replace(outcome.result, dropped=(lost,)))

    with override("en"):
        (listed,) = drops(outcome, (), principal(curator))["passages"]["chunks"]

    assert (listed["title"], listed["url"]) == (f"chunk {secret.pk}", "")
    assert listed["description"] == "It was deleted since the index was read, or you may not see it."


def test_without_a_reranker_chunks_that_only_keywords_found_are_listed(open_debug, handbook):
    hotels = Chunk.objects.get(text__startswith="Hotels")
    ChunkEmbedding.objects.filter(chunk=hotels).delete()

    page = Page(open_debug(kb=handbook.pk, q="hotels", rerank="off"))

    assert dropped(page, "fusion") == [
        "Hotels, chunk 1 Not found by vectors, which alone count without a reranker. why?"
    ]


def test_a_stage_that_dropped_nothing_has_no_list(open_debug, handbook):
    assert not Page(open_debug(kb=handbook.pk, q="flight", threshold=0)).has("drops")


def test_a_long_list_says_how_many_more_there_are(open_debug, curator, monkeypatch):
    monkeypatch.setattr(explain_drops, "MOST_LISTED", 3)
    kb = make_kb(curator)
    make_document(kb, *[f"flight {number}" for number in range(10)])

    page = Page(open_debug(kb=kb.pk, q="flight"))

    assert len(dropped(page, "selection")) == 3
    assert "and 2 more" in words(page.one("//tr[@data-stage='selection']"))
