import json
import sys
from functools import partial

import pytest
from django.urls import reverse
from django.utils.translation import override

from kb import conf
from kb.admin.degradations import degradation_heading, notices
from kb.admin.explain_bases import index_notes, tier_in_words, vector_source_in_words
from kb.admin.explain_stages import stage_times
from kb.models import BM25Index, Chunk, Concept, ConceptTerm, GraphFact, KnowledgeBase, SearchLog
from kb.services.tokenizing import read_settings, tokenizer_change
from kb.stores.bm25 import BM25Store
from retrieval.trace import Degradation, DegradationCode
from tests.factories import make_document, make_kb
from tests.kb.admin import search_debug_page
from tests.kb.admin.search_debug_page import Page

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb(curator):
    kb = make_kb(curator, "Handbook")
    make_document(kb, "Employees running late may rebook their flight.", "差旅报销标准由财务部公布。", title="Travel")
    make_document(kb, "Hotels are booked by the office.", title="Hotels", source="hotels.pdf")
    return kb


@pytest.fixture
def open_page(client):
    return partial(search_debug_page.open_page, client)


@pytest.fixture
def many(curator):
    kb = make_kb(curator)
    make_document(kb, *[f"flight {number} of the day" for number in range(4)])
    return kb


# -- Summary, degradations, stages ----------------------------------------------------------------------------------


def test_the_summary_tells_counts_profile_scale_and_threshold(open_page, kb):
    text = Page(open_page(kb=kb.pk, q="flight", top_k=2, rerank="on")).text("summary")

    assert "2 of 3 candidates" in text
    assert "keyword-led v1" in text
    assert "changed here: Top K 2, Rerank on" in text
    assert "overlap no gate: threshold 0" in text


def test_the_trace_is_shown_and_linked(client, open_page, kb):
    page = Page(open_page(kb=kb.pk, q="flight"))
    log = SearchLog.objects.get()

    trace = json.loads(page.one("//*[@data-testid='trace']").text_content())
    assert trace == log.trace
    assert page.tree.xpath(f"//a[@href='/api/v1/traces/{log.pk}/']")
    assert client.get(f"/api/v1/traces/{log.pk}/").status_code == 200


def test_the_hashing_embedder_is_explained_with_its_profile_and_remedy(open_page, kb):
    text = Page(open_page(kb=kb.pk, q="flight")).text("degraded")

    assert "vectors compare words, not meaning" in text
    assert "reindex --kb Handbook --embeddings" in text
    assert "In “Handbook” this search weighed vectors 0.1 and keywords 0.9." in text


def test_an_outdated_keyword_index_is_named_and_the_words_are_still_marked(open_page, kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="older")

    page = Page(open_page(kb=kb.pk, q="flight"))

    assert "the keyword index is out of date" in page.text("degraded")
    assert "no index was used" in page.text("cache-tier")
    assert page.tree.xpath("//td[@title='this channel did not answer']")
    assert "flight" in page.marks(Chunk.objects.get(text__contains="flight").pk)


def test_without_the_packages_of_the_keyword_channel_the_page_searches_by_vector(open_page, kb, monkeypatch):
    monkeypatch.setitem(sys.modules, "rank_bm25", None)
    conf._load_tokenizer.cache_clear()
    try:
        page = Page(open_page(kb=kb.pk, q="flight"))
    finally:
        conf._load_tokenizer.cache_clear()

    assert "packages are missing" in page.text("degraded")
    assert set(page.column("vector-rank").values()) == {"1", "2", "3"}
    assert page.tree.xpath("//td[@title='no reranker could answer']")
    assert not page.has("terms")


def test_when_no_channel_answers_the_page_says_so(open_page, kb, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "enable_fts": False, "lexical_fallback": False}
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="older", embedding_model="/no/such/model")

    page = Page(open_page(kb=kb.pk, q="flight"))

    assert page.status == 503
    assert page.has("outage")
    codes = page.tree.xpath("//*[@data-testid='degraded']/*/@data-code")
    assert sorted(codes) == ["bm25_postings_outdated", "model_unavailable"]
    assert page.value("q") == "flight"


