"""Whole knowledge bases over the API."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.models import Chunk, KnowledgeBase
from tests.factories import make_api_key, make_document, make_member, make_user

pytestmark = pytest.mark.django_db

IMPORT = "/api/v1/knowledge-bases/import/"


@pytest.fixture
def as_owner(client, owner):
    client.force_login(owner)
    return client


def exported(client, kb, **query):
    response = client.get(f"/api/v1/knowledge-bases/{kb.pk}/export/", query)
    assert (response.status_code, response["X-Content-Type-Options"]) == (200, "nosniff")
    return b"".join(response.streaming_content)


def upload(data):
    return SimpleUploadedFile("kb.zip", data, "application/zip")


def test_an_export_is_imported_under_another_name(as_owner, owner, kb):
    make_document(kb, "智能温控器的保修期是两年")
    data = exported(as_owner, kb, vectors="true")
    response = as_owner.post(IMPORT, {"file": upload(data), "name": "copy"})
    assert response.status_code == 201
    body = response.json()
    made = KnowledgeBase.objects.get(pk=body["knowledge_base_id"])
    assert (made.owner, made.name, body["rows"]["chunks"], body["notes"]) == (owner, "copy", 1, [])
    assert Chunk.objects.get(knowledge_base=made).text == "智能温控器的保修期是两年"


def test_a_taken_name_and_a_wrong_file_are_told(as_owner, kb):
    data = exported(as_owner, kb)
    taken = as_owner.post(IMPORT, {"file": upload(data)})
    assert (taken.status_code, list(taken.json()["fields"])) == (400, ["name"])
    wrong = as_owner.post(IMPORT, {"file": upload(b"hello")})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "not_a_zip")


def test_what_takes_too_long_is_refused_with_the_command_that_does_it(as_owner, kb, monkeypatch):
    from kb.operations.services.archives import restore as uploads

    make_document(kb, "a", "b")
    data = exported(as_owner, kb)
    monkeypatch.setattr(uploads, "AT_ONCE", {"embedded_chunks": 1})
    response = as_owner.post(IMPORT, {"file": upload(data), "name": "copy"})
    assert response.status_code == 413
    assert "import_kb" in response.json()["detail"]
    assert not KnowledgeBase.objects.filter(name="copy").exists()


def test_only_editors_export(client, kb):
    path = f"/api/v1/knowledge-bases/{kb.pk}/export/"
    for user, status in ((make_user(), 404), (make_member(kb, "viewer"), 403)):
        client.force_login(user)
        assert client.get(path).status_code == status


def test_a_key_that_is_bound_or_reads_only_imports_nothing(client, as_owner, owner, kb):
    data = exported(as_owner, kb)
    client.logout()
    for scope, bases in (("write", [kb]), ("read", [])):
        _key, secret = make_api_key(owner, *bases, scope=scope)
        headers = {"Authorization": f"Bearer {secret}"}
        response = client.post(IMPORT, {"file": upload(data), "name": "copy"}, headers=headers)
        assert response.status_code == 403
