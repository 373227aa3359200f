import pytest

from kb.base.errors import Rejected
from kb.graph.services.entities import (
    entity_merge,
    entity_split,
    entity_update,
    fact_counts,
    neighbours_of,
    plan_merge,
)
from kb.models import Entity, EntityName, GraphFact, Origin
from tests.factories import make_kb, names_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("english")]


@pytest.fixture
def kb():
    return make_kb()


def make_fact(kb, subject, predicate, object, **fields):  # noqa: A002 - the name of the field
    return GraphFact.objects.create(knowledge_base=kb, subject=subject, predicate=predicate, object=object, **fields)


def stated(kb):
    return sorted(GraphFact.objects.filter(knowledge_base=kb).values_list("subject", "predicate", "object"))


def test_an_entity_has_its_name_among_its_names(kb):
    entity = entity_update(Entity(knowledge_base=kb), name=" IBM ", aliases=["蓝色巨人", "ibm"])

    assert names_of(entity) == ["IBM", "蓝色巨人"]
    assert EntityName.objects.count() == 2


def test_a_name_belongs_to_one_entity_of_a_knowledge_base(kb):
    entity_update(Entity(knowledge_base=kb), name="IBM")
    entity_update(Entity(knowledge_base=make_kb(kb.owner)), name="IBM")

    with pytest.raises(Rejected, match="merge the two") as caught:
        entity_update(Entity(knowledge_base=kb), name="国际商业机器公司", aliases=["\uff49\uff42\uff4d"])

    assert caught.value.code == "name_taken"
    assert Entity.objects.filter(knowledge_base=kb).count() == 1


@pytest.mark.parametrize(
    ("name", "code"), [("", "blank_name"), ("\u200b", "blank_name"), ("长" * 201, "name_too_long")]
)
def test_a_name_that_is_none_is_refused(kb, name, code):
    with pytest.raises(Rejected) as caught:
        entity_update(Entity(knowledge_base=kb), name=name)

    assert caught.value.code == code


def test_a_renamed_entity_keeps_its_old_name_and_its_facts(kb):
    entity = entity_update(Entity(knowledge_base=kb), name="IBM", aliases=["蓝色巨人"])
    make_fact(kb, "IBM", "总部", "阿蒙克")

    entity_update(entity, name="国际商业机器公司", kind="组织")

    assert entity.aliases == ["IBM", "蓝色巨人"]
    assert stated(kb) == [("国际商业机器公司", "总部", "阿蒙克")]


def test_a_new_alias_takes_the_facts_that_are_stated_by_it(kb):
    entity = entity_update(Entity(knowledge_base=kb), name="IBM")
    make_fact(kb, "蓝色巨人", "总部", "阿蒙克")

    entity_update(entity, aliases=["蓝色巨人"])

    assert stated(kb) == [("IBM", "总部", "阿蒙克")]


def test_merging_moves_names_and_facts_and_unites_equal_ones(kb):
    kept = entity_update(Entity(knowledge_base=kb), name="北京", kind="城市")
    merged = entity_update(Entity(knowledge_base=kb), name="北平", aliases=["燕京"], description="旧称")
    make_fact(kb, "北京", "位于", "中国", origin=Origin.LLM)
    by_hand = make_fact(kb, "北平", "位于", "中国")
    make_fact(kb, "颐和园", "位于", "北平")
    make_fact(kb, "北京", "旧称", "北平")

    plan = plan_merge(kept, merged)
    done = entity_merge(kept, merged)

    for each in (plan, done):
        assert [len(part) for part in (each.renamed, each.united, each.circular)] == [2, 1, 1]
    assert stated(kb) == [("北京", "位于", "中国"), ("颐和园", "位于", "北京")]
    assert GraphFact.objects.filter(pk=by_hand.pk).exists()  # what a person stated outlasts what a model found
    assert names_of(kept) == ["北京", "北平", "燕京"]
    assert (kept.kind, kept.description) == ("城市", "旧称")
    assert not Entity.objects.filter(pk=merged.pk).exists()


def test_an_entity_is_not_merged_with_itself_or_with_a_stranger(kb):
    entity = entity_update(Entity(knowledge_base=kb), name="北京")
    foreign = entity_update(Entity(knowledge_base=make_kb()), name="北平")

    for other, code in [(entity, "same_entity"), (foreign, "other_base")]:
        with pytest.raises(Rejected) as caught:
            entity_merge(entity, other)
        assert caught.value.code == code


def test_an_alias_that_is_split_off_takes_the_chosen_facts(kb):
    entity = entity_update(Entity(knowledge_base=kb), name="苹果", kind="组织", aliases=["苹果树"])
    fruit = make_fact(kb, "苹果", "科属", "蔷薇科")
    make_fact(kb, "苹果", "总部", "库比蒂诺")

    part = entity_split(entity, "苹果树", [fruit.pk])

    assert stated(kb) == [("苹果", "总部", "库比蒂诺"), ("苹果树", "科属", "蔷薇科")]
    assert names_of(part) == ["苹果树"]
    assert entity.aliases == []


def test_the_name_of_an_entity_is_not_split_off(kb):
    entity = entity_update(Entity(knowledge_base=kb), name="苹果")

    with pytest.raises(Rejected, match="choose one of its aliases"):
        entity_split(entity, "苹果")


def test_the_facts_of_a_deleted_entity_stay(kb):
    entity = entity_update(Entity(knowledge_base=kb), name="苹果", aliases=["Apple"])
    make_fact(kb, "苹果", "总部", "库比蒂诺")

    entity.delete()

    assert not EntityName.objects.exists()
    assert stated(kb) == [("苹果", "总部", "库比蒂诺")]


def test_neighbours_are_entities_or_texts_each_once_the_closest_first(kb):
    entity = entity_update(Entity(knowledge_base=kb), name="IBM", aliases=["蓝色巨人"])
    city = entity_update(Entity(knowledge_base=kb), name="阿蒙克", aliases=["Armonk"])
    make_fact(kb, "IBM", "成立于", "1911 年")
    make_fact(kb, "蓝色巨人", "总部", "Armonk")
    make_fact(kb, "阿蒙克", "雇主", "IBM")

    found = neighbours_of(entity)

    assert [(each.name, each.entity_id, len(each.relations)) for each in found] == [
        ("阿蒙克", city.pk, 2),
        ("1911 年", None, 1),
    ]
    assert fact_counts([entity.pk, city.pk]) == {entity.pk: 3, city.pk: 2}


def test_an_entity_that_a_merge_gave_too_many_names_can_still_be_changed(kb):
    kept, merged = (
        entity_update(Entity(knowledge_base=kb), name=name, aliases=[f"{name} {number}" for number in range(40)])
        for name in ("IBM", "Big Blue")
    )
    entity_merge(kept, merged)

    assert entity_update(kept, kind="firm").kind == "firm"
    with pytest.raises(Rejected) as refusal:
        entity_update(kept, aliases=[*names_of(kept), "one more"])
    assert refusal.value.code == "too_many_names"
