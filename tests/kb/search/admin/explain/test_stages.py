import pytest
from django.urls import reverse

from kb.models import (
    Chunk,
)
from kb.search.admin.explain.explanation import stage_times
from tests.factories import make_document, make_kb
from tests.kb.quality.debug.admin.debug_page import Page, words
from tests.servers import ModelServer, Reply

pytestmark = pytest.mark.django_db


def test_the_time_of_every_stage_shows(open_debug, few_flights):
    page = Page(open_debug(kb=few_flights.pk, q="flight"))

    rows = page.tree.xpath("//*[@data-testid='stages']//tr[@data-stage]")
    names = ["analysis", "vector", "bm25", "passages", "dedupe", "fusion", "rerank", "gate", "selection", "other"]
    assert [row.get("data-stage") for row in rows] == names
    assert all(float(row.xpath("./td[1]")[0].text_content()) >= 0 for row in rows)


def test_the_bar_counts_channels_that_ran_side_by_side_once():
    timings = {"analysis": 1.0, "vector": 6.0, "bm25": 3.0, "fusion": 1.0, "passages": 1.0, "gate": 0.0, "total": 10.0}

    parts = {part["stage"]: part for part in stage_times(timings)}

    assert {stage: part["milliseconds"] for stage, part in parts.items()} == {
        "analysis": "1.0",
        "channels": "6.0",
        "fusion": "1.0",
        "passages": "1.0",
        "gate": "0.00",
        "other": "1.0",
    }
    assert [(lane["stage"], lane["share"]) for lane in parts["channels"]["lanes"]] == [
        ("vector", "100.00"),
        ("bm25", "50.00"),
    ]
    assert sum(float(part["share"]) for part in parts.values()) == pytest.approx(100)


def did(page, stage):
    return words(page.one(f"//tr[@data-stage='{stage}']/td[2]"))


def test_the_fusion_tells_its_method_and_weights(open_debug, few_flights):
    by_ranks = Page(open_debug(kb=few_flights.pk, q="flight"))
    by_scores = Page(
        open_debug(kb=few_flights.pk, q="flight", fusion="weighted", vector_share="0.5", keyword_share="0.25")
    )

    assert did(by_ranks, "fusion") == "RRF, k = 60 weights: Vector 0.1, BM25 0.9 4 candidates"
    assert "weighted sum of min-max normalised scores weights: Vector 0.5, BM25 0.25" in did(by_scores, "fusion")
    assert by_scores.tree.xpath("//thead//small[text()='rank, sum']")


def test_characters_count_in_place_of_words_and_both_weights_are_those_in_force(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="差旅报销"))

    assert did(page, "characters") == "1 candidate scored by words, pairs and characters"
    assert "weights: Vector 0.1, BM25 0, Characters 0.9" in did(page, "fusion")
    weights = {
        run.get("data-channel"): words(run.xpath(".//*[@data-testid='weight']")[0])
        for run in page.tree.xpath("//td[@data-channel]")
    }
    assert weights == {
        "vector": "weight 0.1",
        "bm25": "weight 0",
        "characters": "weight 0.9",
        "lexical": "weight 0.45",
    }


def test_every_figure_is_explained_with_what_holds_in_this_search(open_debug, few_flights, cut_at):
    cut_at(0.98)
    figures = Page(open_debug(kb=few_flights.pk, q="flight")).text("figures")

    for label in (
        "Vector",
        "BM25",
        "Fused",
        "Rerank",
        "Order",
        "Coverage and saturation",
        "Agreement",
        "Near miss",
    ):
        assert label in figures
    assert "0.99 and more is high, 0.98 and more medium" in figures
    assert "Characters" not in figures


