import hashlib
import io
import json

import pytest
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.ingest.services.indexing import index_document
from kb.models import ChunkEmbedding, Document
from tests import factories

pytestmark = pytest.mark.django_db

TEXT = "工作满一年的员工每年享有五天带薪年假。"


@pytest.fixture
def url(kb):
    return f"/api/v1/knowledge-bases/{kb.pk}/documents/"


BYTES = TEXT.encode()


def _file(content=BYTES, name="notes.txt"):
    return SimpleUploadedFile(name, content)


def _stored(document):
    return Document.objects.get(pk=document.pk)


def _bytes_of(document):
    with document.file.open() as file:
        return file.read()


def test_a_file_becomes_a_waiting_document(client, kb, owner, url):
    response = client.post(url, {"file": _file()}, format="multipart")

    row = response.json()
    assert response.status_code == 201
    assert (row["source"], row["status"], row["progress"], row["chunk_count"]) == ("notes.txt", "pending", 0, 0)
    assert row["sha256"] == hashlib.sha256(BYTES).hexdigest()
    stored = Document.objects.get()
    assert (stored.pk, stored.knowledge_base, stored.created_by) == (row["id"], kb, owner)
    assert _bytes_of(stored) == BYTES


def test_a_form_takes_details_beside_the_file(client, url):
    details = {
        "title": "手册",
        "source_type": "qa",
        "metadata": json.dumps({"author": "Li", "year": 2024}),
        "tags": ["人事", "假期"],
    }

    row = client.post(url, {"file": _file(), **details}, format="multipart").json()

    assert row["metadata"] == {"author": "Li", "year": 2024}
    assert (row["title"], row["source_type"], row["tags"]) == ("手册", "qa", ["人事", "假期"])


def test_a_text_becomes_a_waiting_document(client, url):
    response = client.post(url, {"text": TEXT, "title": "手册", "metadata": {"a": [1, None]}}, format="json")

    assert response.status_code == 201
    assert (response.json()["title"], response.json()["metadata"]) == ("手册", {"a": [1, None]})
    assert _bytes_of(Document.objects.get()) == BYTES


def test_an_upload_can_be_searched_once_the_worker_has_run(client, kb, url):
    document_id = client.post(url, {"text": TEXT}, format="json").json()["id"]

    index_document(document_id)

    row = client.get(f"/api/v1/documents/{document_id}/").json()
    assert (row["status"], row["progress"], row["chunk_count"], row["error"]) == ("ready", 100, 1, None)
    found = client.post("/api/v1/search/", {"query": "带薪年假", "knowledge_base_ids": [kb.pk]}, format="json").json()
    assert [result["document_id"] for result in found["results"]] == [document_id]


def test_a_document_that_cannot_be_read_says_why(client, url):
    document_id = client.post(url, {"file": _file(b"%PDF-1.7 not really", "x.pdf")}, format="multipart").json()["id"]

    index_document(document_id)

    row = client.get(f"/api/v1/documents/{document_id}/").json()
    assert row["status"] == "failed"
    assert row["error"]["code"]
    assert row["error"]["message"]


def test_the_same_bytes_again_are_409_and_name_the_document(client, url):
    first = client.post(url, {"file": _file()}, format="multipart").json()

    response = client.post(url, {"file": _file(name="copy.txt")}, format="multipart")

    assert (response.status_code, response.json()["code"]) == (409, "already_there")
    assert response.json()["document_id"] == first["id"]
    assert Document.objects.count() == 1


def test_a_file_over_the_limit_is_413_and_leaves_nothing(client, url, settings):
    settings.MAX_UPLOAD_BYTES = 10

    response = client.post(url, {"file": _file()}, format="multipart")

    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert not Document.objects.exists()


