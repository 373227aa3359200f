"""A question that a curator adds to a chunk makes that query a hit, whatever the defaults cut."""

from importlib.util import find_spec

import pytest

from kb.providers import embedding_models
from retrieval.rerankers.cross_encoder import get_cross_encoder
from tests import factories
from tests.kb.providers.language_model import language_model
from tests.retrieval.rerankers.tiny import save_tiny_model
from tests.servers import Reply

pytestmark = pytest.mark.django_db

# No word and no character of it stands in the passage.
QUERY = "请假要找谁批准？"


@pytest.fixture
def leave(kb, document):
    """The chunk that answers the query, among others that share words with it."""
    factories.make_document(kb, "请假单由人事存档。", "出差要找主管批准，并找财务报销。", title="制度")
    return document.chunks.get(position=1)


@pytest.fixture
def strict(settings):
    """A default cut that refuses whatever holds less than two thirds of the query."""
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": 0.66}


def found(client, kb, query=QUERY, *, explain=False, **overrides):
    body = {"query": query, "knowledge_base_ids": [kb.pk], "explain": explain, "overrides": overrides}
    return client.post("/api/v1/search/", body, format="json").json()


def add_question(client, chunk, *questions):
    response = client.patch(f"/api/v1/chunks/{chunk.pk}/", {"questions": list(questions)}, format="json")
    assert response.status_code == 200


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("fusion", ["rrf", "weighted"])
def test_it_is_the_first_result_with_the_highest_relevance(client, kb, leave, fusion):
    assert leave.pk not in [row["chunk_id"] for row in found(client, kb, fusion=fusion)["results"]]

    add_question(client, leave, "找谁签字", "请假要找谁批准")
    first = found(client, kb, fusion=fusion)["results"][0]

    assert (first["chunk_id"], first["score"], first["score_scale"]) == (leave.pk, 1.0, "overlap")
    assert (first["relevance"], first["equal_question"]) == ("high", "请假要找谁批准")
    assert first["ranks"]["question_bm25"] == first["ranks"]["rerank"] == 1


@pytest.mark.usefixtures("strict")
def test_a_question_alike_brings_the_chunk_up_by_its_words(client, kb, leave):
    asked = "病假要找谁签字批准？"
    before = {row["chunk_id"]: row["scores"] for row in found(client, kb, asked, score_threshold=0.0)["results"]}
    add_question(client, leave, "请病假要找谁签字批准")
    after = {row["chunk_id"]: row["scores"] for row in found(client, kb, asked, score_threshold=0.0)["results"]}

    assert before[leave.pk]["rerank"] == 0
    assert after[leave.pk]["rerank"] > 0.5
    assert all(after[key].get("bm25") == each.get("bm25") for key, each in before.items())


@pytest.mark.usefixtures("strict")
def test_taking_the_question_back_takes_the_hit_back(client, kb, leave):
    add_question(client, leave, QUERY)
    assert found(client, kb)["results"][0]["chunk_id"] == leave.pk
    add_question(client, leave)
    assert leave.pk not in [row["chunk_id"] for row in found(client, kb)["results"]]


@pytest.mark.usefixtures("strict")
def test_a_disabled_chunk_is_not_found_by_it(client, kb, leave):
    add_question(client, leave, QUERY)
    client.patch(f"/api/v1/chunks/{leave.pk}/", {"enabled": False}, format="json")
    assert leave.pk not in [row["chunk_id"] for row in found(client, kb)["results"]]


@pytest.mark.usefixtures("strict")
def test_who_may_not_see_the_knowledge_base_sees_nothing_of_it(client, client_of, kb, leave):
    add_question(client, leave, QUERY)
    stranger = factories.make_user("stranger")
    own = factories.make_kb(stranger)
    factories.make_document(own, "请假别的内容。")

    assert "results" not in found(client_of(stranger), kb)
    results = found(client_of(stranger), own, score_threshold=0.0)["results"]
    assert {row["knowledge_base_id"] for row in results} == {own.pk}


@pytest.mark.usefixtures("strict")
def test_an_answer_rests_on_it(client, kb, leave, settings):
    add_question(client, leave, QUERY)
    with language_model(settings) as server:
        server.always("chat", Reply("每周两天[1]。"))
        body = {"query": QUERY, "knowledge_base_ids": [kb.pk]}
        answer = client.post("/api/v1/ask/", body, format="json").json()

    assert answer["hit"] is True
    assert answer["sources"][0]["chunk_id"] == leave.pk


def test_without_a_reranker_it_is_first_with_a_cosine_of_1(client, kb, leave):
    add_question(client, leave, QUERY)
    first = found(client, kb, use_rerank=False, cosine_threshold=0.9)["results"][0]
    assert (first["chunk_id"], first["score"], first["score_scale"]) == (leave.pk, 1.0, "cosine")


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs the 'models' extra")
def test_a_cross_encoder_that_gives_it_less_than_its_default_cut_does_not_refuse_it(
    client, kb, leave, settings, tmp_path
):
    settings.RERANKER_MODEL = str(save_tiny_model(tmp_path / "tiny", weights=0.0))  # scores 0.5, and the cut is 0.6
    embedding_models.load([], [get_cross_encoder(settings.RERANKER_MODEL)])
    assert found(client, kb)["results"] == []

    add_question(client, leave, QUERY)
    results = found(client, kb)["results"]

    assert [(row["chunk_id"], row["score"], row["score_scale"]) for row in results] == [
        (leave.pk, 1.0, "cross_encoder")
    ]


def test_it_is_found_beyond_the_depth_of_the_candidates_that_are_reranked(client, kb, leave):
    add_question(client, leave, QUERY)
    first = found(client, kb, rerank_candidates=1, top_k=1, score_threshold=0.0, question_weight=0.001)["results"][0]
    assert first["chunk_id"] == leave.pk


def test_where_questions_are_not_searched_it_does_not_count(client, kb, leave):
    add_question(client, leave, QUERY)
    results = found(client, kb, question_weight=0.0, score_threshold=0.0)["results"]
    assert results[0]["chunk_id"] != leave.pk
    assert not any("question_bm25" in row["ranks"] for row in results)


def test_the_trace_names_the_question(client, kb, leave):
    add_question(client, leave, "另一个问题", "请假要找谁批准")
    trace = found(client, kb, explain=True)["trace"]
    assert trace["candidates"][0]["equal_question"] == "请假要找谁批准"
    assert next(span["equal_questions"] for span in trace["spans"] if span["stage"] == "fusion") == [leave.pk]
