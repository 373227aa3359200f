"""What is stored in one language is read in another: a worker knows nothing of who will read."""

import json
import pickle

import pytest
from django.db import connection
from django.utils import timezone
from django.utils.translation import override

from kb.answers.admin.turns import answer_shown
from kb.answers.api import MessageSerializer
from kb.answers.selectors import stored_answer
from kb.base.errors import Rejected
from kb.base.messages import shown
from kb.base.shapes import as_values
from kb.graph.admin.rows import _notes as extraction_notes
from kb.graph.services.writing import extract_document, graph_request
from kb.index.keywords import NOT_CONFIGURED, unread
from kb.index.services.reembedding import REEMBED
from kb.index.services.stores.applying import note_failure
from kb.index.services.stores.migration import stores_state
from kb.ingest.api.documents import DocumentSerializer
from kb.ingest.services.documents import error_sentence, remark_sentences
from kb.ingest.services.indexing import index_document, stored_remarks
from kb.models import (
    Conversation,
    Document,
    EvalQuery,
    EvalRun,
    EvalSet,
    GraphExtraction,
    Judgment,
    KnowledgeBase,
    Message as Turn,
    Principal,
    Reembedding,
    SearchLog,
    Source,
    SourceItem,
    StoreState,
)
from kb.quality.runs.admin.report import run_notices
from kb.quality.runs.api import EvalRunDetailSerializer
from kb.quality.runs.services.runs import execute_run, reembedding_state, start_run
from kb.search.api import TraceSerializer
from kb.search.services.search import SearchRequest, outcome_as_log, respond, search
from kb.sources.services.sources import error_text
from retrieval.errors import (
    Degradation,
    DegradationCode,
    Message,
    ModelUnavailable,
    RerankerUnavailable,
    RetrievalError,
    gettext_noop,
    message_of,
)
from retrieval.rerankers.cross_encoder import CrossEncoderReranker
from tests.factories import make_document, make_kb, principal

ENGLISH, CHINESE = "en", "zh-hans"
LATE = Message(gettext_noop("model {model!r} did not answer in time: check its load, or allow more time"), model="甲")
LATE_IN_CHINESE = "模型“甲”未及时响应：请检查其负载，或允许更长的时间"
BOTH_WAYS = pytest.mark.parametrize(("written", "read"), [(ENGLISH, CHINESE), (CHINESE, ENGLISH)])
IN = {ENGLISH: "model '甲' did not answer in time: check its load, or allow more time", CHINESE: LATE_IN_CHINESE}
HASHING_IN = {ENGLISH: "has no embedding model", CHINESE: "没有嵌入模型"}

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


# -- Messages ---------------------------------------------------------------------------------------------------------------
def test_a_message_is_its_english_sentence_and_keeps_what_it_was_made_of():
    assert IN[ENGLISH] == LATE
    assert Message.from_dict(json.loads(json.dumps(LATE.as_dict()))).arguments == {"model": "甲"}
    assert pickle.loads(pickle.dumps(LATE)).template == LATE.template


def test_a_message_within_a_message_is_translated_too():
    outer = Message(gettext_noop("{error}; it is tried again after {retry_after_s:g} s"), error=LATE, retry_after_s=30)
    with override(CHINESE):
        assert shown(Message.from_dict(outer.as_dict())) == f"{LATE_IN_CHINESE}；30 秒后重试"


def test_an_error_gives_its_message_and_another_its_words():
    assert message_of(ModelUnavailable(LATE)) is LATE
    assert message_of(ValueError("plain")) == "plain"


def test_what_a_server_sends_can_be_stored():
    assert Message(gettext_noop("ChromaDB at {url}: {error}"), url="u", error="a\0b\ud800") == "ChromaDB at u: ab?"


def test_an_error_of_a_service_speaks_the_language_in_force():
    error = Rejected("late", LATE)
    for language, sentence in IN.items():
        with override(language):
            assert str(error) == sentence


def test_a_reranker_that_is_not_here_says_so_in_the_readers_language():
    with pytest.raises(RerankerUnavailable) as raised:
        CrossEncoderReranker("nobody/nothing").load(10**9)
    degradation = Degradation("rerank", raised.value.code, message_of(raised.value))
    with override(CHINESE):
        detail = as_values(Degradation.from_dict(degradation.as_dict()))["detail"]
    assert detail.startswith("本机没有重排模型“nobody/nothing”：请运行 `manage.py download_model nobody/nothing`")


# -- Rows -------------------------------------------------------------------------------------------------------------------
def test_rows_of_earlier_versions_show_what_was_stored(kb):
    old = {"stage": "rerank", "code": "a_code_of_old", "detail": "a sentence of old"}
    with override(CHINESE):
        assert as_values([Degradation.from_dict(old)]) == [old]
    document = make_document(kb, "文")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE kb_document SET error = 'a sentence of old', error_code = 'x' WHERE id = %s", [document.pk]
        )
    document.refresh_from_db()
    assert error_sentence(document) == "a sentence of old"


@BOTH_WAYS
def test_a_document_that_a_worker_failed_at(kb, written, read):
    document = make_document(kb, "文")
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="BAAI/not-here")
    Document.objects.filter(pk=document.pk).update(status="pending", keep_chunks=True)
    with override(written):
        index_document(document.pk)
    document.refresh_from_db()
    expected = {ENGLISH: "is not on this machine", CHINESE: "本机没有模型“BAAI/not-here”"}[read]
    with override(read):
        assert expected in error_sentence(document)
        assert expected in DocumentSerializer(document).data["error"]["message"]