def test_a_form_far_over_the_limit_is_413_before_it_is_read(client, url, settings):
    settings.MAX_UPLOAD_BYTES = 10
    body = io.BytesIO(b"never read")

    response = client.generic(
        "POST", url, body.getvalue(), content_type="multipart/form-data; boundary=x", CONTENT_LENGTH=str(2 * 1024**2)
    )

    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_a_json_body_over_the_limit_is_413(client, url, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100

    response = client.post(url, {"text": "x" * 200}, format="json")

    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_form_fields_over_the_limit_are_413(client, url, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100

    response = client.post(url, {"file": _file(), "title": "x" * 200}, format="multipart")

    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_a_file_of_a_type_that_cannot_be_read_is_415(client, url):
    response = client.post(
        url, {"file": SimpleUploadedFile("notes.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")}, format="multipart"
    )

    assert (response.status_code, response.json()["code"]) == (415, "unsupported_type")


def test_a_body_of_another_type_is_415(client, url):
    assert client.generic("POST", url, "text", content_type="text/plain").status_code == 415


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": "  \n"}, "text"),
        ({"text": 5}, "text"),
        ({"text": "x", "title": 5}, "title"),
        ({"text": "x", "tags": "a"}, "tags"),
        ({"text": "x", "tags": [1]}, "tags.0"),
        ({"text": "x", "tags": ["a", "b" * 61]}, "tags.1"),
        ({"text": "x", "metadata": []}, "metadata"),
        ({"text": "x", "metadata": "{}"}, "metadata"),
        ({"text": "x", "metadata": {"a": "\0"}}, "metadata"),
        ({"text": "x", "metadata": {"\ud800": 1}}, "metadata"),
        ({"text": "x", "metadata": {"a": "y" * 40_000}}, "metadata"),
        ({"text": "x", "source_type": "scroll"}, "source_type"),
        ({"text": "x", "file": "y"}, "file"),
        ({"text": "x", "status": "ready"}, "status"),
    ],
)
def test_a_body_that_is_not_valid_names_the_field(client, url, body, field):
    response = client.generic("POST", url, json.dumps(body), content_type="application/json")

    assert response.status_code == 400
    assert field in response.json()["fields"]
    assert not Document.objects.exists()


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({}, "file"),
        ({"file": "not a file"}, "file"),
        ({"file": _file, "metadata": "{"}, "metadata"),
        ({"file": _file, "metadata": "[" * 50_000}, "metadata"),
        ({"file": _file, "metadata": '{"a": NaN}'}, "metadata"),
        ({"file": _file, "text": "both"}, "text"),
    ],
)
def test_a_form_that_is_not_valid_names_the_field(client, url, form, field):
    body = {name: value() if callable(value) else value for name, value in form.items()}

    response = client.post(url, body, format="multipart")

    assert response.status_code == 400
    assert field in response.json()["fields"]
    assert not Document.objects.exists()


@pytest.mark.parametrize("number", ["1e999", "-1e999", "[" * 20 + "]" * 20, '{"a":' * 20 + "1" + "}" * 20])
def test_metadata_that_cannot_be_stored_is_400(client, url, number):
    body = f'{{"text": "x", "metadata": {{"a": {number}}}}}'

    response = client.generic("POST", url, body, content_type="application/json")

    assert response.json()["fields"].keys() == {"metadata"}


def test_json_nested_without_end_is_400(client, url):
    response = client.generic("POST", url, "[" * 100_000, content_type="application/json")

    assert (response.status_code, response.json()["code"]) == (400, "parse_error")


def test_the_list_is_of_one_knowledge_base_newest_first(client, kb, owner, url):
    old, new = factories.make_document(kb, "old"), factories.make_document(kb, "new", "er")
    factories.make_document(factories.make_kb(owner), "elsewhere")

    rows = client.get(url).json()["results"]

    assert [(row["id"], row["chunk_count"]) for row in rows] == [(new.pk, 2), (old.pk, 1)]


def test_the_list_takes_the_same_number_of_queries_however_long_it_is(client, kb, url, django_assert_max_num_queries):
    for _ in range(5):
        factories.make_document(kb, "text")

    with django_assert_max_num_queries(5):  # session, user, knowledge base, count, rows
        assert len(client.get(url).json()["results"]) == 5


def test_a_document_is_described_by_the_documented_fields(client, document):
    row = client.get(f"/api/v1/documents/{document.pk}/").json()

    assert row.keys() == {
        "etag",
        "id",
        "knowledge_base_id",
        "folder_id",
        "title",
        "source",
        "source_type",
        "mime",
        "size",
        "sha256",
        "metadata",
        "tags",
        "status",
        "stage",
        "progress",
        "batch_id",
        "error",
        "remarks",
        "chunk_count",
        "created_at",
        "updated_at",
    }


def test_tags_and_metadata_change_without_indexing_again(client, document):
    changes = {"tags": ["x"], "metadata": {"k": 1}, "source_type": "web"}

    row = client.patch(f"/api/v1/documents/{document.pk}/", changes, format="json").json()

    assert {name: row[name] for name in changes} == changes
    assert row["status"] == "ready"


