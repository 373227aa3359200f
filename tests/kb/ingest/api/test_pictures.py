import pytest
from django.core.files.base import ContentFile

from kb.ingest.services.documents import document_add, document_delete
from kb.ingest.services.indexing import index_document
from tests.factories import make_api_key, make_kb, make_member, make_user
from tests.kb.ingest.parser.documents import data_address, make_picture

pytestmark = pytest.mark.django_db


@pytest.fixture
def document(kb):
    text = f"# Plant\n\nThe pump.\n\n![A pump]({data_address(make_picture(1))})"
    added = document_add(knowledge_base=kb, file=ContentFile(text.encode()), name="plant.md", user=kb.owner)
    index_document(added.pk)
    return added


@pytest.fixture
def statuses(document):
    """Of the list of a document's pictures and of the file of the first, for a client that knows its ETag too."""
    picture = document.pictures.get()
    addresses = f"/api/v1/documents/{document.pk}/pictures/", f"/api/v1/pictures/{picture.pk}/"

    def ask(client, **headers):
        return [
            client.get(each, headers={"If-None-Match": f'"{picture.sha256}"', **headers}).status_code
            for each in addresses
        ]

    return ask


def bearer(user, *knowledge_bases):
    return {"Authorization": f"Bearer {make_api_key(user, *knowledge_bases)[1]}"}


def test_a_member_and_a_key_of_the_knowledge_base_see_pictures(statuses, client_of, anonymous, kb):
    viewer = make_member(kb)
    assert statuses(client_of(viewer)) == [200, 304]
    assert statuses(anonymous, **bearer(viewer)) == statuses(anonymous, **bearer(viewer, kb)) == [200, 304]


def test_nobody_else_learns_that_there_are_any(statuses, client_of, anonymous, owner, kb):
    assert statuses(client_of(make_user())) == [404, 404]
    assert statuses(anonymous, **bearer(make_user())) == [404, 404]
    assert statuses(anonymous, **bearer(owner, make_kb(owner, "other"))) == [404, 404]
    assert statuses(anonymous) == [401, 401]
    former = make_member(kb)
    kb.memberships.filter(user=former).delete()
    assert statuses(client_of(former)) == [404, 404]


def test_a_chunk_names_the_pictures_that_stand_in_it(client, document):
    picture = document.pictures.get()
    [chunk] = document.chunks.all()

    alone = client.get(f"/api/v1/chunks/{chunk.pk}/").json()["pictures"]

    assert [(each["id"], each["alternative"]) for each in alone] == [(picture.pk, "A pump")]
    assert client.get(f"/api/v1/documents/{document.pk}/chunks/").json()["results"][0]["pictures"] == alone
    document.chunks.update(pictures=[])
    assert client.get(f"/api/v1/chunks/{chunk.pk}/").json()["pictures"] == []


def test_a_picture_is_served_as_the_type_that_it_is_and_goes_with_its_document(client, document):
    address = f"/api/v1/pictures/{document.pictures.get().pk}/"
    response = client.get(address, headers={"Accept": "text/html"})
    assert (response.status_code, response["Content-Type"]) == (200, "image/png")
    assert response["X-Content-Type-Options"] == "nosniff"
    document_delete(document)
    assert client.get(address).status_code == 404
