"""Which judged unit a found chunk is, after another chunking, another import, or none."""

import pytest

from kb.models import Chunk, Document, EvalQuery, EvalSet, Judgment
from kb.quality.runs.services.run import load_judged
from retrieval.eval.judged_sets import anchor_hash
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db

WARRANTY = "整机保修二十四个月，从发票日期算起，人为损坏除外，请保留好发票和包装箱。"
RETURNS = "购买后三十天内可以退货，拆封的滤芯除外，运费由顾客承担，到付拒收。"


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def query(kb):
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    return EvalQuery.objects.create(eval_set=eval_set, external_id="q", text="保修多久")


def judge(query, document, quote="", grade=1):
    return Judgment.objects.create(
        query=query,
        document=document,
        source=document.source or document.title,
        quote=quote,
        quote_hash=anchor_hash(quote) if quote else "",
        grade=grade,
    )


def judged(query):
    return load_judged(query.eval_set.knowledge_base, [query])[query.pk]


def units_of(query, chunk):
    return list(judged(query).units(chunk.pk, chunk.document_id))


def chunk_of(document, position=0):
    return Chunk.objects.get(document=document, position=position)


def test_every_chunk_of_a_document_judged_as_a_whole_is_one_unit(kb, query):
    document = make_document(kb, WARRANTY, RETURNS)
    judge(query, document)

    assert {*units_of(query, chunk_of(document, 0)), *units_of(query, chunk_of(document, 1))} == {str(document.pk)}
    assert judged(query).grades == {str(document.pk): 1}


def test_where_only_documents_are_judged_other_chunks_count_as_their_documents(kb, query):
    judge(query, make_document(kb, WARRANTY))
    other = make_document(kb, RETURNS, source="other")

    assert units_of(query, chunk_of(other)) == [str(other.pk)]


def test_a_judged_passage_is_found_in_a_longer_chunk(kb, query):
    document = make_document(kb, f"第一章\n{WARRANTY} {RETURNS}")
    judgment = judge(query, document, WARRANTY, grade=2)

    assert units_of(query, chunk_of(document)) == [f"judgment:{judgment.pk}"]
    assert judged(query).relevant == {f"judgment:{judgment.pk}"}


def test_the_parts_of_a_passage_that_was_cut_in_two_are_one_unit(kb, query):
    document = make_document(kb, WARRANTY[:18], WARRANTY[18:])
    judge(query, document, WARRANTY)

    assert units_of(query, chunk_of(document, 0)) == units_of(query, chunk_of(document, 1))


def test_a_chunk_beside_the_judged_passage_is_itself(kb, query):
    document = make_document(kb, WARRANTY, RETURNS)
    judge(query, document, WARRANTY)
    beside = chunk_of(document, 1)

    assert units_of(query, beside) == [f"chunk:{beside.pk}"]


def test_a_chunk_beside_the_judged_passage_is_its_document_where_that_is_judged_too(kb, query):
    document = make_document(kb, WARRANTY, RETURNS)
    judge(query, document, WARRANTY, grade=2)
    judge(query, document)

    assert units_of(query, chunk_of(document, 1)) == [str(document.pk)]


def test_the_same_words_in_another_document_are_not_the_judged_passage(kb, query):
    judge(query, make_document(kb, WARRANTY), WARRANTY)
    other = chunk_of(make_document(kb, WARRANTY, source="other"))

    assert units_of(query, other) == [f"chunk:{other.pk}"]


def test_a_chunk_with_two_relevant_passages_is_both_of_them_the_better_first(kb, query):
    document = make_document(kb, WARRANTY + RETURNS)
    partly, fully = judge(query, document, RETURNS, grade=1), judge(query, document, WARRANTY, grade=2)

    assert units_of(query, chunk_of(document)) == [f"judgment:{fully.pk}", f"judgment:{partly.pk}"]


def test_a_chunk_with_a_relevant_and_an_irrelevant_passage_is_the_relevant_one(kb, query):
    document = make_document(kb, WARRANTY + RETURNS)
    judge(query, document, RETURNS, grade=0)
    relevant = judge(query, document, WARRANTY)

    assert units_of(query, chunk_of(document)) == [f"judgment:{relevant.pk}"]


@pytest.mark.parametrize("quote", ["", WARRANTY])
def test_a_judgment_moves_to_the_document_that_is_imported_from_the_same_source(kb, query, quote):
    old = make_document(kb, WARRANTY, source="warranty.md")
    judge(query, old, quote)
    Document.objects.get(pk=old.pk).delete()
    new = make_document(kb, f"{WARRANTY}\n{RETURNS}", source="warranty.md")

    assert set(units_of(query, chunk_of(new))) == judged(query).relevant


def test_a_judgment_of_a_document_without_a_source_moves_by_its_title(kb, query):
    judge(query, make_document(kb, WARRANTY, source="", title="保修"))
    Document.objects.all().delete()
    new = make_document(kb, WARRANTY, source="", title="保修")

    assert judged(query).grades == {str(new.pk): 1}


def test_documents_of_another_knowledge_base_do_not_answer(kb, query):
    judge(query, make_document(kb, WARRANTY, source="warranty.md"))
    Document.objects.all().delete()
    make_document(make_kb(), WARRANTY, source="warranty.md")

    assert [each.source for each in judged(query).unanchored] == ["warranty.md"]


@pytest.mark.parametrize("quote", ["", WARRANTY])
def test_a_relevant_judgment_that_nothing_answers_to_stays_a_unit(kb, query, quote):
    judgment = judge(query, make_document(kb, WARRANTY), quote)
    Document.objects.all().delete()

    assert judged(query).grades == {f"judgment:{judgment.pk}": 1}
    assert judged(query).unanchored == [judgment]


def test_an_irrelevant_judgment_that_nothing_answers_to_is_nothing(kb, query):
    document = make_document(kb, RETURNS)
    judge(query, document, WARRANTY, grade=0)

    assert (judged(query).grades, judged(query).unanchored) == ({}, [])


def test_of_two_judgments_that_are_of_one_document_today_the_later_counts(kb, query):
    judge(query, make_document(kb, WARRANTY, source="warranty.md"), grade=2)
    Document.objects.all().delete()
    new = make_document(kb, WARRANTY, source="warranty.md")
    judge(query, new, grade=1)

    assert judged(query).grades == {str(new.pk): 1}
