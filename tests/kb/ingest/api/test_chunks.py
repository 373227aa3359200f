import pytest

from kb.models import Chunk, KnowledgeBase
from kb.search.services import search_log
from tests import factories

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
        "etag",
        "id",
        "document_id",
        "knowledge_base_id",
        "position",
        "text",
        "page",
        "seconds",
        "regions",
        "heading_path",
        "pictures",
        "keywords",
        "questions",
        "enabled",
        "is_edited",
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
        ({"keywords": "x"}, "keywords"),
        ({"keywords": ["x" * 301]}, "keywords.0"),
        ({"questions": [1]}, "questions.0"),
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


@pytest.fixture
def second(document):
    return document.chunks.get(position=1)


def test_keywords_and_questions_are_given_and_taken_back(client, url):
    given = client.patch(url, {"keywords": ["年假", " 休假 "], "questions": ["能休几天?"]}, format="json").json()
    cleared = client.patch(url, {"keywords": [], "questions": []}, format="json").json()

    assert (given["keywords"], given["questions"], given["is_edited"]) == (["年假", "休假"], ["能休几天?"], False)
    assert (cleared["keywords"], cleared["questions"]) == ([], [])


def test_chunks_are_merged_and_split_again(client, document, chunk, second):
    merge_url = f"/api/v1/documents/{document.pk}/chunks/merge/"
    merged = client.post(merge_url, {"chunk_ids": [chunk.pk, second.pk]}, format="json").json()
    parts = client.post(f"/api/v1/chunks/{chunk.pk}/split/", {"texts": [chunk.text, second.text]}, format="json").json()

    assert (merged["id"], merged["text"]) == (chunk.pk, f"{chunk.text}\n{second.text}")
    assert [(part["position"], part["text"]) for part in parts] == [(0, chunk.text), (1, second.text)]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("documents/{document}/chunks/merge/", {"chunk_ids": ["{chunk}"]}, 400, "invalid"),
        ("documents/{document}/chunks/merge/", {"chunk_ids": ["{chunk}", 987654321]}, 404, "not_found"),
        ("documents/{document}/chunks/merge/", {"chunk_ids": ["{chunk}", "{chunk}"]}, 400, "merge_count"),
        ("chunks/{chunk}/split/", {"at": [10_000]}, 400, "empty_part"),
        ("chunks/{chunk}/split/", {"texts": ["a", "b"]}, 400, "other_text"),
        ("chunks/{chunk}/split/", {}, 400, "invalid"),
        ("chunks/{chunk}/split/", {"at": [3], "texts": ["a", "b"]}, 400, "invalid"),
        ("knowledge-bases/{kb}/chunks/bulk/", {"ids": [987654321], "action": "disable"}, 400, "unknown_chunks"),
        ("knowledge-bases/{kb}/chunks/bulk/", {"ids": ["{chunk}"], "action": "publish"}, 400, "invalid"),
        ("knowledge-bases/{kb}/chunks/bulk/", {"ids": [], "action": "disable"}, 400, "invalid"),
    ],
)
def test_work_that_cannot_be_done_has_a_code(client, kb, document, chunk, path, body, status, code):
    ids = {"document": document.pk, "chunk": chunk.pk, "kb": kb.pk}
    filled = {
        name: [chunk.pk if each == "{chunk}" else each for each in value] if isinstance(value, list) else value
        for name, value in body.items()
    }

    response = client.post(f"/api/v1/{path.format(**ids)}", filled, format="json")

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert document.chunks.count() == 2


def test_chunks_are_switched_and_deleted_in_bulk(client, kb, document, chunk, second):
    url = f"/api/v1/knowledge-bases/{kb.pk}/chunks/bulk/"
    ids = [chunk.pk, second.pk]

    changed = [client.post(url, {"ids": ids, "action": each}, format="json").json() for each in ("disable", "delete")]

    assert changed == [{"changed": 2}, {"changed": 2}]
    assert not document.chunks.exists()


def test_a_chunk_is_deleted(client, document, chunk, url):
    assert client.delete(url).status_code == 204

    assert [each.position for each in document.chunks.all()] == [0]
    assert client.get(url).status_code == 404


def test_neighbours_stand_in_the_order_of_the_document(client, chunk, second):
    first = client.get(f"/api/v1/chunks/{chunk.pk}/neighbours/").json()
    last = client.get(f"/api/v1/chunks/{second.pk}/neighbours/", {"count": 5}).json()

    assert ([row["id"] for row in first["next"]], first["previous"]) == ([second.pk], [])
    assert ([row["id"] for row in last["previous"]], last["next"]) == ([chunk.pk], [])


def test_the_searches_that_found_a_chunk_are_listed(client, kb, chunk):
    _search(client, kb, "带薪年假")
    search_log.flush()

    [row] = client.get(f"/api/v1/chunks/{chunk.pk}/queries/").json()["queries"]

    assert (row["query"], row["rank"]) == ("带薪年假", 1)


def test_near_duplicates_are_listed(client, kb, chunk):
    copy = factories.make_document(kb, chunk.text, title="员工手册").chunks.get()

    groups = client.get(f"/api/v1/knowledge-bases/{kb.pk}/near-duplicates/").json()
    own = client.get(f"/api/v1/chunks/{chunk.pk}/duplicates/").json()["duplicates"]

    assert groups["groups"] == [{"chunk_ids": [chunk.pk, copy.pk], "similarity": 1.0}]
    assert (groups["is_current"], groups["is_awaited"]) == (True, False)
    assert [(row["chunk"]["id"], row["similarity"]) for row in own] == [(copy.pk, 1.0)]


def test_a_look_for_near_duplicates_is_asked_for(client, kb):
    assert client.post(f"/api/v1/knowledge-bases/{kb.pk}/near-duplicates/").status_code == 202


def test_a_chunk_says_where_it_stands(client, chunk, url):
    regions = [{"page": 3, "box": [0.1, 0.2, 0.3, 0.4]}, {"page": 4, "box": None}]
    Chunk.objects.filter(pk=chunk.pk).update(regions=regions, seconds=75)
    row = client.get(url).json()
    assert (row["regions"], row["seconds"]) == (regions, 75)
