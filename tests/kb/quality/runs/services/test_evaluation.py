"""What an evaluation says of the relevance gate, on a set small enough to know its scores' order by heart."""

import pytest

from kb.models import Chunk, ChunkEmbedding, EvalQuery, EvalSet, Judgment, Principal, RetrievalProfile
from kb.quality.runs.services.report import evaluate
from retrieval.selection import overlap_cut
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def eval_set():
    """Two queries that have an answer."""
    kb = make_kb()
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    add(eval_set, "智能温控器的保修期", make_document(kb, "智能温控器的保修期是两年"))
    add(eval_set, "三十天内可以退货", make_document(kb, "购买后三十天内可以退货"))
    make_document(kb, "安装前请先关闭电源")
    return eval_set


def add(eval_set, text, document=None):
    query = EvalQuery.objects.create(eval_set=eval_set, external_id=text, text=text, answerable=document is not None)
    if document is not None:
        Judgment.objects.create(query=query, document=document, grade=1)


def gate_of(eval_set, *, profile=None, **options):
    chosen = RetrievalProfile.objects.get(name=profile) if profile else None
    return evaluate(Principal(eval_set.knowledge_base.owner), eval_set, profile=chosen, **options)["gate"]


def test_the_gate_is_measured_by_what_it_keeps_and_lets_pass(eval_set):
    for text in ("公司的股价", "zebra", "!?"):
        add(eval_set, text)
    add(eval_set, "安装前请先关闭电源")  # stands in the knowledge base word for word, and is no answer

    assert gate_of(eval_set) == {
        "scale": "overlap",
        "cut": overlap_cut(3),
        "auroc": 0.75,
        "answerable_kept": 1.0,
        "unanswerable_passed": 0.25,
        "false_answer_rate": 0.25,
        "unanswerable": 4,
    }


def test_the_cut_is_that_of_the_profile(eval_set):
    add(eval_set, "公司的股价")
    RetrievalProfile.objects.create(name="strict", version=1, settings={"overlap_threshold": 0.99})

    gate = gate_of(eval_set, profile="strict")

    assert (gate["cut"], gate["answerable_kept"], gate["unanswerable_passed"]) == (0.99, 0.0, 0.0)


def test_a_query_that_finds_nothing_does_not_pass_a_gate_that_is_open(eval_set):
    ChunkEmbedding.objects.all().delete()  # the vector channel always finds something
    add(eval_set, "zebra")
    RetrievalProfile.objects.create(name="open", version=1, settings={"overlap_threshold": 0.0})

    gate = gate_of(eval_set, profile="open")

    assert (gate["cut"], gate["answerable_kept"], gate["unanswerable_passed"]) == (0.0, 1.0, 0.0)


def test_a_limit_holds_for_either_kind_of_query(eval_set):
    add(eval_set, "公司的股价")
    add(eval_set, "安装前请先关闭电源")

    assert gate_of(eval_set, limit=1)["unanswerable"] == 1


def test_a_set_in_which_every_query_has_an_answer_measures_no_gate(eval_set):
    assert gate_of(eval_set) is None


def test_a_set_in_which_no_query_has_an_answer_measures_no_gate(eval_set):
    EvalQuery.objects.all().delete()
    add(eval_set, "公司的股价")

    assert gate_of(eval_set) is None


def test_sums_of_reciprocal_ranks_meet_no_gate(eval_set):
    add(eval_set, "三十天后的股价")
    ChunkEmbedding.objects.all().delete()  # without a reranker the cosines would be the scores
    RetrievalProfile.objects.create(name="no reranker", version=1, settings={"rerankers": []})

    assert gate_of(eval_set, profile="no reranker") is None


def test_where_nothing_is_found_there_is_no_scale_to_measure_on(eval_set):
    add(eval_set, "公司的股价")
    Chunk.objects.update(enabled=False)

    assert gate_of(eval_set) is None
