"""What a report tells beyond the figures, on a set small enough to know its answers by heart."""

import pytest

from kb.models import Chunk, ChunkEmbedding, Document, EvalQuery, EvalSet, Judgment, Principal
from kb.profiles.services import create_version
from kb.quality.runs.services.report import evaluate
from retrieval.errors import InvalidConfiguration
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db

TEXTS = ("智能温控器的保修期是两年", "购买后三十天内可以退货", "安装前请先关闭电源")


@pytest.fixture
def eval_set():
    """Two queries that have an answer in their own words, and one that has none."""
    kb = make_kb()
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    documents = [make_document(kb, text, source=f"{number}.md") for number, text in enumerate(TEXTS)]
    add(eval_set, "warranty", "智能温控器的保修期", documents[0])
    add(eval_set, "returns", "三十天内可以退货", documents[1])
    add(eval_set, "stock", "公司的股价")
    return eval_set


def add(eval_set, name, text, document=None, quote=""):
    query = EvalQuery.objects.create(eval_set=eval_set, external_id=name, text=text, answerable=document is not None)
    if document is not None:
        Judgment.objects.create(query=query, document=document, source=document.source, quote=quote, grade=1)
    return query


def report_of(eval_set, **options):
    return evaluate(Principal(eval_set.knowledge_base.owner), eval_set, **options)


def test_two_evaluations_tell_the_same_but_for_the_time_they_took(eval_set):
    first, second = report_of(eval_set), report_of(eval_set)
    assert {**first, "latency_ms": None} == {**second, "latency_ms": None}


def test_figures_do_not_depend_on_how_many_queries_are_measured_together(eval_set, monkeypatch):
    together = report_of(eval_set)
    monkeypatch.setattr("kb.quality.runs.services.run.QUERIES_A_BATCH", 1)
    assert report_of(eval_set)["stages"] == together["stages"]


def test_misses_are_grouped_by_the_stage_that_lost_them(eval_set):
    add(eval_set, "other words", "zebra", Document.objects.get(source="2.md"))

    report = report_of(eval_set, overrides={"vector_top_k": 1, "bm25_top_k": 1})

    assert report["miss_counts"] == {"channels": 1}
    assert report["misses"] == {"channels": [{"external_id": "other words", "text": "zebra", "first_relevant": {}}]}


def test_recall_below_1_is_told_by_query(eval_set):
    query = EvalQuery.objects.get(external_id="returns")
    Judgment.objects.create(query=query, document=Document.objects.get(source="2.md"), grade=1)

    report = report_of(eval_set, overrides={"vector_top_k": 1, "bm25_top_k": 1})

    assert report["incomplete"] == {"returns": 0.5}


def test_judgments_of_what_is_gone_count_as_missed_and_are_listed(eval_set):
    Document.objects.get(source="1.md").delete()

    report = report_of(eval_set)

    assert report["stages"]["reranked"]["recall@5"] == 0.5
    assert report["unanchored_count"] == 1
    assert report["unanchored"] == [{"external_id": "returns", "source": "1.md", "quote": "", "grade": 1}]
    assert report["miss_counts"] == {"unanchored": 1}


def test_a_judged_passage_keeps_its_figures_through_another_chunking(eval_set):
    kb = eval_set.knowledge_base
    text = "滤芯每六个月更换一次，购买原装滤芯可以延长整机保修，清洗时请勿使用热水或洗涤剂。"
    add(eval_set, "filter", "滤芯多久更换", make_document(kb, text, source="filter.md"), quote=text)
    before = report_of(eval_set)["stages"]
    Document.objects.get(source="filter.md").delete()
    make_document(kb, text[:20], text[20:], source="filter.md")

    assert report_of(eval_set)["stages"]["reranked"]["recall@5"] == before["reranked"]["recall@5"] == 1.0


def test_unanswerable_queries_that_pass_the_gate_are_listed(eval_set):
    add(eval_set, "copied", TEXTS[2])

    report = report_of(eval_set)

    assert report["gate"]["false_answer_rate"] == 0.5
    assert [(each["external_id"], each["text"]) for each in report["false_answers"]] == [("copied", TEXTS[2])]
    assert report["false_answers"][0]["score"] >= report["gate"]["cut"]


def test_an_explicit_threshold_of_the_profile_is_the_cut(eval_set):
    assert report_of(eval_set, overrides={"score_threshold": 0.99})["gate"]["cut"] == 0.99


def test_models_versions_and_settings_are_told(eval_set):
    kb = eval_set.knowledge_base
    report = report_of(eval_set, overrides={"rrf_k": 7})

    assert report["models"] == {"embedding": "hashing", "tokenizer": kb.tokenizer_id}
    assert report["rerankers"] == ["overlap"]
    assert (report["overrides"], report["configuration"]["rrf_k"]) == ({"rrf_k": 7}, 7)
    kb.version_row.refresh_from_db()
    assert (report["kb_version"], report["content_version"]) == (kb.version_row.version, kb.version_row.content_version)


def test_without_a_reranker_the_fusion_is_the_final_stage(eval_set):
    assert report_of(eval_set)["final_stage"] == "reranked"
    assert report_of(eval_set, overrides={"rerankers": []})["final_stage"] == "fused"


def test_a_reranker_that_is_off_is_measured_as_off(eval_set):
    kb = eval_set.knowledge_base
    profile = create_version(Principal(kb.owner), "off", {"use_rerank": False}, knowledge_base=kb)
    on, off = report_of(eval_set), report_of(eval_set, profile=profile)

    before = ("bm25", "vector", "fused")
    assert {stage: off["stages"][stage] for stage in before} == {stage: on["stages"][stage] for stage in before}
    assert off["stages"]["reranked"] == off["stages"]["vector"]
    assert (off["final_stage"], off["rerankers"], on["rerankers"]) == ("reranked", [], ["overlap"])
    assert (on["gate"]["scale"], off["gate"]["scale"]) == ("overlap", "cosine")


def test_what_only_words_find_is_lost_by_the_fusion_where_the_reranker_is_off(eval_set):
    ChunkEmbedding.objects.filter(chunk__document__source="0.md").delete()

    report = report_of(eval_set, overrides={"use_rerank": False})

    assert report["miss_counts"] == {"fusion": 1}
    assert (report["stages"]["bm25"]["recall@5"], report["stages"]["reranked"]["recall@5"]) == (1, 0.5)
    assert report_of(eval_set)["miss_counts"] == {}


def test_a_draft_can_be_measured_by_its_version(eval_set):
    kb = eval_set.knowledge_base
    create_version(Principal(kb.owner), "own", {}, knowledge_base=kb)
    draft = create_version(Principal(kb.owner), "own", {"rrf_k": 3}, knowledge_base=kb)

    report = report_of(eval_set, profile=draft)

    assert (report["profile"], report["configuration"]["rrf_k"]) == ({"name": "own", "version": 2}, 3)


def test_an_override_out_of_range_is_refused(eval_set):
    with pytest.raises(InvalidConfiguration, match="rrf_k"):
        report_of(eval_set, overrides={"rrf_k": -1})


def test_disabled_chunks_do_not_raise_the_cut(eval_set):
    cut = report_of(eval_set)["gate"]["cut"]
    make_document(eval_set.knowledge_base, *(f"第{number}章" for number in range(40)), source="long.md")
    Chunk.objects.filter(document__source="long.md").update(enabled=False)

    assert report_of(eval_set)["gate"]["cut"] == cut
