"""Judgments by click: what they write, and that they outlive the chunks that they were made on."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier

import pytest
from django.core.files.base import ContentFile
from django.db import connection

from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.ingest.services.documents import document_add, document_delete, document_requeue
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, EvalQuery, EvalSet, Judgment
from kb.quality.eval_sets.services.sets import (
    DEFAULT_SET,
    anchored_chunks,
    eval_set_named,
    judge,
    judgments_in,
    judgments_regrade,
    mark_unanswerable,
    unjudge,
)
from tests.factories import make_document, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db

HANDBOOK = """工作满一年的员工每年享有五天带薪年假，满十年的享有十天。

病假需要在当天上午十点之前告知直属上级，并补交医院的证明。

出差的交通费按实际发生额报销，住宿费每天不超过四百元。

智能温控器的保修期是两年，从签收之日起计算，凭发票办理。
"""
QUERY = "年假有几天"


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def me(kb):
    return principal(kb.owner)


@pytest.fixture
def eval_set(kb, me):
    return eval_set_named(me, kb)


def rejected(code):
    return pytest.raises(Rejected, check=lambda error: error.code == code)


def chunk_of(document, position=0):
    return Chunk.objects.select_related("document").get(document=document, position=position)


def chunks_in(kb):
    return list(Chunk.objects.filter(knowledge_base=kb).select_related("document").order_by("document_id", "position"))


def ingest(kb, name="handbook.txt"):
    document = document_add(knowledge_base=kb, file=ContentFile(HANDBOOK.encode()), name=name, user=kb.owner)
    index_document(document.pk)
    return document


def cut_in(kb, size, overlap=0):
    kb.chunk_size, kb.chunk_overlap = size, overlap
    kb.save()


def grades(me, eval_set):
    """Grade by text of the chunks that are judged."""
    chunks = chunks_in(eval_set.knowledge_base)
    found = judgments_in(me, [eval_set], QUERY, chunks)
    return {chunk.text: found[chunk.pk] for chunk in chunks if chunk.pk in found}


def test_a_set_is_made_on_first_use(kb, me):
    assert eval_set_named(me, kb).name == DEFAULT_SET
    assert eval_set_named(me, kb, " mine ").name == "mine"
    assert eval_set_named(me, kb, "mine").pk == EvalSet.objects.get(name="mine").pk


def test_a_judgment_is_anchored_to_the_words_and_the_source(kb, me, eval_set):
    chunk = chunk_of(make_document(kb, "五天带薪年假", source="handbook.pdf", title="手册"))
    judgment = judge(me, eval_set, f"  {QUERY}\n", chunk, 2)
    assert (judgment.query.text, judgment.query.answerable) == (QUERY, True)
    assert (judgment.document, judgment.source, judgment.quote) == (chunk.document, "handbook.pdf", "五天带薪年假")
    assert (judgment.grade, judgment.created_by) == (2, kb.owner)


def test_a_document_without_a_source_goes_by_its_title(kb, me, eval_set):
    chunk = chunk_of(make_document(kb, "五天带薪年假", source="", title="手册"))
    assert judge(me, eval_set, QUERY, chunk, 2).source == "手册"


def test_judging_again_replaces(kb, me, eval_set):
    chunk = chunk_of(make_document(kb, "五天带薪年假"))
    for grade in (2, 0, 1):
        judge(me, eval_set, QUERY, chunk, grade)
    assert Judgment.objects.get().grade == 1
    assert EvalQuery.objects.count() == 1


def test_a_click_joins_an_imported_query_of_the_same_words(kb, me, eval_set):
    imported = EvalQuery.objects.create(eval_set=eval_set, external_id="17", text=QUERY)
    assert judge(me, eval_set, f"{QUERY} ", chunk_of(make_document(kb, "五天带薪年假")), 2).query == imported


def test_unjudging_takes_the_judgment_back_and_keeps_the_query(kb, me, eval_set):
    chunk = chunk_of(make_document(kb, "五天带薪年假"))
    judge(me, eval_set, QUERY, chunk, 2)
    assert unjudge(me, eval_set, QUERY, chunk) == 1
    assert judgments_in(me, [eval_set], QUERY, [chunk]) == {}
    assert EvalQuery.objects.count() == 1
    assert unjudge(me, eval_set, "never asked", chunk) == 0


def test_passages_of_one_document_are_told_apart(kb, me, eval_set):
    document = make_document(kb, "满一年的员工每年享有五天带薪年假", "病假需要在上午十点前告知直属上级")
    judge(me, eval_set, QUERY, chunk_of(document, 0), 2)
    judge(me, eval_set, QUERY, chunk_of(document, 1), 0)
    assert judgments_in(me, [eval_set], QUERY, chunks_in(kb)) == {
        chunk_of(document, 0).pk: 2,
        chunk_of(document, 1).pk: 0,
    }


def test_a_whole_documents_judgment_counts_for_its_chunks_unless_their_own_differ(kb, me, eval_set):
    document = make_document(kb, "满一年的员工每年享有五天带薪年假", "病假需要在上午十点前告知直属上级")
    query = EvalQuery.objects.create(eval_set=eval_set, external_id="1", text=QUERY)
    Judgment.objects.create(query=query, document=document, source=document.source, grade=1)
    judge(me, eval_set, QUERY, chunk_of(document, 0), 2)
    assert list(judgments_in(me, [eval_set], QUERY, chunks_in(kb)).values()) == [2, 1]
    with rejected("whole_document"):
        unjudge(me, eval_set, QUERY, chunk_of(document, 1))


def test_the_only_chunk_of_a_document_stands_for_all_of_it(kb, me, eval_set):
    document = make_document(kb, "五天带薪年假")
    query = EvalQuery.objects.create(eval_set=eval_set, external_id="1", text=QUERY)
    Judgment.objects.create(query=query, document=document, source=document.source, grade=1)
    judge(me, eval_set, QUERY, chunk_of(document), 0)
    assert Judgment.objects.get().grade == 0


@pytest.mark.parametrize(("before", "after"), [(60, 40), (40, 60), (60, 500), (40, 30)])
def test_a_judgment_survives_another_chunking(kb, me, eval_set, before, after):
    cut_in(kb, before)
    document = ingest(kb)
    judged = next(chunk for chunk in chunks_in(kb) if "年假" in chunk.text)
    judge(me, eval_set, QUERY, judged, 2)
    cut_in(kb, after)
    document_requeue(document)
    index_document(document.pk)
    found = grades(me, eval_set)
    assert set(found.values()) == {2}
    assert all("年假" in text or "享有" in text for text in found)


def test_a_judgment_survives_deletion_and_another_import_of_the_file(kb, me, eval_set):
    cut_in(kb, 60)
    document = ingest(kb)
    judge(me, eval_set, QUERY, next(chunk for chunk in chunks_in(kb) if "年假" in chunk.text), 2)
    document_delete(document)
    assert Judgment.objects.get().document is None
    cut_in(kb, 40, overlap=10)
    ingest(kb)
    assert set(grades(me, eval_set).values()) == {2}


def test_judging_after_another_import_replaces_the_old_judgment(kb, me, eval_set):
    document = ingest(kb)
    judge(me, eval_set, QUERY, chunks_in(kb)[0], 2)
    document_delete(document)
    again = ingest(kb)
    judge(me, eval_set, QUERY, chunks_in(kb)[0], 1)
    judgment = Judgment.objects.get()
    assert (judgment.document, judgment.grade) == (again, 1)


def test_a_document_of_another_source_does_not_take_its_place(kb, me, eval_set):
    document = ingest(kb)
    judge(me, eval_set, QUERY, chunks_in(kb)[0], 2)
    document_delete(document)
    ingest(kb, name="other.txt")
    assert grades(me, eval_set) == {}
    assert anchored_chunks(list(Judgment.objects.select_related("query__eval_set"))) == {}


def test_an_anchored_judgment_names_its_chunk(kb, me, eval_set):
    document = make_document(kb, "满一年的员工每年享有五天带薪年假", "病假需要在上午十点前告知直属上级")
    judgment = judge(me, eval_set, QUERY, chunk_of(document, 1), 2)
    rows = list(Judgment.objects.select_related("query__eval_set"))
    assert anchored_chunks(rows) == {judgment.pk: chunk_of(document, 1)}


def test_sets_of_several_knowledge_bases_are_read_in_one_query(kb, me, eval_set, django_assert_num_queries):
    other = make_kb(owner=kb.owner)
    other_set = eval_set_named(me, other)
    first, second = (chunk_of(make_document(each, "五天带薪年假")) for each in (kb, other))
    judge(me, eval_set, QUERY, first, 2)
    judge(me, other_set, QUERY, second, 0)
    chunks = [*chunks_in(kb), *chunks_in(other)]
    with django_assert_num_queries(1):
        assert judgments_in(me, [eval_set, other_set], QUERY, chunks) == {first.pk: 2, second.pk: 0}


def test_a_chunk_of_another_knowledge_base_is_refused(me, eval_set):
    elsewhere = chunk_of(make_document(make_kb(), "五天带薪年假"))
    with rejected("other_knowledge_base"):
        judge(me, eval_set, QUERY, elsewhere, 2)


@pytest.mark.parametrize(("query", "grade"), [("  ", 2), ("x" * 2_001, 2), (QUERY, 4), (QUERY, -1)])
def test_what_is_no_judgment_is_refused_and_leaves_nothing(kb, me, eval_set, query, grade):
    with pytest.raises(Rejected):
        judge(me, eval_set, query, chunk_of(make_document(kb, "五天带薪年假")), grade)
    assert not EvalQuery.objects.exists()


def test_viewers_may_not_judge_and_others_see_nothing(kb, me, eval_set):
    chunk = chunk_of(make_document(kb, "五天带薪年假"))
    judge(me, eval_set, QUERY, chunk, 2)
    viewer, stranger = principal(make_member(kb)), principal(make_user())
    for call in (lambda who: judge(who, eval_set, QUERY, chunk, 1), lambda who: unjudge(who, eval_set, QUERY, chunk)):
        with pytest.raises(NotAllowed):
            call(viewer)
        with pytest.raises(NotVisible):
            call(stranger)
    assert judgments_in(viewer, [eval_set], QUERY, [chunk]) == {chunk.pk: 2}
    assert judgments_in(stranger, [eval_set], QUERY, [chunk]) == {}


def test_a_query_is_marked_to_have_no_answer_and_back(me, eval_set):
    assert mark_unanswerable(me, eval_set, "公司的股价", True).answerable is False
    assert mark_unanswerable(me, eval_set, "公司的股价", False).answerable is True
    assert mark_unanswerable(me, eval_set, "never asked", False) is None
    assert EvalQuery.objects.count() == 1


def test_a_query_with_relevant_passages_has_an_answer(kb, me, eval_set):
    chunk = chunk_of(make_document(kb, "五天带薪年假"))
    judge(me, eval_set, QUERY, chunk, 2)
    with rejected("has_relevant"):
        mark_unanswerable(me, eval_set, QUERY, True)
    judge(me, eval_set, QUERY, chunk, 0)
    mark_unanswerable(me, eval_set, QUERY, True)
    judge(me, eval_set, QUERY, chunk, 1)
    assert EvalQuery.objects.get().answerable is True


def test_a_judgment_without_a_source_belongs_to_no_other_document(kb, me, eval_set):
    document = make_document(kb, "五天带薪年假", source="", title="")
    judge(me, eval_set, QUERY, chunk_of(document), 2)
    document_delete(document)
    make_document(kb, "五天带薪年假", source="", title="")
    assert grades(me, eval_set) == {}


def test_judgments_are_regraded_and_taken_back_together(kb, me, eval_set):
    document = make_document(kb, "满一年的员工每年享有五天带薪年假", "病假需要在上午十点前告知直属上级")
    first, second = (judge(me, eval_set, QUERY, chunk_of(document, position), 0) for position in (0, 1))
    mark_unanswerable(me, eval_set, QUERY, True)
    elsewhere = judge(me, eval_set, "another query", chunk_of(document, 0), 1)
    changed = judgments_regrade(me, first.query, {first.pk: 2, second.pk: None, elsewhere.pk: 0})
    assert changed == 2
    assert dict(Judgment.objects.values_list("pk", "grade")) == {first.pk: 2, elsewhere.pk: 1}
    assert EvalQuery.objects.get(pk=first.query_id).answerable is True
    assert judgments_regrade(me, first.query, {first.pk: 2}) == 0
    with rejected("invalid_grade"):
        judgments_regrade(me, first.query, {first.pk: 4})
    with pytest.raises(NotAllowed):
        judgments_regrade(principal(make_member(kb)), first.query, {first.pk: None})


@pytest.mark.django_db(transaction=True)
def test_two_curators_at_once_make_one_query_and_one_judgment():
    kb = make_kb()
    me = principal(kb.owner)
    chunk = chunk_of(make_document(kb, "五天带薪年假"))
    together = Barrier(2, timeout=20)

    def click(grade):
        with closing(connection):
            together.wait()
            judge(me, eval_set_named(me, kb), QUERY, chunk, grade)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(click, (1, 2)))
    assert (EvalSet.objects.count(), EvalQuery.objects.count(), Judgment.objects.count()) == (1, 1, 1)
