import pytest
from django.urls import reverse

from kb.graph.readers import KnowledgeGraph
from kb.models import GraphFact, Origin
from tests.factories import make_kb, make_member, principal

ADD = "admin:kb_graphfact_add"
CHANGE = "admin:kb_graphfact_change"
LIST = "admin:kb_graphfact_changelist"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def fact(kb, document):
    return GraphFact.objects.create(
        knowledge_base=kb, subject="温控器", predicate="生产商", object="Acme", source_chunk=document.chunks.first()
    )


def form(**values):
    return {"subject": "a", "predicate": "is", "object": "b", **values}


def words(page):
    return page.content.decode()


def test_a_new_fact_is_found_for_its_entities(client, kb):
    values = form(knowledge_base=kb.pk, subject="Thermostat", object="ACME")

    assert client.post(reverse(ADD), values).status_code == 302
    assert len(KnowledgeGraph(principal(kb.owner)).facts([kb.pk], "who is acme?", (), 5)) == 1


def test_a_changed_fact_is_found_by_its_new_entities_only(client, fact, kb):
    client.post(reverse(CHANGE, args=[fact.pk]), form(subject="门锁", object="Acme"))

    reader = KnowledgeGraph(principal(kb.owner))
    assert len(reader.facts([kb.pk], "门锁", (), 5)) == 1
    assert reader.facts([kb.pk], "温控器", (), 5) == ()


@pytest.mark.parametrize(("object_", "origin"), [("Acme", Origin.LLM), ("ACME Ltd", Origin.HAND)])
def test_a_fact_that_a_person_has_changed_is_theirs(client, fact, object_, origin):
    GraphFact.objects.update(origin=Origin.LLM)

    client.post(reverse(CHANGE, args=[fact.pk]), form(subject="温控器", predicate="生产商", object=object_))

    assert GraphFact.objects.get().origin == origin


def test_the_page_leads_to_the_source(client, fact):
    page = words(client.get(reverse(CHANGE, args=[fact.pk])))

    assert reverse("admin:kb_chunk_change", args=[fact.source_chunk_id]) in page


def test_a_fact_without_source_opens(client, fact):
    fact.source_chunk.delete()

    assert client.get(reverse(CHANGE, args=[fact.pk])).status_code == 200


def test_a_fact_that_is_there_already_is_refused_whatever_its_case(client, fact, kb):
    values = form(knowledge_base=kb.pk, subject="温控器", predicate="生产商", object="ACME")

    assert "holds this fact already" in words(client.post(reverse(ADD), values))


def test_saving_a_fact_as_it_is_is_no_duplicate(client, fact):
    values = form(subject=fact.subject, predicate=fact.predicate, object=fact.object)

    assert client.post(reverse(CHANGE, args=[fact.pk]), values).status_code == 302


def test_an_entity_needs_visible_characters(client, kb):
    page = client.post(reverse(ADD), form(knowledge_base=kb.pk, subject="\u200b"))

    assert "Type some visible characters" in words(page)


def test_a_fact_is_not_added_to_a_knowledge_base_that_the_user_may_only_read(client, curator):
    kb = make_kb(name="shared")
    make_member(kb, user=curator)

    client.post(reverse(ADD), form(knowledge_base=kb.pk))

    assert not GraphFact.objects.exists()


def test_searching_finds_facts_by_their_entities(client, fact, kb):
    GraphFact.objects.create(knowledge_base=kb, subject="a", predicate="is", object="b")

    assert list(client.get(reverse(LIST), {"q": "acme"}).context["cl"].result_list) == [fact]
