import pytest

from kb.graph.readers import KnowledgeGraph
from kb.models import Chunk, Entity, EntityName, FactSource, GraphFact
from tests.factories import make_document, make_kb, principal

pytestmark = pytest.mark.django_db


def make_fact(kb, subject, predicate="是", object="东西", **fields):  # noqa: A002 - the name of the field
    return GraphFact.objects.create(knowledge_base=kb, subject=subject, predicate=predicate, object=object, **fields)


def subjects(kb, text="", names=(), limit=50):
    found = KnowledgeGraph(principal(kb.owner)).facts([kb.pk], text, names, limit)
    return [fact.subject for fact in found]


@pytest.fixture
def kb():
    return make_kb()


def test_a_fact_is_found_by_its_subject_its_object_or_a_given_name(kb):
    make_fact(kb, "温控器", "生产商", "Acme 公司")

    assert subjects(kb, "温控器怎么样") == ["温控器"]
    assert subjects(kb, "ACME 公司的产品") == ["温控器"]
    assert subjects(kb, "它怎么样", names=["温控器"]) == ["温控器"]
    assert subjects(kb, "它怎么样") == []


def test_a_given_name_is_the_whole_name(kb):
    make_fact(kb, "温控器")

    assert subjects(kb, names=["智能温控器", "温控"]) == []


def test_a_part_of_a_latin_word_is_no_entity(kb):
    make_fact(kb, "Java")

    assert subjects(kb, "JavaScript") == []


def test_facts_of_the_longest_name_come_first_then_the_oldest(kb):
    for subject, predicate in [("温控", "一"), ("智能温控器", "二"), ("智能温控器", "三")]:
        make_fact(kb, subject, predicate)

    found = KnowledgeGraph(principal(kb.owner)).facts([kb.pk], "智能温控器", (), 50)

    assert [fact.predicate for fact in found] == ["二", "三", "一"]


def test_there_are_at_most_as_many_as_asked_for(kb):
    for n in range(5):
        make_fact(kb, "温控器", f"p{n}")

    assert len(subjects(kb, "温控器", limit=3)) == 3
    assert subjects(kb, "温控器", limit=0) == []


def test_a_fact_tells_its_chunk_until_that_is_deleted(kb):
    make_document(kb, "温控器的生产商是 Acme。")
    chunk = Chunk.objects.get()
    make_fact(kb, "温控器", source_chunk=chunk)
    reader = KnowledgeGraph(principal(kb.owner))

    assert [fact.chunk_id for fact in reader.facts([kb.pk], "温控器", (), 5)] == [chunk.pk]
    chunk.delete()
    assert [fact.chunk_id for fact in reader.facts([kb.pk], "温控器", (), 5)] == [None]


def test_facts_of_a_stranger_do_not_exist(kb):
    foreign = make_kb()
    make_fact(foreign, "温控器")

    assert KnowledgeGraph(principal(kb.owner)).facts([foreign.pk, kb.pk], "温控器", ["温控器"], 5) == ()


def test_a_long_text_takes_two_queries(kb, django_assert_num_queries):
    make_fact(kb, "温控器")
    reader = KnowledgeGraph(principal(kb.owner))

    with django_assert_num_queries(2):
        assert len(reader.facts([kb.pk], "无关的话" * 499 + "温控器", (), 5)) == 1


def test_a_text_without_entities_takes_one_query(kb, django_assert_num_queries):
    reader = KnowledgeGraph(principal(kb.owner))

    with django_assert_num_queries(1):
        assert reader.facts([kb.pk], "温控器", (), 5) == ()


def make_entity(kb, name, *aliases):
    entity = Entity.objects.create(knowledge_base=kb, name=name)
    for text in (name, *aliases):
        EntityName(entity=entity, text=text).save()
    return entity


def test_a_query_that_names_an_alias_finds_the_facts_of_the_entity(kb, django_assert_num_queries):
    make_fact(kb, "国际商业机器公司", "总部", "阿蒙克")
    make_entity(kb, "国际商业机器公司", "IBM", "蓝色巨人")
    reader = KnowledgeGraph(principal(kb.owner))

    with django_assert_num_queries(2):
        found = reader.facts([kb.pk], "蓝色巨人的总部在哪里", (), 5)

    assert [fact.object for fact in found] == ["阿蒙克"]
    assert subjects(kb, names=["ibm"]) == ["国际商业机器公司"]


def test_a_fact_that_is_stated_by_an_alias_is_found_by_the_name(kb):
    make_fact(kb, "IBM", "总部", "阿蒙克")
    make_entity(kb, "国际商业机器公司", "IBM")

    assert subjects(kb, "国际商业机器公司在哪里") == ["IBM"]


def test_an_alias_counts_in_its_own_knowledge_base_only(kb):
    other = make_kb(kb.owner)
    make_entity(kb, "国际商业机器公司", "IBM")
    make_fact(other, "国际商业机器公司", "总部", "阿蒙克")

    found = KnowledgeGraph(principal(kb.owner)).facts([kb.pk, other.pk], "IBM", (), 5)

    assert found == ()


def test_a_fact_whose_two_ends_are_named_is_found_once_by_the_longer_name(kb):
    make_fact(kb, "温控", "一", "东西")
    make_fact(kb, "门", "二", "智能温控器")

    found = KnowledgeGraph(principal(kb.owner)).facts([kb.pk], "温控 门 智能温控器 东西", (), 5)

    assert [fact.predicate for fact in found] == ["二", "一"]


def test_a_fact_that_a_model_found_only_in_chunks_that_are_off_is_not_given(kb):
    document = make_document(kb, "温控器由 Acme 生产。", "Acme 生产温控器。")
    first, second = Chunk.objects.filter(document=document)
    fact = make_fact(kb, "温控器", source_chunk=first, origin="llm")
    make_fact(kb, "温控器", "自写", source_chunk=first)
    FactSource.objects.create(fact=fact, document=document, chunk=first)
    FactSource.objects.create(fact=fact, document=document, chunk=second)

    Chunk.objects.filter(pk=first.pk).update(enabled=False)
    assert len(subjects(kb, "温控器")) == 2
    Chunk.objects.filter(pk=second.pk).update(enabled=False)
    assert len(subjects(kb, "温控器")) == 1
    FactSource.objects.filter(chunk=second).update(chunk=None)
    assert len(subjects(kb, "温控器")) == 2
