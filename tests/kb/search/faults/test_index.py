"""While the keyword index is being built, full text stands in for it, and where that is off the vectors answer alone."""

from kb.index.bm25 import BM25Store
from kb.models import ChunkPostings
from tests.kb.search.faults.searches import WARRANTY, ask, building, channels, notes, out_of_time, texts

IMPATIENT = {"keyword_timeout_ms": 100}
BUILDING = [("bm25", "bm25_index_building")]


def test_full_text_stands_in_for_an_index_that_is_being_built(kb):
    with building(kb):
        result = ask(kb, latency_budget_ms=10_000, overrides=IMPATIENT)

    assert notes(result) == BUILDING
    assert texts(result)[0] == WARRANTY
    assert channels(result) == {"vector", "fts"}


def test_without_full_text_the_vectors_answer_alone(kb, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "enable_fts": False, "lexical_fallback": False}
    with building(kb):
        result = ask(kb, latency_budget_ms=10_000, overrides=IMPATIENT)

    assert notes(result) == BUILDING
    assert texts(result)[0] == WARRANTY
    assert channels(result) == {"vector"}


def test_an_index_that_is_still_being_built_costs_no_more_than_the_budget_allows(kb, monkeypatch):
    ask(kb)  # caches the query's vector
    out_of_time(monkeypatch)
    with building(kb):
        result = ask(kb, overrides={"enable_fts": False, "lexical_fallback": False})

    assert notes(result) == BUILDING
    assert texts(result)[0] == WARRANTY


def test_the_search_after_the_build_has_the_index(kb):
    with building(kb):
        ask(kb, overrides=IMPATIENT)

    result = ask(kb)

    assert notes(result) == []
    assert "bm25" in channels(result)


def test_an_index_that_cannot_be_built_leaves_the_vectors(kb):
    ChunkPostings.objects.filter(knowledge_base=kb).update(frequencies=b"\x01")
    BM25Store().invalidate(kb.pk)

    result = ask(kb, overrides={"enable_fts": False, "lexical_fallback": False})

    assert notes(result) == [("bm25", "channel_failed")]
    assert texts(result)[0] == WARRANTY
    assert channels(result) == {"vector"}
