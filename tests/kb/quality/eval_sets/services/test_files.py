"""Evaluation sets as files: a round trip keeps everything, and another installation finds the passages."""

import json

import pytest
from django.core.files.base import ContentFile

from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.ingest.services.documents import document_add, document_delete
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document, EvalQuery, EvalRun, EvalRunQuery, EvalSet, Judgment
from kb.quality.eval_sets.services.files import (
    corpus,
    eval_set_export,
    eval_set_import,
    import_eval_set,
    import_passages,
    joined_text,
    judged_set,
)
from kb.quality.eval_sets.services.sets import eval_set_named, judge, judgments_in, mark_unanswerable, queries_add
from kb.quality.runs.services.report import evaluate
from retrieval.eval.judged_sets import Layout, SourceJudgment
from retrieval.eval.qrels import SetFormatError
from tests.factories import make_document, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db

LEAVE, SICK, TRAVEL = (
    "工作满一年的员工每年享有五天带薪年假，满十年的享有十天。",
    "病假需要在当天上午十点之前告知直属上级，并补交医院的证明。",
    "出差的交通费按实际发生额报销，住宿费每天不超过四百元。",
)
FILE = "员工 手册.txt"
layouts = pytest.mark.parametrize("layout", Layout)


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def me(kb):
    return principal(kb.owner)


@pytest.fixture
def eval_set(kb, me):
    """Judged passages, a judged document, one that is deleted, a query without judgments and one without an answer."""
    eval_set = eval_set_named(me, kb, "规章")
    handbook = make_document(kb, LEAVE, SICK, TRAVEL, source=FILE, title="员工手册")
    leave, sick, _travel = Chunk.objects.filter(document=handbook).select_related("document").order_by("position")
    judge(me, eval_set, "年假有几天", leave, 2)
    judge(me, eval_set, "年假有几天", sick, 0)
    other = make_document(kb, "智能温控器的保修期是两年。", source="", title="保修")
    query = EvalQuery.objects.create(eval_set=eval_set, external_id="q 7", text="保修期\n多长")
    Judgment.objects.create(query=query, document=other, source="保修", grade=1)
    gone = make_document(kb, "这一段以后就没有了，不过评判还在。", source="gone.txt")
    judge(me, eval_set, "没有了的内容", gone.chunks.select_related("document").get(), 2)
    document_delete(gone)
    queries_add(me, eval_set, ["还没有评判的问题"])
    mark_unanswerable(me, eval_set, "公司的股价", True)
    return eval_set


def content(eval_set):
    """All that a set holds, in an order of its own."""
    judged = judged_set(eval_set)
    return judged.name, sorted(judged.queries, key=str), sorted(judged.judgments, key=str)


def imported(me, kb, directory, **options):
    return eval_set_import(me, kb, directory, **options)


@layouts
def test_a_round_trip_keeps_everything(me, kb, eval_set, tmp_path, layout):
    if layout is Layout.TREC:  # one line a query
        EvalQuery.objects.filter(external_id="q 7").update(text="保修期 多长")
    before = content(eval_set)
    eval_set_export(me, eval_set, tmp_path / "set", layout)
    eval_set.delete()
    done = imported(me, kb, tmp_path / "set")
    assert content(done.eval_set) == before
    assert (done.queries, done.judgments, done.missing) == (5, 4, 1)
    assert set(Judgment.objects.filter(document=None).values_list("source", flat=True)) == {"gone.txt"}


@layouts
def test_another_knowledge_base_with_the_same_file_finds_the_passages(me, eval_set, tmp_path, layout):
    eval_set_export(me, eval_set, tmp_path / "set", layout, with_documents=False)
    other = make_kb()
    other.chunk_size, other.chunk_overlap = 60, 10
    other.save()
    them = principal(other.owner)
    file = ContentFile(f"{LEAVE}\n\n{SICK}\n\n{TRAVEL}".encode())
    index_document(document_add(knowledge_base=other, file=file, name=FILE, user=other.owner).pk)
    copy = imported(them, other, tmp_path / "set").eval_set
    chunks = list(Chunk.objects.filter(knowledge_base=other).select_related("document"))
    grades = judgments_in(them, [copy], "年假有几天", chunks)
    assert {chunk.text[:2]: grades[chunk.pk] for chunk in chunks if chunk.pk in grades} == {"工作": 2, "病假": 0}


def test_an_installation_without_the_documents_takes_them_from_the_corpus(me, eval_set, tmp_path):
    eval_set_export(me, eval_set, tmp_path / "set", Layout.BEIR)
    other = make_kb()
    assert import_passages(other, tmp_path / "set") == (2, 0)
    copied = import_eval_set(other, tmp_path / "set", "copy")
    assert (copied.queries, copied.judgments) == (5, 4)
    report = evaluate(principal(other.owner), other.eval_sets.get())
    assert report["stages"]["bm25"]["hit_rate@1"] > 0
    assert set(Document.objects.filter(knowledge_base=other).values_list("source", flat=True)) == {FILE, "保修"}


def test_judgments_of_a_click_are_measured_after_another_import_of_the_file(me, kb):
    kb.chunk_size, kb.chunk_overlap = 60, 0
    kb.save()

    def ingest():
        file = ContentFile(f"{LEAVE}\n\n{SICK}\n\n{TRAVEL}".encode())
        document = document_add(knowledge_base=kb, file=file, name=FILE, user=kb.owner)
        index_document(document.pk)
        return document

    document = ingest()
    chunk = Chunk.objects.select_related("document").get(text__contains="年假")
    judge(me, eval_set_named(me, kb), "每年享有五天带薪年假", chunk, 2)
    measured = evaluate(me, kb.eval_sets.get())["stages"]["bm25"]
    document_delete(document)
    kb.chunk_size = 40
    kb.save()
    ingest()
    assert evaluate(me, kb.eval_sets.get())["stages"]["bm25"] == measured
    assert measured["hit_rate@1"] == 1.0


