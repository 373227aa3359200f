import pytest

from kb.models import Chunk, KnowledgeBase

pytestmark = pytest.mark.django_db


@pytest.fixture
def url(chunk):
    return f"/api/v1/chunks/{chunk.pk}/"


def _search(client, kb, query):
    body = {"query": query, "knowledge_base_ids": [kb.pk], "score_threshold": 0.01}
    return [row["chunk_id"] for row in client.post("/api/v1/search/", body, format="json").json()["results"]]


def test_a_chunk_is_described_by_the_documented_fields(client, chunk, url):
    row = client.get(url).json()

    assert row.keys() == {
        "id",
        "document_id",
        "knowledge_base_id",
        "position",
        "text",
        "page",
        "heading_path",
        "enabled",
        "token_count",
        "updated_at",
    }
    assert row["text"] == chunk.text


def test_a_new_text_is_found_by_the_next_search(client, kb, chunk, url):
    row = client.patch(url, {"text": "差旅费用凭发票报销。"}, format="json").json()

    assert row["text"] == "差旅费用凭发票报销。"
    assert _search(client, kb, "发票报销")[0] == chunk.pk


def test_a_disabled_chunk_keeps_its_text_and_is_not_found(client, kb, chunk, url):
    before = _search(client, kb, "带薪年假")

    row = client.patch(url, {"enabled": False}, format="json").json()

    assert (row["enabled"], row["text"]) == (False, chunk.text)
    assert chunk.pk in before
    assert chunk.pk not in _search(client, kb, "带薪年假")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": " \n "}, "text"),
        ({"text": ["x"]}, "text"),
        ({"enabled": "true"}, "enabled"),
        ({"enabled": 1}, "enabled"),
        ({"enabled": None}, "enabled"),
        ({"position": 3}, "position"),
    ],
)
def test_a_change_that_is_not_valid_names_the_field(client, chunk, url, body, field):
    response = client.patch(url, body, format="json")

    assert response.status_code == 400
    assert field in response.json()["fields"]
    assert Chunk.objects.get(pk=chunk.pk).text == chunk.text


def test_a_change_is_refused_while_the_model_is_out_of_reach(client, kb, chunk, url):
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="nobody/no-such-model")

    response = client.patch(url, {"text": "new"}, format="json")

    assert (response.status_code, response.json()["code"]) == (400, "model_unavailable")
    assert Chunk.objects.get(pk=chunk.pk).text == chunk.text
