import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.models import Entity, GraphFact
from kb.services.graph.entities import entity_create
from tests.factories import make_kb, make_member

pytestmark = pytest.mark.django_db


@pytest.fixture
def entity(kb):
    return entity_create(knowledge_base=kb, name="IBM", kind="组织", aliases=["蓝色巨人"])


def of_base(kb, path):
    return f"/api/v1/knowledge-bases/{kb.pk}/{path}/"


def of_entity(entity, path=""):
    return f"/api/v1/entities/{entity.pk}/{path}"


def table(text, **fields):
    return {"table": "entities", "file": SimpleUploadedFile("graph.csv", text.encode()), **fields}


def test_entities_are_listed_and_found_by_an_alias(client, kb, entity):
    entity_create(knowledge_base=kb, name="Intel")

    assert client.get(of_base(kb, "entities")).json()["count"] == 2
    [found] = client.get(of_base(kb, "entities"), {"q": "蓝色"}).json()["results"]
    assert found == {
        "id": entity.pk,
        "knowledge_base_id": kb.pk,
        "name": "IBM",
        "aliases": ["蓝色巨人"],
        "kind": "组织",
        "description": "",
        "origin": "hand",
    }


def test_an_entity_is_added_changed_and_deleted(client, kb):
    given = {"name": "IBM", "aliases": ["Big Blue"]}
    made = client.post(of_base(kb, "entities"), given, format="json")
    assert made.status_code == 201
    url = of_entity(Entity.objects.get())

    changed = client.patch(url, {"name": "国际商业机器公司"}, format="json").json()

    assert (changed["name"], set(changed["aliases"])) == ("国际商业机器公司", {"IBM", "Big Blue"})
    assert client.delete(url).status_code == 204
    assert client.get(url).status_code == 404


def test_a_name_that_is_taken_is_refused(client, kb, entity):
    response = client.post(of_base(kb, "entities"), {"name": "ibm"}, format="json")

    assert response.status_code == 400
    assert "merge the two" in response.content.decode()


def test_two_entities_are_merged(client, kb, entity):
    other = entity_create(knowledge_base=kb, name="Big Blue")

    merged = client.post(of_entity(entity, "merge/"), {"entity_id": other.pk}, format="json")

    assert merged.json()["aliases"] == ["蓝色巨人", "Big Blue"]


def test_a_strangers_entity_cannot_be_merged(client, entity):
    foreign = entity_create(knowledge_base=make_kb(), name="Big Blue")

    assert client.post(of_entity(entity, "merge/"), {"entity_id": foreign.pk}, format="json").status_code == 404


def test_facts_are_added_and_listed_by_an_entity(client, kb, entity):
    given = {"subject": "蓝色巨人", "predicate": "总部", "object": "阿蒙克"}

    assert client.post(of_base(kb, "facts"), given, format="json").status_code == 201
    assert client.post(of_base(kb, "facts"), given, format="json").status_code == 400
    assert client.post(of_base(kb, "facts"), {**given, "object": "\u200b"}, format="json").status_code == 400
    GraphFact.objects.create(knowledge_base=kb, subject="Intel", predicate="总部", object="圣克拉拉")
    assert client.get(of_base(kb, "facts")).json()["count"] == 2
    [found] = client.get(of_base(kb, "facts"), {"entity_id": entity.pk}).json()["results"]
    assert (found["subject"], found["origin"], found["chunk_id"]) == ("蓝色巨人", "hand", None)


def test_a_file_is_imported_after_a_dry_run(client, kb):
    text = "name,aliases\nIBM,Big Blue\n,x\n"

    tried = client.post(of_base(kb, "graph/import"), table(text, dry_run=True), format="multipart").json()
    refused = client.post(of_base(kb, "graph/import"), table(text), format="multipart")
    assert Entity.objects.count() == 0
    done = client.post(of_base(kb, "graph/import"), table(text, skip_errors=True), format="multipart")

    assert tried["counts"] == {"new": 1, "changed": 0, "same": 0, "error": 1}
    assert tried["bad_lines"][0]["line"] == 3
    assert refused.status_code == 400
    assert done.status_code == 200
    assert Entity.objects.get().name == "IBM"


def test_a_viewer_reads_but_does_not_write(client_of, kb, entity):
    viewer = client_of(make_member(kb))

    assert viewer.get(of_entity(entity)).status_code == 200
    assert viewer.patch(of_entity(entity), {"name": "x"}, format="json").status_code == 403
    assert viewer.delete(of_entity(entity)).status_code == 403
    assert viewer.post(of_base(kb, "facts"), {}, format="json").status_code == 403
    assert viewer.post(of_base(kb, "graph/import"), table("name\nx\n"), format="multipart").status_code == 403
