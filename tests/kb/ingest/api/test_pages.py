"""Pages of documents as pictures over the API, for who may see the document."""

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage

from kb.ingest.services.documents import document_add
from tests.factories import make_api_key, make_document, make_kb, make_member, make_user
from tests.kb.ingest.parser.documents import make_pdf

pytestmark = pytest.mark.django_db


@pytest.fixture
def document(kb):
    data = make_pdf(["The pump."], ["The valve."])
    return document_add(knowledge_base=kb, file=ContentFile(data), name="plant.pdf", user=kb.owner)


def address(document, page=1, query=""):
    return f"/api/v1/documents/{document.pk}/pages/{page}/{query}"


def bearer(user, *knowledge_bases):
    return {"Authorization": f"Bearer {make_api_key(user, *knowledge_bases)[1]}"}


def test_a_page_is_a_picture_that_is_sent_once(client, document):
    first = client.get(address(document, 2, "?width=500"), headers={"Accept": "image/*"})
    assert (first.status_code, first["Content-Type"]) == (200, "image/webp")
    assert first["X-Content-Type-Options"] == "nosniff"
    assert first["Cache-Control"] == "private, no-cache"
    again = client.get(address(document, 2, "?width=500"), headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_members_and_keys_of_the_knowledge_base_see_it(client_of, anonymous, document, kb):
    viewer = make_member(kb)
    assert client_of(viewer).get(address(document)).status_code == 200
    assert anonymous.get(address(document), headers=bearer(viewer, kb)).status_code == 200


def test_nobody_else_learns_that_there_is_one_and_nothing_is_drawn(client_of, anonymous, owner, document, kb):
    stranger, other = make_user(), make_kb(owner, "other")
    assert client_of(stranger).get(address(document)).status_code == 404
    assert anonymous.get(address(document), headers=bearer(stranger)).status_code == 404
    assert anonymous.get(address(document), headers=bearer(owner, other)).status_code == 404
    assert anonymous.get(address(document)).status_code == 401
    former = make_member(kb)
    kb.memberships.filter(user=former).delete()
    assert client_of(former).get(address(document)).status_code == 404
    assert not default_storage.exists(f"documents/{kb.pk}/previews")


@pytest.mark.parametrize("query", ["?width=0", "?width=5000", "?width=x"])
def test_a_width_is_bounded(client, document, query):
    answer = client.get(address(document, 1, query))
    assert answer.status_code == 400
    assert "width" in answer.json()["fields"]


def test_there_are_no_other_pages_and_none_of_other_documents(client, document, kb):
    assert client.get(address(document, 3)).status_code == 404
    assert client.get(address(document, 0)).status_code == 404
    assert client.get(address(make_document(kb, "text"))).status_code == 404


def test_a_page_that_cannot_be_drawn_says_why(client, document):
    default_storage.delete(document.file.name)
    default_storage.save(document.file.name, ContentFile(b"%PDF-1.7\n" + bytes(range(256)) * 40))
    answer = client.get(address(document))
    assert (answer.status_code, answer.json()["code"]) == (400, "page_unreadable")
    assert "damaged" in answer.json()["detail"]