def test_a_new_title_is_found_once_the_worker_has_run(client, document):
    row = client.patch(f"/api/v1/documents/{document.pk}/", {"title": "regulations"}, format="json").json()
    index_document(document.pk)

    assert (row["title"], row["status"]) == ("regulations", "pending")
    assert document.pk in _finds(client, document.knowledge_base_id, "regulations")


def test_the_same_title_again_indexes_nothing(client, url):
    document_id = client.post(url, {"text": TEXT, "title": "same"}, format="json").json()["id"]
    index_document(document_id)

    row = client.patch(f"/api/v1/documents/{document_id}/", {"title": "same"}, format="json").json()

    assert row["status"] == "ready"


def _finds(client, kb_id, query):
    body = {"query": query, "knowledge_base_ids": [kb_id], "score_threshold": 0.01}
    return [result["document_id"] for result in client.post("/api/v1/search/", body, format="json").json()["results"]]


@pytest.mark.parametrize("body", [{"title": ""}, {"title": None}, {"text": "x"}, {"status": "ready"}, {"sha256": "0"}])
def test_a_change_that_is_not_valid_is_400_and_changes_nothing(client, document, body):
    response = client.patch(f"/api/v1/documents/{document.pk}/", body, format="json")

    assert response.status_code == 400
    assert response.json()["fields"].keys() == body.keys()
    assert _stored(document).title == "员工手册"


def test_deleting_a_document_removes_its_chunks_and_vectors(client, document):
    response = client.delete(f"/api/v1/documents/{document.pk}/")

    assert response.status_code == 204
    assert not Document.objects.exists()
    assert not ChunkEmbedding.objects.exists()


def test_deleting_a_document_removes_its_file(client, url, django_capture_on_commit_callbacks):
    document_id = client.post(url, {"file": _file()}, format="multipart").json()["id"]
    file = Document.objects.get().file

    with django_capture_on_commit_callbacks(execute=True):
        client.delete(f"/api/v1/documents/{document_id}/")

    assert not file.storage.exists(file.name)


def test_chunks_come_in_the_order_of_the_document(client, document):
    first = client.get(f"/api/v1/documents/{document.pk}/chunks/", {"page_size": 1}).json()
    page = client.get(first["next"]).json()

    assert [row["position"] for row in first["results"]] == [0]
    assert [row["position"] for row in page["results"]] == [1]


def test_a_failed_document_is_queued_again(client, url):
    document_id = client.post(url, {"text": TEXT}, format="json").json()["id"]
    Document.objects.update(status="failed", error="no memory", error_code="out_of_memory")

    response = client.post(f"/api/v1/documents/{document_id}/retry/")

    assert response.status_code == 202
    assert (response.json()["status"], response.json()["error"]) == ("pending", None)


def test_a_file_comes_back_as_an_attachment(client, url):
    html = b"<script>alert(1)</script>"
    document_id = client.post(url, {"file": _file(html, "页.html")}, format="multipart").json()["id"]

    response = client.get(f"/api/v1/documents/{document_id}/file/", headers={"Accept": "text/html"})

    assert b"".join(response.streaming_content) == html
    assert response.headers["Content-Disposition"].startswith("attachment;")
    assert "%E9%A1%B5.html" in response.headers["Content-Disposition"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Type"] == "application/octet-stream"


def test_a_document_without_a_file_has_none_to_download(client, document):
    assert client.get(f"/api/v1/documents/{document.pk}/file/").status_code == 404


def test_a_file_that_is_gone_from_the_disk_is_404(client, document):
    document.file.save("notes.txt", ContentFile(b"text"))
    document.file.storage.delete(document.file.name)

    assert client.get(f"/api/v1/documents/{document.pk}/file/").status_code == 404


def test_an_empty_file_ends_as_failed_with_a_sentence(client, kb):
    upload = SimpleUploadedFile("empty.txt", b"", "text/plain")
    created = client.post(f"/api/v1/knowledge-bases/{kb.pk}/documents/", {"file": upload})
    assert created.status_code == 201
    index_document(created.json()["id"])
    document = client.get(f"/api/v1/documents/{created.json()['id']}/").json()
    assert (document["status"], document["error"]["code"]) == ("failed", "empty_file")
    assert "no text" in document["error"]["message"]
