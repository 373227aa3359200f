"""The queries of evaluation sets as curators make them."""

import pytest

from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.models import EvalQuery, EvalSet, Judgment
from kb.quality.eval_sets.services import sets as eval_queries
from kb.quality.eval_sets.services.sets import (
    eval_query_overview,
    eval_set_named,
    eval_set_overview,
    eval_set_save,
    judge,
    mark_unanswerable,
    queries_add,
    queries_delete,
    query_update,
)
from tests.factories import make_document, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def me(kb):
    return principal(kb.owner)


@pytest.fixture
def eval_set(kb, me):
    return eval_set_named(me, kb, "mine")


def rejected(code):
    return pytest.raises(Rejected, check=lambda error: error.code == code)


def chunk(kb):
    return make_document(kb, "五天带薪年假").chunks.select_related("document").get()


def texts():
    return list(EvalQuery.objects.values_list("text", flat=True))


def test_lines_become_queries_once_each(me, eval_set):
    assert queries_add(me, eval_set, ["  年假 ", "", "病假", "年假", " "]) == 2
    assert queries_add(me, eval_set, ["病假", "出差"]) == 1
    assert texts() == ["年假", "病假", "出差"]


def test_a_click_finds_the_query_that_was_added(kb, me, eval_set):
    queries_add(me, eval_set, ["年假"])
    judge(me, eval_set, "年假", chunk(kb), 2)
    assert EvalQuery.objects.count() == 1


def test_too_long_or_too_many_lines_add_nothing(me, eval_set, monkeypatch):
    with rejected("query_too_long"):
        queries_add(me, eval_set, ["年假", "x" * 2_001])
    monkeypatch.setattr(eval_queries, "QUERIES_AT_ONCE", 1)
    with rejected("too_many"):
        queries_add(me, eval_set, ["年假", "病假"])
    assert texts() == []


def test_a_query_is_changed(kb, me, eval_set):
    queries_add(me, eval_set, ["年假", "病假"])
    query = EvalQuery.objects.get(text="年假")
    query_update(me, query, text=" 年假 几天 ", answerable=False)
    query.refresh_from_db()
    assert (query.text, query.answerable) == ("年假 几天", False)
    with rejected("query_known"):
        query_update(me, query, text="病假", answerable=True)
    with rejected("blank_query"):
        query_update(me, query, text=" ", answerable=True)


def test_the_former_words_of_a_changed_query_are_another_query(kb, me, eval_set):
    queries_add(me, eval_set, ["年假", "病假"])
    for text in ("年假", "病假"):
        query_update(me, EvalQuery.objects.get(text=text), text=f"{text}有几天", answerable=True)

    assert judge(me, eval_set, "年假", chunk(kb), 2).query.text == "年假"
    assert queries_add(me, eval_set, ["年假", "病假"]) == 1
    assert texts() == ["年假有几天", "病假有几天", "年假", "病假"]


def test_a_query_with_relevant_passages_stays_answerable(kb, me, eval_set):
    query = judge(me, eval_set, "年假", chunk(kb), 1).query
    with rejected("has_relevant"):
        query_update(me, query, text="年假", answerable=False)


def test_queries_are_deleted_with_their_judgments_and_no_others(kb, me, eval_set):
    query = judge(me, eval_set, "年假", chunk(kb), 1).query
    other = judge(me, eval_set_named(me, kb, "other"), "年假", chunk(kb), 1).query
    assert queries_delete(me, eval_set, [query.pk, other.pk]) == 1
    assert list(Judgment.objects.values_list("query", flat=True)) == [other.pk]


def test_of_two_who_create_a_set_of_one_name_one_is_told_that_it_is_taken(kb, me):
    made = EvalSet(knowledge_base=kb)
    eval_set_save(me, made, " mine ")

    assert made == eval_set_named(me, kb, "mine")
    with rejected("name_taken"):
        eval_set_save(me, EvalSet(knowledge_base=kb), "mine")
    assert EvalSet.objects.get() == made


def test_a_set_is_renamed(kb, me, eval_set):
    eval_set_named(me, kb, "other")
    eval_set_save(me, eval_set, " yours ")
    assert EvalSet.objects.get(pk=eval_set.pk).name == "yours"
    for name, code in (("other", "name_taken"), (" ", "name_blank"), ("x" * 121, "name_too_long")):
        with rejected(code):
            eval_set_save(me, eval_set, name)


def test_a_set_that_is_deleted_while_it_is_renamed_stays_deleted(me, eval_set, monkeypatch):
    def once_it_is_deleted(name):
        EvalSet.objects.all().delete()
        return name

    monkeypatch.setattr(eval_queries, "set_name", once_it_is_deleted)
    with pytest.raises(NotVisible):
        eval_set_save(me, eval_set, "yours")
    assert not EvalSet.objects.exists()


def test_who_may_not_is_refused(kb, eval_set):
    viewer, stranger = principal(make_member(kb)), principal(make_user())
    for call in (
        lambda who: queries_add(who, eval_set, ["x"]),
        lambda who: queries_delete(who, eval_set, []),
        lambda who: eval_set_save(who, eval_set, "x"),
        lambda who: eval_set_save(who, EvalSet(knowledge_base=kb), "x"),
        lambda who: mark_unanswerable(who, eval_set, "x", True),
        lambda who: query_update(who, EvalQuery(eval_set=eval_set, text="x"), text="y", answerable=True),
        lambda who: eval_set_named(who, kb, "x"),
    ):
        with pytest.raises(NotAllowed):
            call(viewer)
        with pytest.raises(NotVisible):
            call(stranger)
    assert texts() == []


def test_the_overviews_count_without_multiplying(kb, me, eval_set):
    first, second = chunk(kb), chunk(kb)
    judge(me, eval_set, "年假", first, 2)
    judge(me, eval_set, "年假", second, 0)
    judge(me, eval_set, "病假", first, 0)
    queries_add(me, eval_set, ["出差"])
    mark_unanswerable(me, eval_set, "股价", True)
    row = eval_set_overview(me).get()
    assert (row.query_count, row.judged_count, row.unanswerable_count, row.judgment_count) == (4, 2, 1, 3)
    assert (row.last_run_id, row.last_figures) == (None, None)
    counted = eval_query_overview(me, eval_set).values_list("text", "judgment_count", "relevant_count")
    assert set(counted) == {("年假", 2, 1), ("病假", 1, 0), ("出差", 0, 0), ("股价", 0, 0)}