@pytest.mark.parametrize("code", DegradationCode)
def test_every_degradation_has_a_heading_of_its_own(code):
    with override("en"):
        assert degradation_heading(code) != code.value.replace("_", " ").capitalize()


def test_the_time_of_every_stage_shows(open_page, many):
    page = Page(open_page(kb=many.pk, q="flight"))

    rows = page.tree.xpath("//*[@data-testid='stages']//tr[@data-stage]")
    names = ["analysis", "vector", "bm25", "passages", "dedupe", "fusion", "rerank", "gate", "selection", "other"]
    assert [row.get("data-stage") for row in rows] == names
    assert all(float(row.xpath("./td[1]")[0].text_content()) >= 0 for row in rows)


def test_the_bar_counts_channels_that_ran_side_by_side_once():
    timings = {"analysis": 1.0, "vector": 6.0, "bm25": 3.0, "fusion": 1.0, "passages": 1.0, "gate": 0.0, "total": 10.0}

    parts = {part.stage: part for part in stage_times(timings)}

    assert {stage: part.milliseconds for stage, part in parts.items()} == {
        "analysis": "1.0",
        "channels": "6.0",
        "fusion": "1.0",
        "passages": "1.0",
        "gate": "0.00",
        "other": "1.0",
    }
    assert [(lane.stage, lane.share) for lane in parts["channels"].lanes] == [("vector", "100.00"), ("bm25", "50.00")]
    assert sum(float(part.share) for part in parts.values()) == pytest.approx(100)


@pytest.mark.django_db(transaction=True)
def test_the_cache_tier_that_answered_shows_in_words(open_page, kb):
    tiers = [Page(open_page(kb=kb.pk, q="flight")).text("cache-tier").partition(" waited")[0] for _ in range(2)]

    assert tiers == [
        "built now from the stored postings 3 chunks indexed",
        "from the memory of this process 3 chunks indexed",
    ]
    assert BM25Index.objects.filter(knowledge_base=kb).exists()


@pytest.mark.django_db(transaction=True)
def test_changes_that_were_read_over_the_base_are_told_of(open_page, kb):
    BM25Store().merge(kb.pk, kb.tokenizer_id)
    make_document(kb, "A new flight.")

    tier = Page(open_page(kb=kb.pk, q="flight")).text("cache-tier")

    assert "4 chunks indexed 1 changed chunk read over the base" in tier


@pytest.mark.parametrize(
    ("waited", "words"), [(0.4, ()), (12.04, ("waited 12.0 ms for it",))], ids=["at once", "after a while"]
)
def test_waiting_for_the_index_is_told_of_where_it_took_long(waited, words):
    with override("en"):
        assert index_notes({"waited_ms": waited}) == words


def test_a_search_while_the_chunks_are_tokenised_anew_says_which_tokenizer_it_used(open_page, kb):
    tokenizer_change(kb, read_settings(engine="jieba", dictionary="", stop_words="flight", simplify=False))

    page = Page(open_page(kb=kb.pk, q="flight"))

    assert "this search used the present tokenizer" in page.text("tokenizing")
    assert page.tree.xpath("//*[@data-testid='tokenizing']//a/@href") == [
        reverse("admin:kb_knowledgebase_tokenizer", args=[kb.pk])
    ]
    assert page.has("candidates")


def test_without_a_tokenizer_change_there_is_no_word_of_one(open_page, kb):
    assert not Page(open_page(kb=kb.pk, q="flight")).has("tokenizing")


def test_every_tier_has_words():
    with override("en"):
        named = {tier_in_words(tier) for tier in ("process", "redis", "database", "build", "")}

    assert len(named) == 5