def test_queries_that_stay_keep_their_rows_and_the_set_its_runs(me, kb, eval_set, tmp_path):
    eval_set_export(me, eval_set, tmp_path / "set", Layout.BEIR)
    run = EvalRun.objects.create(eval_set=eval_set, profile=kb.profile)
    kept = EvalQuery.objects.get(text="年假有几天")
    of_run = EvalRunQuery.objects.create(
        run=run, query=kept, external_id=kept.external_id, text=kept.text, answerable=True, latency_ms=1
    )
    extra = queries_add(me, eval_set, ["以后加的问题"])
    done = imported(me, kb, tmp_path / "set", replace=True)
    assert (done.eval_set, extra) == (eval_set, 1)
    of_run.refresh_from_db()
    assert of_run.query == kept
    assert EvalQuery.objects.count() == 5


def test_a_set_is_replaced_only_where_that_is_asked_for(me, kb, eval_set, tmp_path):
    eval_set_export(me, eval_set, tmp_path / "set", Layout.BEIR)
    with pytest.raises(Rejected, check=lambda error: error.code == "name_taken"):
        imported(me, kb, tmp_path / "set")
    assert imported(me, kb, tmp_path / "set", name="copy").eval_set.name == "copy"


@layouts
def test_a_broken_file_leaves_the_old_set(me, kb, eval_set, tmp_path, layout):
    eval_set_export(me, eval_set, tmp_path / "set", layout)
    with (tmp_path / "set" / "passages.jsonl").open("a") as file:
        file.write('{"query-id": "never"}\n')
    before = content(eval_set)
    with pytest.raises(SetFormatError, match=r"passages\.jsonl:4"):
        imported(me, kb, tmp_path / "set", replace=True)
    assert content(eval_set) == before


def test_of_two_documents_of_one_source_the_judgment_is_of_the_one_that_holds_its_words(me, kb, tmp_path):
    first, second = (make_document(kb, text, source="same.txt") for text in (LEAVE, SICK))
    judge(me, eval_set_named(me, kb, "s"), "请病假", second.chunks.select_related("document").get(), 2)
    eval_set_export(me, kb.eval_sets.get(), tmp_path / "set", Layout.BEIR)
    copy = imported(me, kb, tmp_path / "set", name="copy").eval_set
    chunks = list(Chunk.objects.filter(knowledge_base=kb).select_related("document"))
    assert judgments_in(me, [copy], "请病假", chunks) == {second.chunks.get().pk: 2}
    assert first.chunks.get().pk != second.chunks.get().pk


def test_the_corpus_has_each_source_once_with_what_its_chunks_say(kb):
    make_document(kb, LEAVE + SICK, SICK + TRAVEL, source="a.txt", title="A")
    make_document(kb, "另一份同名文件的内容", source="a.txt", title="B")
    make_document(kb, source="empty.txt")
    assert list(corpus(kb)) == [
        {"_id": "a.txt", "title": "A", "text": f"{LEAVE}{SICK}{TRAVEL}\n\n另一份同名文件的内容"}
    ]


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        ([], ""),
        (["one"], "one"),
        (["one", "two"], "one\ntwo"),
        ([LEAVE + SICK, SICK + TRAVEL], LEAVE + SICK + TRAVEL),
        (["abcdefgh", "abcdefgh"], "abcdefgh"),
        (["x abcdefgh y", "abcdefgh y z"], "x abcdefgh y z"),
        (["short end", "end start"], "short end\nend start"),
    ],
)
def test_what_chunks_repeat_of_each_other_is_left_out(texts, whole):
    assert joined_text(texts) == whole


def test_beirs_judgments_name_their_source(tmp_path):
    kb = make_kb()
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "p1", "title": "保修", "text": "保修期是两年"}))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "保修期"}\n{"_id": "q2", "text": "other split"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("q1\tp1\t1\n")
    import_passages(kb, tmp_path)
    imported = import_eval_set(kb, tmp_path, "set")
    assert (imported.queries, imported.judgments) == (1, 1)
    assert Judgment.objects.get().source == "p1"


def test_who_may_not_is_refused(me, kb, eval_set, tmp_path):
    eval_set_export(principal(make_member(kb)), eval_set, tmp_path / "set", Layout.BEIR)
    with pytest.raises(NotAllowed):
        imported(principal(make_member(kb)), kb, tmp_path / "set", name="copy")
    stranger = principal(make_user())
    with pytest.raises(NotVisible):
        imported(stranger, kb, tmp_path / "set", name="copy")
    with pytest.raises(NotVisible):
        eval_set_export(stranger, eval_set, tmp_path / "again", Layout.BEIR)
    assert not (tmp_path / "again").exists()
    assert EvalSet.objects.count() == 1


def test_characters_that_cannot_be_stored_are_replaced(kb, me, tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text(
        r'{"_id": "a\ud800", "text": "\u0000年假\udfff", "metadata": {"answerable": true}}' + "\n"
    )
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    quotes = (r"五天\ud800", r"五天\ud801", r"五天\u0000?")
    lines = (rf'{{"query-id": "a\ud800", "corpus-id": "x\udc00", "quote": "{quote}", "score": 1}}' for quote in quotes)
    (tmp_path / "passages.jsonl").write_text("\n".join(lines))

    done = imported(me, kb, tmp_path, name="odd")

    assert (done.queries, done.judgments) == (1, 1)
    assert judged_set(done.eval_set).judgments == (SourceJudgment("a?", "x?", 1, "五天?"),)