@BOTH_WAYS
def test_a_remark_that_quotes_a_model(kb, written, read):
    document = make_document(kb, "文")
    with override(written):
        document.remarks = stored_remarks(unread([NOT_CONFIGURED]))
        document.save(update_fields=["remarks"])
    document.refresh_from_db()
    with override(read):
        [remark] = remark_sentences(document)
    assert ("尚未配置对话模型" in remark) == (read == CHINESE)
    assert ("no chat model is set up" in remark) == (read == ENGLISH)


@BOTH_WAYS
def test_a_logged_search(kb, written, read):
    make_document(kb, "智能温控器的保修期是两年")
    with override(written):
        outcome = search(principal(kb.owner), SearchRequest(query="保修期", knowledge_base_ids=[kb.pk], log=False))
        SearchLog.objects.create(user=kb.owner, created_at=timezone.now(), **outcome_as_log(outcome))
    with override(read):
        [degraded] = [
            each for each in TraceSerializer(SearchLog.objects.get()).data["degraded"] if each["stage"] == "vector"
        ]
    assert set(degraded) == {"stage", "code", "detail"}
    assert degraded["code"] == DegradationCode.HASHING_EMBEDDER
    assert HASHING_IN[read] in degraded["detail"]


@BOTH_WAYS
def test_a_response_that_is_served_again(kb, written, read):
    make_document(kb, "智能温控器的保修期是两年")
    request = SearchRequest(query="保修期", knowledge_base_ids=[kb.pk], log=True)
    for language in (written, read):
        with override(language):
            [degraded] = [
                each
                for each in as_values(respond(principal(kb.owner), request))["degraded"]
                if each["stage"] == "vector"
            ]
        assert set(degraded) == {"stage", "code", "detail"}
        assert HASHING_IN[language] in degraded["detail"]


@BOTH_WAYS
def test_a_run_of_an_evaluation_set(kb, written, read):
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    query = EvalQuery.objects.create(eval_set=eval_set, external_id="q", text="保修期")
    Judgment.objects.create(query=query, document=make_document(kb, "智能温控器的保修期是两年"), grade=2)
    run = start_run(Principal(kb.owner), eval_set)
    with override(written):
        execute_run(run.pk)
    run.refresh_from_db()
    assert run.status == EvalRun.Status.DONE
    with override(read):
        report = EvalRunDetailSerializer(run).data["report"]
    assert run_notices(run.report) == []  # the knowledge base's page says it
    assert all(set(each) == {"stage", "code", "detail"} for each in report["degraded"])
    assert HASHING_IN[read] in str(report["degraded"])


@BOTH_WAYS
def test_a_run_that_failed(kb, written, read):
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    profile = kb.profile
    run = EvalRun.objects.create(eval_set=eval_set, profile=profile, created_by=kb.owner)
    with override(written):
        EvalRun.objects.filter(pk=run.pk).update(error=LATE, status="failed")
    run.refresh_from_db()
    with override(read):
        assert shown(run.error) == IN[read]


@BOTH_WAYS
def test_an_answer_of_a_conversation(kb, written, read):
    conversation = Conversation.objects.create(user=kb.owner, knowledge_base_ids=[kb.pk])
    with override(written):
        stored = [Degradation("answer", DegradationCode.LLM_TIMEOUT, LATE).as_dict()]
        Turn.objects.create(conversation=conversation, role="assistant", text="答", degraded=stored)
    turn = Turn.objects.get()
    with override(read):
        assert MessageSerializer(turn).data["degraded"] == [
            {"stage": "answer", "code": "llm_timeout", "detail": IN[read]}
        ]
        data = stored_answer(turn) | {"hit": True}
        kb.may_edit = True
        assert IN[read].casefold() in str(answer_shown(data, [kb], "问")["notices"]).casefold()


@BOTH_WAYS
def test_a_change_of_embedding_model_that_failed(kb, written, read):
    Reembedding.objects.create(knowledge_base=kb, model="test/other", status=Reembedding.Status.BUILDING)
    KnowledgeBase.objects.filter(pk=kb.pk).update(target_embedding_model="test/other")
    with override(written):
        REEMBED.note_failure(kb.pk, RetrievalError(LATE))
    with override(read):
        assert reembedding_state(KnowledgeBase.objects.get(pk=kb.pk)).error == IN[read]


@BOTH_WAYS
def test_a_store_that_could_not_be_brought_up_to_date(kb, written, read):
    KnowledgeBase.objects.filter(pk=kb.pk).update(target_store="milvus")
    StoreState.objects.create(knowledge_base=kb, store="milvus", status=StoreState.Status.FILLING)
    with override(written):
        note_failure(kb.pk, "milvus", LATE)
    with override(read):
        assert stores_state(KnowledgeBase.objects.get(pk=kb.pk))["target"].error_text == IN[read]


@BOTH_WAYS
def test_a_document_that_could_not_be_read_for_the_graph(kb, written, read):
    document = make_document(kb, "文")
    graph_request(document)
    with override(written):
        extract_document(document.pk)
    extraction = GraphExtraction.objects.get(document=document)
    assert extraction.error_code == "llm_not_configured"
    with override(read):
        notes = extraction_notes(extraction)
    assert notes[0].startswith({ENGLISH: "no chat model is set up", CHINESE: "尚未配置对话模型"}[read])


@BOTH_WAYS
def test_a_page_of_a_source_that_was_refused(kb, written, read):
    source = Source.objects.create(knowledge_base=kb, name="网站", url="https://example.com/")
    with override(written):
        SourceItem.objects.create(
            source=source, url="https://example.com/a", key_hash="a", error=LATE, error_code="too_large_"
        )
    page = SourceItem.objects.get()
    with override(read):
        assert error_text(page.error, page.error_code, page.error_params) == IN[read]
