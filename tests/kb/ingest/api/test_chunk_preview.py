import pytest
from django.core.files.base import ContentFile

from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from tests import factories

pytestmark = pytest.mark.django_db

TEXT = "第一段说的是一件事情。\n\n第二段说的是别的事情。"


@pytest.fixture
def url(kb):
    return f"/api/v1/knowledge-bases/{kb.pk}/chunk-preview/"


@pytest.fixture
def document(kb):
    added = document_add(knowledge_base=kb, file=ContentFile(TEXT.encode()), name="a.txt", user=kb.owner)
    index_document(added.pk)
    return added


def test_a_text_is_cut_by_the_settings_given(client, url):
    response = client.post(url, {"text": TEXT, "chunk_size": 20, "chunk_overlap": 0}, format="json")

    assert response.status_code == 200
    body = response.json()
    assert [chunk["text"] for chunk in body["chunks"]] == TEXT.split("\n\n")
    assert body["chunks"][1] == {
        "number": 2,
        "text": "第二段说的是别的事情。",
        "overlap": 0,
        "page": None,
        "seconds": None,
        "regions": [],
        "heading_path": [],
        "tokens": body["chunks"][1]["tokens"],
        "questions": [],
        "parent": None,
        "survives": False,
    }
    assert (body["total"], body["present"], body["survival"]) == (2, None, None)


def test_a_document_tells_what_survives(client, url, document):
    body = client.post(url, {"document_id": document.pk}, format="json").json()

    assert body["survival"] == {
        "kept": 1,
        "new": 0,
        "gone": 0,
        "edits": 0,
        "edits_kept": 0,
        "disabled": 0,
        "disabled_kept": 0,
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "document_id"),
        ({"text": "x", "document_id": 1}, "document_id"),
        ({"text": "x", "chunk_strategy": "random"}, "chunk_strategy"),
        ({"text": "x", "chunk_size": 19}, "chunk_size"),
        ({"text": "x", "parent_size": "300"}, "parent_size"),
        ({"text": 5}, "text"),
    ],
)
def test_a_body_that_is_not_valid_names_the_field(client, url, body, field):
    response = client.post(url, body, format="json")

    assert response.status_code == 400
    assert field in response.json()["fields"]


def test_settings_that_do_not_go_together_are_400(client, url):
    response = client.post(url, {"text": "x", "chunk_size": 50, "chunk_overlap": 50}, format="json")

    assert (response.status_code, response.json()["code"]) == (400, "invalid_chunking")


def test_a_document_of_another_knowledge_base_is_404(client, url):
    other = factories.make_document(factories.make_kb(), "别处")

    assert client.post(url, {"document_id": other.pk}, format="json").status_code == 404


def test_a_knowledge_base_that_is_not_visible_is_404(client):
    other = factories.make_kb()

    assert client.post(f"/api/v1/knowledge-bases/{other.pk}/chunk-preview/", {"text": "x"}).status_code == 404


def test_a_key_with_the_scope_read_may_preview(client_with, kb, url):
    _, secret = factories.make_api_key(kb.owner, kb, scope="read")

    assert client_with(secret).post(url, {"text": "x"}, format="json").status_code == 200
