import pytest

from kb.answers.selectors import suggested_questions
from kb.models import Chunk
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


def with_headings(kb, *headings, title="", source="notes.txt"):
    document = make_document(kb, *(f"text {number}" for number in range(len(headings))), title=title, source=source)
    for position, heading in enumerate(headings):
        document.chunks.filter(position=position).update(heading_path=["Handbook", heading])
    return document


def test_an_empty_knowledge_base_suggests_nothing(kb):
    assert suggested_questions([kb.pk]) == []


def test_questions_of_chunks_come_first_one_of_each_document(kb):
    for number in range(3):
        document = with_headings(kb, "Warranty", "Returns")
        document.chunks.filter(position=1).update(questions=[f"question {number}", f"another {number}"])
    assert set(suggested_questions([kb.pk])) == {"question 0", "question 1", "question 2"}


def test_headings_become_questions_in_their_own_language(kb):
    with_headings(kb, "3.2 保修范围", "第四章：报销标准。", "Warranty period")
    assert suggested_questions([kb.pk]) == ["保修范围？", "报销标准？", "Warranty period?"]


def test_a_heading_that_is_a_question_stays_one(kb):
    with_headings(kb, "怎么退货？", "How long does it take?")
    assert suggested_questions([kb.pk]) == ["怎么退货？", "How long does it take?"]


def test_headings_that_say_nothing_are_left_out_and_none_comes_twice(kb):
    with_headings(kb, "概述", "1. Introduction", "2.", "保修", "保修")
    assert suggested_questions([kb.pk]) == ["保修？"]


def test_headings_of_one_word_come_last(kb):
    with_headings(kb, "Architecture", "保修", "Warranty period", "Returns")
    assert suggested_questions([kb.pk]) == ["保修？", "Warranty period?", "Architecture?"]


def test_without_headings_titles_are_suggested(kb):
    make_document(kb, "text", title="差旅制度")
    assert suggested_questions([kb.pk]) == ["差旅制度？"]


def test_what_no_search_finds_is_not_suggested(kb):
    document = with_headings(kb, "保修")
    Chunk.objects.filter(document=document).update(enabled=False)
    assert suggested_questions([kb.pk]) == []


def test_other_knowledge_bases_have_no_part_in_it(kb):
    with_headings(make_kb(), "保修")
    assert suggested_questions([kb.pk]) == []


def test_it_is_one_query(kb, django_assert_num_queries):
    with_headings(kb, "保修")
    with django_assert_num_queries(1):
        suggested_questions([kb.pk])