def test_the_chain_of_rerankers_tells_which_answered_and_why_others_did_not(open_debug, few_flights, settings):
    settings.RERANKER_MODEL, settings.RERANK_BASE_URL = "", ""
    settings.RETRIEVAL = {**settings.RETRIEVAL, "rerankers": ("cross_encoder", "http", "cosine", "overlap")}

    told = did(Page(open_debug(kb=few_flights.pk, q="flight")), "rerank")

    assert told.startswith("Word overlap scored 4 candidates Cross-encoder: not configured")
    assert "Rerank server: not configured" in told
    assert "Cosine passed over: without an embedding model cosines compare words, not meaning" in told


@pytest.mark.django_db(transaction=True)
def test_a_reranker_that_failed_is_told_of_in_the_chain_and_above_the_page(open_debug, few_flights, settings):
    with ModelServer() as server:
        settings.RERANKER_MODEL, settings.RERANK_BASE_URL = "", server.base_url
        server.always("rerank", Reply([0.5]))  # one score for four passages
        page = Page(open_debug(kb=few_flights.pk, q="flight"))

    assert "Rerank server passed over: it failed" in did(page, "rerank")
    assert page.tree.xpath("//*[@data-code='reranker_failed']")


def test_the_gate_and_the_selection_tell_where_labels_begin_and_how_many_near_misses_there_are(
    open_debug, few_flights, cut_at
):
    cut_at(0.98)
    page = Page(open_debug(kb=few_flights.pk, q="flight"))

    assert "relevance: medium from 0.98, high from 0.99" in did(page, "gate")
    assert "near misses given apart" in did(page, "selection")


def test_the_gate_tells_scale_cut_and_where_the_cut_is_from(open_debug, few_flights):
    asked = Page(open_debug(kb=few_flights.pk, q="flight", threshold="0.25"))
    inherited = Page(open_debug(kb=few_flights.pk, q="flight"))

    assert did(asked, "gate").startswith("threshold 0.25 on the scale word overlap as the settings ask")
    assert "the scale’s default" in did(inherited, "gate")


@pytest.mark.django_db(transaction=True)
def test_a_threshold_that_was_meant_for_another_scale_is_said_to_be_replaced(open_debug, few_flights, settings):
    with ModelServer() as server:
        settings.RERANKER_MODEL, settings.RERANK_BASE_URL = "", server.base_url
        server.always("rerank", Reply([0.5]))
        page = Page(open_debug(kb=few_flights.pk, q="flight", threshold="0.5"))

    assert "in place of the threshold 0.5, which is meant for another scale" in did(page, "gate")
    assert page.tree.xpath("//*[@data-code='threshold_not_applied']")


def test_the_selection_tells_the_caps_of_each_kind_of_source(open_debug, few_flights, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "general_retrieval": False, "max_books": 1, "max_web": 2}

    page = Page(open_debug(kb=few_flights.pk, q="flight"))

    assert "document 1, video 3, Q&A 5, web 2" in did(page, "selection")
    assert {reason for reason in page.column("cut-by").values() if reason != "–"} == {
        "Kind of source The places for its kind of source, “document”, are taken: 1."
    }


def test_doubles_are_counted_and_each_row_tells_where_it_was_found(open_debug, curator, handbook):
    other = make_kb(curator, "Copy")
    make_document(other, "Hotels are booked by the office.", title="Hotels", source="hotels.pdf")

    page = Page(open_debug(kb=[handbook.pk, other.pk], q="hotels office"))

    assert did(page, "dedupe").startswith("1 chunk of a content that another one stands for")
    hotels = Chunk.objects.get(document__knowledge_base=handbook, text__startswith="Hotels")
    double = Chunk.objects.get(document__knowledge_base=other)
    found_at = page.one(f"//tr[@data-chunk-id='{hotels.pk}']//*[@data-testid='found-at']")
    assert "stands for 1 double" in words(found_at)
    assert "Vector rank 1" in words(found_at)
    assert reverse("admin:kb_chunk_place", args=[double.pk]) in found_at.xpath(".//a/@href")
    assert {"Handbook", "Copy"} == set(found_at.xpath(".//*[@class='sd-kb']/text()"))
