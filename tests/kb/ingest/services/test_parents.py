"""Small chunks are searched, and the longer passages that they were cut from are given."""

import pytest
from django.core.files.base import ContentFile

from kb.base.shapes import as_values
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, EvalSet, KnowledgeBase
from kb.quality.eval_sets.services.sets import judge
from kb.quality.runs.services.run import load_judged, observe
from kb.quality.why_not.services.places import verdict_sentence
from kb.quality.why_not.services.walk import why_not_found
from kb.search.admin.explain.rows import why_cut
from kb.search.services.search import SearchRequest, result_of, search, trace_as_json
from tests.factories import make_kb, principal

pytestmark = pytest.mark.django_db

LEASE = ["租赁合同的租期最长二十年。", "租赁合同期满以后可以续租。", "续租的期限也不得超过二十年。"]
OTHER = ["温控器的保修期是两年整。", "保修从购买之日起开始计算。", "人为损坏不在保修的范围内。"]


@pytest.fixture
def kb():
    kb = make_kb()
    KnowledgeBase.objects.filter(pk=kb.pk).update(
        chunk_strategy="parent_child", chunk_size=20, chunk_overlap=0, parent_size=100
    )
    text = f"# 租赁\n\n{''.join(LEASE)}\n\n# 保修\n\n{''.join(OTHER)}"
    document = document_add(
        knowledge_base=kb, file=ContentFile(text.encode()), name="a.md", user=kb.owner, title="约定"
    )
    index_document(document.pk)
    return kb


def run(kb, query="租赁合同的租期最长几年", **overrides):
    asked = {"score_threshold": 0.0, **overrides}
    return search(
        principal(kb.owner), SearchRequest(query=query, knowledge_base_ids=[kb.pk], overrides=asked, explain=True)
    )


def test_a_result_gives_the_longer_passage_and_tells_what_was_found(kb):
    hit = run(kb).result.hits[0]
    fields = as_values(result_of(hit))
    assert fields["matched_text"] == LEASE[0]
    assert "".join(LEASE) in fields["text"]
    assert fields["chunk_id"] == Chunk.objects.get(text=LEASE[0]).pk


def test_two_chunks_of_one_passage_are_one_result(kb):
    outcome = run(kb)
    found = [hit.passage.parent_id for hit in outcome.result.hits]
    assert len(found) == len(set(found)) == 2
    collapsed = {each["chunk_id"] for each in trace_as_json(outcome)["candidates"] if each["cut_by"] == "parent"}
    assert Chunk.objects.get(text=LEASE[1]).pk in collapsed


def test_the_explanation_names_the_chunk_that_stands_for_another(kb):
    outcome = run(kb)
    other = Chunk.objects.get(text=LEASE[1]).pk
    cut = next(each for each in outcome.result.candidates if each.chunk_id == other)
    assert str(Chunk.objects.get(text=LEASE[0]).pk) in why_cut(outcome, cut, 1)


def test_candidates_keep_the_small_text_that_was_ranked(kb):
    assert {each.passage.text for each in run(kb).result.candidates} >= {*LEASE, *OTHER}


def test_a_longer_passage_needs_no_neighbours(kb):
    assert all(hit.neighbours == () for hit in run(kb, neighbours=1).result.hits)


def test_why_not_found_tells_which_chunk_stands_for_the_passage(kb):
    request = SearchRequest(
        query="租赁合同的租期最长几年", knowledge_base_ids=[kb.pk], overrides={"score_threshold": 0.0}
    )
    why = why_not_found(principal(kb.owner), request, Chunk.objects.get(text=LEASE[1]).pk)
    assert (why.verdict.stage, why.verdict.reason) == ("parent", "same_parent")
    assert why.verdict.figures == {"chunk_id": Chunk.objects.get(text=LEASE[0]).pk}
    assert str(why.verdict.figures["chunk_id"]) in verdict_sentence(why.verdict)


def test_what_is_read_in_the_passage_of_a_result_is_not_lost_to_an_evaluation(kb):
    owner = principal(kb.owner)
    eval_set = EvalSet.objects.create(name="集", knowledge_base=kb)
    query = "租赁合同的租期最长几年"
    judge(owner, eval_set, query, Chunk.objects.select_related("document").get(text=LEASE[1]), 2)
    outcome = run(kb)
    [judged] = load_judged(kb, list(eval_set.queries.all())).values()
    assert observe(outcome.result, judged, outcome.wiring.config, 0.0, 20)[0].lost_at == ""
