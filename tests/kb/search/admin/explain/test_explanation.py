import json
import sys

import pytest
from django.utils.translation import override

from kb.models import (
    Chunk,
    KnowledgeBase,
    SearchLog,
)
from kb.search import wiring as conf
from kb.search.admin.labels import degradation_heading, notices
from retrieval.errors import Degradation, DegradationCode
from tests.kb.quality.debug.admin.debug_page import Page

pytestmark = pytest.mark.django_db


def test_the_summary_tells_counts_profile_scale_and_threshold(open_debug, handbook):
    text = Page(open_debug(kb=handbook.pk, q="flight", top_k=2, rerank="on", threshold=0)).text("summary")

    assert text.startswith("2 results")
    assert "keyword-led v1" in text
    assert "word overlap · no threshold (0)" in text
    assert "changed here: Top K 2, Relevance threshold 0, Rerank on" in text


def test_the_trace_is_shown_and_the_process_not_logged_again(client, open_debug, handbook):
    results = Page(open_debug(kb=handbook.pk, q="flight", view=None))
    log = SearchLog.objects.get()
    assert results.tree.xpath(f"//a[@href='/api/v1/traces/{log.pk}/']")
    assert client.get(f"/api/v1/traces/{log.pk}/").status_code == 200

    page = Page(open_debug(kb=handbook.pk, q="flight"))

    trace = json.loads(page.one("//*[@data-testid='trace']").text_content())
    assert (trace.keys(), trace["request"]) == (log.trace.keys(), log.trace["request"])
    assert SearchLog.objects.get() == log


def test_the_hashing_embedder_is_explained_with_its_profile_and_remedy(open_debug, handbook):
    text = Page(open_debug(kb=handbook.pk, q="flight")).text("degraded")

    assert "vectors compare words, not meaning" in text
    assert "reindex --kb Handbook --embeddings" in text
    assert "In “Handbook” this search weighed vectors 0.1 and keywords 0.9." in text


def test_an_outdated_keyword_index_is_named_and_the_words_are_still_marked(open_debug, handbook):
    KnowledgeBase.objects.filter(pk=handbook.pk).update(tokenizer_id="older")

    page = Page(open_debug(kb=handbook.pk, q="flight"))

    assert "the keyword index is out of date" in page.text("degraded")
    assert "no index was used" in page.text("cache-tier")
    assert page.tree.xpath("//td[@title='this channel did not answer']")
    assert "flight" in page.marks(Chunk.objects.get(text__contains="flight").pk)


def test_without_the_packages_of_the_keyword_channel_the_page_searches_by_vector(open_debug, handbook, monkeypatch):
    monkeypatch.setitem(sys.modules, "rank_bm25", None)
    conf._load_tokenizer.cache_clear()
    try:
        page = Page(open_debug(kb=handbook.pk, q="flight"))
    finally:
        conf._load_tokenizer.cache_clear()

    assert "packages are missing" in page.text("degraded")
    assert set(page.column("vector-rank").values()) == {"1", "2", "3"}
    assert page.tree.xpath("//td[@title='no reranker could answer']")
    assert not page.has("terms")


def test_when_no_channel_answers_the_page_says_so(open_debug, handbook, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "enable_fts": False, "lexical_fallback": False}
    KnowledgeBase.objects.filter(pk=handbook.pk).update(tokenizer_id="older", embedding_model="/no/such/model")

    page = Page(open_debug(kb=handbook.pk, q="flight"))

    assert page.status == 503
    assert page.has("outage")
    codes = page.tree.xpath("//*[@data-testid='degraded']/*/@data-code")
    assert sorted(codes) == ["bm25_postings_outdated", "model_unavailable"]
    assert page.value("q") == "flight"


@pytest.mark.parametrize("code", DegradationCode)
def test_every_degradation_has_a_heading_of_its_own(code):
    with override("en"):
        assert degradation_heading(code) != code.value.replace("_", " ").capitalize()


def test_a_degradation_that_is_not_known_shows_as_it_is():
    with override("en"):
        (notice,) = notices([Degradation("rerank", "moon_phase", "the moon is `full`: wait")], (), {})

    assert notice["heading"] == "Moon phase"
    assert notice["details"] == [(("The moon is ", False), ("full", True), (": wait", False))]
