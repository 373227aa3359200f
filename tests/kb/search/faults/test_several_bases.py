"""Three knowledge bases in three vector spaces, one of whose models is away."""

import pytest

from kb.models import ChunkEmbedding, KnowledgeBase
from retrieval.execution import FAILURES_TO_OPEN
from tests.factories import make_document, make_kb
from tests.kb.search.faults.searches import WARRANTY, ask, notes

GONE = "BAAI/not-here"
COSINE_FIRST = {"rerankers": ["cosine", "overlap"]}
NO_RERANKER = {"use_rerank": False}


@pytest.fixture
def bases(kb):
    hashed, away = make_kb(kb.owner), make_kb(kb.owner, embedding_model=kb.embedding_model)
    make_document(hashed, f"{WARRANTY}，可以延长")
    make_document(away, f"{WARRANTY}，自购买之日起")
    KnowledgeBase.objects.filter(pk=away.pk).update(embedding_model=GONE)
    ChunkEmbedding.objects.filter(knowledge_base=away).update(model=GONE)
    return [hashed, kb, away]


def found_by(result, kb):
    return {channel for hit in result.hits if hit.passage.kb_id == kb.pk for channel in hit.ranks}


def test_all_three_answer_the_third_by_its_keywords(bases):
    result = ask(*bases)

    assert {hit.passage.kb_id for hit in result.hits} == {kb.pk for kb in bases}
    hashed, healthy, away = (found_by(result, kb) for kb in bases)
    assert {"vector", "bm25"} <= hashed & healthy
    assert "bm25" in away
    assert "vector" not in away


def test_the_missing_model_is_told_of_once(bases):
    *_, away = bases
    another = make_kb(away.owner, embedding_model=GONE)

    result = ask(*bases, another)

    assert notes(result) == [("vector", "hashing_embedder"), ("vector", "model_unavailable")]
    assert GONE in result.degraded[1].detail


def test_the_remedy_is_told_of_also_when_the_model_is_not_asked_for_any_longer(bases):
    for _ in range(FAILURES_TO_OPEN):
        ask(*bases)

    result = ask(*bases)

    assert notes(result) == [("vector", "hashing_embedder"), ("vector", "model_circuit_open")]
    assert f"download_model {GONE}" in result.degraded[1].detail


@pytest.mark.parametrize(("settings_of_search", "scale"), [(COSINE_FIRST, "overlap"), (NO_RERANKER, "rrf")])
def test_cosines_of_different_spaces_are_not_compared(bases, settings_of_search, scale):
    result = ask(*bases, overrides=settings_of_search)

    assert {hit.score_scale for hit in result.hits} == {scale}


@pytest.mark.parametrize("settings_of_search", [COSINE_FIRST, NO_RERANKER])
def test_those_of_one_space_are(kb, settings_of_search):
    other = make_kb(kb.owner, embedding_model=kb.embedding_model)
    make_document(other, f"{WARRANTY}，可以延长")

    result = ask(kb, other, overrides=settings_of_search)

    assert {hit.score_scale for hit in result.hits} == {"cosine"}
