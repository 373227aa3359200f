import pytest
from django.core.exceptions import ValidationError

from kb.graph.readers import KnowledgeGraph
from kb.models import Concept, ConceptTerm
from tests.factories import make_kb, make_user, principal

pytestmark = pytest.mark.django_db


def make_concept(kb, name, *synonyms, parent=None):
    concept = Concept.objects.create(knowledge_base=kb, name=name, parent=parent)
    for synonym in synonyms:
        ConceptTerm(concept=concept, text=synonym).save()
    return concept


def mentions(kb, text, *others):
    return KnowledgeGraph(principal(kb.owner)).mentions([kb.pk, *(each.pk for each in others)], text)


@pytest.fixture
def kb():
    return make_kb()


def test_a_concept_is_named_by_its_name_or_any_synonym_and_tells_the_other_names(kb):
    llm = make_concept(kb, "大语言模型", "LLM", "Large Language Model")

    (by_synonym,) = mentions(kb, "什么是llm？")
    (by_name,) = mentions(kb, "大语言模型的原理")

    assert (by_synonym.concept_id, by_synonym.kb_id, by_synonym.name) == (llm.pk, kb.pk, "大语言模型")
    assert (by_synonym.mention, by_synonym.names) == ("llm", ("大语言模型", "Large Language Model"))
    assert (by_name.mention, by_name.names) == ("大语言模型", ("LLM", "Large Language Model"))


def test_the_longest_mention_wins(kb):
    make_concept(kb, "模型")
    longer = make_concept(kb, "语言模型")

    assert [each.concept_id for each in mentions(kb, "语言模型")] == [longer.pk]


def test_concepts_that_share_an_abbreviation_are_both_mentioned(kb):
    concepts = {make_concept(kb, name, "ML").pk for name in ("机器学习", "标记语言")}

    assert {each.concept_id for each in mentions(kb, "ml 入门")} == concepts


def test_a_concept_mentioned_twice_is_told_once_and_concepts_come_in_the_order_of_the_text(kb):
    second, first = make_concept(kb, "乙方"), make_concept(kb, "甲方", "Party A")

    assert [each.concept_id for each in mentions(kb, "甲方与乙方，即 Party A 与乙方")] == [first.pk, second.pk]


def test_mentions_in_different_knowledge_bases_do_not_compete(kb):
    other = make_kb(kb.owner)
    make_concept(kb, "模型")
    make_concept(other, "语言模型")

    assert [each.kb_id for each in mentions(kb, "语言模型", other)] == [kb.pk, other.pk]


def test_concepts_of_knowledge_bases_that_are_not_asked_for_are_not_mentioned(kb):
    make_concept(make_kb(kb.owner), "模型")

    assert mentions(kb, "模型") == ()


def test_concepts_of_a_stranger_do_not_exist(kb):
    foreign = make_kb()
    make_concept(foreign, "模型")

    assert KnowledgeGraph(principal(kb.owner)).mentions([foreign.pk], "模型") == ()


def test_an_api_key_sees_the_concepts_of_its_knowledge_bases_only(kb):
    other = make_kb(kb.owner)
    for each in (kb, other):
        make_concept(each, "模型")
    reader = KnowledgeGraph(principal(kb.owner, kb_ids=frozenset([other.pk])))

    assert [each.kb_id for each in reader.mentions([kb.pk, other.pk], "模型")] == [other.pk]


def test_nobody_sees_concepts_without_an_account(kb):
    make_concept(kb, "模型")
    inactive = make_user()
    inactive.is_active = False

    assert KnowledgeGraph(principal(inactive)).mentions([kb.pk], "模型") == ()


@pytest.mark.parametrize("text", ["", "无关", "?"])
def test_a_text_that_names_no_concept_mentions_none(kb, text):
    make_concept(kb, "模型")

    assert mentions(kb, text) == ()


def test_mentions_of_a_long_text_take_two_queries(kb, django_assert_num_queries):
    for n in range(20):
        make_concept(kb, f"概念{n}号", f"别名{n}号")
    text = "，".join(f"概念{n}号" for n in range(20)) + "无关的话" * 450
    reader = KnowledgeGraph(principal(kb.owner))

    with django_assert_num_queries(2):
        assert len(reader.mentions([kb.pk], text)) == 20


def test_a_text_without_mentions_takes_one_query(kb, django_assert_num_queries):
    reader = KnowledgeGraph(principal(kb.owner))

    with django_assert_num_queries(1):
        assert reader.mentions([kb.pk], "智能温控器") == ()


def test_a_renamed_concept_is_found_by_its_new_name_only(kb):
    concept = make_concept(kb, "旧名", "别名")
    concept.name = "新名"
    concept.save()

    assert mentions(kb, "旧名") == ()
    assert [each.names for each in mentions(kb, "新名")] == [("别名",)]


def test_a_concept_renamed_to_one_of_its_synonyms_has_that_term_once(kb):
    concept = make_concept(kb, "旧名", "别名")
    concept.name = "别名"
    concept.save()

    assert [(term.text, term.kind) for term in concept.terms.all()] == [("别名", "name")]


def test_a_name_written_differently_keeps_one_term(kb):
    concept = make_concept(kb, "GPT")
    concept.name = "Gpt"
    concept.save()

    assert [term.text for term in concept.terms.all()] == ["Gpt"]


def test_a_concept_cannot_be_wider_than_itself(kb):
    first = make_concept(kb, "first")
    second = make_concept(kb, "second", parent=first)
    first.parent = second

    with pytest.raises(ValidationError, match="“second”是此概念的下位概念"):
        first.clean()


def test_a_wider_concept_of_another_knowledge_base_is_refused(kb):
    concept = Concept(knowledge_base=kb, name="mine", parent=make_concept(make_kb(kb.owner), "theirs"))

    with pytest.raises(ValidationError, match="同一知识库"):
        concept.clean()


def test_a_parent_chain_that_another_program_closed_is_cleaned_without_end(kb):
    first = make_concept(kb, "first")
    second = make_concept(kb, "second", parent=first)
    Concept.objects.filter(pk=first.pk).update(parent=second)

    Concept(knowledge_base=kb, name="third", parent=Concept.objects.get(pk=second.pk)).clean()
