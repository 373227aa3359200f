import json

import pytest
from hypothesis import given, strategies as st
from msgspec import convert, to_builtins

from kb.graph.services.entities import Triple
from kb.graph.services.reader import (
    MAX_FACTS,
    Found,
    FoundConcept,
    FoundEntity,
    UnusableAnswer,
    read_concepts_answer,
    read_passage_answer,
)

PASSAGE = "产品手册\n智能温控器（型号 T-100）由 Acme 公司\n生产，保修 2 年。"


def answer(entities=(), facts=()):
    return json.dumps({"entities": list(entities), "facts": list(facts)})


def fact(subject, predicate, object):  # noqa: A002 - the name of the field
    return {"subject": subject, "predicate": predicate, "object": object}


def test_entities_and_facts_of_the_passage_are_taken():
    given = answer(
        [{"name": "智能温控器", "kind": "产品", "aliases": ["T-100"]}], [fact("智能温控器", "生产商", "acme 公司")]
    )

    found = read_passage_answer(given, PASSAGE)

    assert found == Found(
        (FoundEntity("智能温控器", "产品", ("T-100",)),), (Triple("智能温控器", "生产商", "acme 公司"),)
    )


def test_what_does_not_stand_in_the_passage_is_refused():
    given = answer([{"name": "Siemens"}], [fact("智能温控器", "生产商", "Siemens"), fact("它", "保修", "2 年")])

    assert read_passage_answer(given, PASSAGE) == Found(refused=3)


def test_an_alias_that_does_not_stand_in_the_passage_is_left_out():
    found = read_passage_answer(answer([{"name": "智能温控器", "aliases": ["恒温器", 7, None]}]), PASSAGE)

    assert found.entities == (FoundEntity("智能温控器"),)


@pytest.mark.parametrize(
    "item",
    [
        fact("智能温控器", "是", "智能温控器"),
        fact("智能温控器", "", "2 年"),
        fact("智能温控器", "保" * 100, "2 年"),
        "x",
        None,
        {},
    ],
)
def test_an_item_of_another_shape_is_refused_and_the_others_are_taken(item):
    found = read_passage_answer(answer((), [item, fact("智能温控器", "保修", "2 年")]), PASSAGE)

    assert (len(found.facts), found.refused) == (1, 1)


def test_numbers_are_read_as_texts():
    assert read_passage_answer(answer((), [fact("智能温控器", "保修年数", 2)]), PASSAGE).facts[0].object == "2"


def test_words_and_a_code_fence_around_the_object_do_no_harm():
    given = f"Here it is:\n```json\n{answer((), [fact('智能温控器', '保修', '2 年')])}\n```"

    assert len(read_passage_answer(given, PASSAGE).facts) == 1


def test_more_facts_than_are_asked_for_are_refused():
    facts = [fact("智能温控器", f"关系{number}", "2 年") for number in range(MAX_FACTS + 5)]

    found = read_passage_answer(answer((), facts), PASSAGE)

    assert (len(found.facts), found.refused) == (MAX_FACTS, 5)


@pytest.mark.parametrize(
    "bad", ["", "none", "{", "[]", '{"entities": []}', '{"entities": {}, "facts": []}', "{" * 9_000]
)
def test_an_answer_of_another_shape_is_unusable(bad):
    with pytest.raises(UnusableAnswer):
        read_passage_answer(bad, PASSAGE)


@given(st.text(), st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_no_answer_breaks_the_reading(text, value):
    read_passage_answer(answer([{"name": value, "kind": value, "aliases": value}], [fact(text, value, text)]), text)


def test_what_was_found_survives_its_storage():
    found = Found((FoundEntity("a", "b", ("c",)),), (Triple("a", "b", "c"),), 3)

    stored = json.loads(json.dumps(to_builtins(found)))

    assert stored == {"entities": [["a", "b", ["c"]]], "facts": [["a", "b", "c"]], "refused": 3}
    assert convert(stored, Found) == found


def test_concepts_are_read_once_each_and_none_is_wider_than_itself():
    given = json.dumps({"concepts": [{"name": "休假", "wider": "休假"}, {"name": "休假"}, {"name": ""}, 3]})

    assert read_concepts_answer(given) == (FoundConcept("休假"),)
