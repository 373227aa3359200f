import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.graph.services.entities import entity_update
from kb.models import Entity, GraphFact
from tests.factories import make_kb, make_member

pytestmark = pytest.mark.django_db


@pytest.fixture
def entity(kb):
    return entity_update(Entity(knowledge_base=kb), name="IBM", kind="组织", aliases=["蓝色巨人"])


def of_base(kb, path):
    return f"/api/v1/knowledge-bases/{kb.pk}/{path}/"


def of_entity(entity, path=""):
    return f"/api/v1/entities/{entity.pk}/{path}"


def table(text, **fields):
    return {"table": "entities", "file": SimpleUploadedFile("graph.csv", text.encode()), **fields}


def test_entities_are_listed_and_found_by_an_alias(client, kb, entity):
    entity_update(Entity(knowledge_base=kb), name="Intel")

    assert len(client.get(of_base(kb, "entities")).json()["results"]) == 2
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
    other = entity_update(Entity(knowledge_base=kb), name="Big Blue")

    merged = client.post(of_entity(entity, "merge/"), {"entity_id": other.pk}, format="json")

    assert merged.json()["aliases"] == ["蓝色巨人", "Big Blue"]


def test_a_strangers_entity_cannot_be_merged(client, entity):
    foreign = entity_update(Entity(knowledge_base=make_kb()), name="Big Blue")

    assert client.post(of_entity(entity, "merge/"), {"entity_id": foreign.pk}, format="json").status_code == 404


def test_facts_are_added_and_listed_by_an_entity(client, kb, entity):
    given = {"subject": "蓝色巨人", "predicate": "总部", "object": "阿蒙克"}

    assert client.post(of_base(kb, "facts"), given, format="json").status_code == 201
    assert client.post(of_base(kb, "facts"), given, format="json").status_code == 400
    assert client.post(of_base(kb, "facts"), {**given, "object": "\u200b"}, format="json").status_code == 400
    GraphFact.objects.create(knowledge_base=kb, subject="Intel", predicate="总部", object="圣克拉拉")
    assert len(client.get(of_base(kb, "facts")).json()["results"]) == 2
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


# -- One fact, and concepts -------------------------------------------------------------------------------------------


@pytest.fixture
def fact(client, kb):
    return client.post(
        of_base(kb, "facts"), {"subject": "年假", "predicate": "天数", "object": "五天"}, format="json"
    ).json()


def test_a_fact_is_read_changed_and_deleted(client, fact):
    url = f"/api/v1/facts/{fact['id']}/"
    assert client.get(url).json() == fact

    changed = client.patch(url, {"object": "十天"}, format="json")

    assert (changed.status_code, changed.json()["object"]) == (200, "十天")
    assert client.get(url).json() == changed.json()
    assert client.delete(url).status_code == 204
    assert client.get(url).status_code == 404


def test_a_fact_is_not_changed_into_one_that_is_there_or_into_none(client, kb, fact):
    client.post(of_base(kb, "facts"), {"subject": "年假", "predicate": "天数", "object": "十天"}, format="json")
    url = f"/api/v1/facts/{fact['id']}/"

    answers = [client.patch(url, {"object": value}, format="json") for value in ("十天", "\u200b")]

    assert [(each.status_code, each.json()["code"]) for each in answers] == [(400, "fact_known"), (400, "blank_name")]
    assert client.get(url).json() == fact


@pytest.fixture
def add_concept(client, kb):
    def post(name, **fields):
        return client.post(of_base(kb, "concepts"), {"name": name, **fields}, format="json")

    return post


def test_a_concept_has_other_words_and_a_wider_one(client, add_concept):
    wider = add_concept("假期").json()

    made = add_concept("年假", parent_id=wider["id"], synonyms=["带薪年休假"], abbreviations=["PTO"])

    assert made.status_code == 201
    row = client.get(f"/api/v1/concepts/{made.json()['id']}/").json()
    assert (row["name"], row["parent_id"]) == ("年假", wider["id"])
    assert (row["synonyms"], row["abbreviations"]) == (["带薪年休假"], ["PTO"])


def test_concepts_are_found_by_any_of_their_words(client, kb, add_concept):
    add_concept("年假", synonyms=["带薪年休假"])
    add_concept("病假")

    def names(**parameters):
        return [row["name"] for row in client.get(of_base(kb, "concepts"), parameters).json()["results"]]

    assert sorted(names()) == sorted(["年假", "病假"])
    assert (names(q="年休假"), names(q="病")) == (["年假"], ["病假"])


def test_what_is_left_out_of_a_change_stays(client, add_concept):
    url = f"/api/v1/concepts/{add_concept('年假', synonyms=['a'], abbreviations=['b']).json()['id']}/"

    row = client.patch(url, {"synonyms": ["c", "d"]}, format="json").json()

    assert (row["name"], row["synonyms"], row["abbreviations"]) == ("年假", ["c", "d"], ["b"])
    assert client.delete(url).status_code == 204


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "假期"}, "name_taken"),
        ({"name": "\u200b"}, "blank_name"),
        ({"name": "年假", "parent_id": 987_654_321}, "invalid_parent"),
        ({"name": "年假", "synonyms": ["x", "X"]}, "term_known"),
        ({"name": "年假", "synonyms": ["年假"]}, "term_known"),
        ({"name": "年假", "abbreviations": ["\u200b"]}, "blank_name"),
    ],
)
def test_a_concept_that_cannot_be_is_refused_and_nothing_is_changed(client, kb, add_concept, fields, code):
    add_concept("假期")

    response = add_concept(**fields)

    assert (response.status_code, response.json()["code"]) == (400, code)
    assert [row["name"] for row in client.get(of_base(kb, "concepts")).json()["results"]] == ["假期"]


def test_a_concept_becomes_no_part_of_what_is_narrower(client, add_concept):
    wider = add_concept("假期").json()["id"]
    narrower = add_concept("年假", parent_id=wider).json()["id"]

    for parent in (narrower, wider):
        response = client.patch(f"/api/v1/concepts/{wider}/", {"parent_id": parent}, format="json")
        assert (response.status_code, response.json()["code"]) == (400, "invalid_parent")
