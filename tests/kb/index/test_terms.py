import json

import pytest
from django.core.files.base import ContentFile

from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, ChunkEmbedding, Document, KnowledgeBase
from retrieval.errors import Message
from tests.factories import make_kb
from tests.kb.providers.language_model import language_model, no_language_model
from tests.servers import Reply

pytestmark = pytest.mark.django_db

TEXT = "《民法典》规定租赁合同的租赁期限不得超过二十年。租赁期限超过二十年的，超过部分无效。"
FOUND = {"keywords": ["租赁期限", "二十年"], "questions": ["租赁期限最长多久?"]}


@pytest.fixture
def server(settings):
    with language_model(settings) as server:
        server.always("chat", Reply(json.dumps(FOUND, ensure_ascii=False)))
        yield server


def make(**settings):
    kb = make_kb()
    KnowledgeBase.objects.filter(pk=kb.pk).update(**settings)
    return KnowledgeBase.objects.get(pk=kb.pk)


def indexed(kb):
    document = document_add(knowledge_base=kb, file=ContentFile(TEXT.encode()), name="a.txt", user=kb.owner)
    index_document(document.pk)
    document.refresh_from_db()
    assert document.status == Document.Status.READY, document.error
    return document, Chunk.objects.get(document=document)


def kinds(chunk):
    return set(ChunkEmbedding.objects.filter(chunk=chunk).values_list("kind", flat=True))


def test_keywords_and_questions_of_the_language_model_are_stored_and_embedded(server):
    document, chunk = indexed(make(keyword_vectors=True, keyword_method="llm", ask_questions=True))

    assert (chunk.keywords, chunk.questions) == (FOUND["keywords"], FOUND["questions"])
    assert (chunk.own_keywords, chunk.own_questions) == (False, False)
    assert kinds(chunk) == {"content", "keywords", "question"}
    assert document.remarks == []


def test_a_document_is_ready_without_the_language_model_and_says_why(settings):
    no_language_model(settings)

    document, chunk = indexed(make(keyword_vectors=True, keyword_method="llm", ask_questions=True))

    assert "民法典" in chunk.keywords
    assert chunk.questions == []
    [remark] = document.remarks
    assert (remark["code"], remark["params"]["count"]) == ("model_did_not_read", 1)
    assert "System, Models" in Message.from_dict(remark["params"]["reason"])


def test_textrank_needs_no_language_model(server):
    _document, chunk = indexed(make(keyword_vectors=True, keyword_method="textrank"))

    assert "租赁" in "".join(chunk.keywords)
    assert server.calls["chat"] == 0
    assert kinds(chunk) == {"content", "keywords"}


def test_what_a_curator_gave_stays_when_the_document_is_processed_again(server):
    kb = make(keyword_vectors=True, keyword_method="llm", ask_questions=True)
    document, chunk = indexed(kb)
    Chunk.objects.filter(pk=chunk.pk).update(keywords=["租期"], own_keywords=True, questions=[], own_questions=True)
    Document.objects.filter(pk=document.pk).update(status="pending", keep_chunks=True)
    asked = server.calls["chat"]

    index_document(document.pk)

    chunk.refresh_from_db()
    assert (chunk.keywords, chunk.questions) == (["租期"], [])
    assert server.calls["chat"] == asked
    assert kinds(chunk) == {"content", "keywords"}


def again(document, **fields):
    Document.objects.filter(pk=document.pk).update(status="pending", **fields)
    index_document(document.pk)
    document.refresh_from_db()
    assert document.status == Document.Status.READY, document.error
    return document


@pytest.mark.parametrize("keep_chunks", [True, False])
def test_chunks_without_questions_get_them_once_the_knowledge_base_asks_for_them(server, keep_chunks):
    kb = make()
    document, chunk = indexed(kb)
    KnowledgeBase.objects.filter(pk=kb.pk).update(ask_questions=True)

    again(document, keep_chunks=keep_chunks)

    assert Chunk.objects.get().pk == chunk.pk
    assert Chunk.objects.get().questions == FOUND["questions"]
    assert kinds(chunk) == {"content", "question"}


def test_kept_chunks_that_the_language_model_did_not_read_leave_a_remark_until_it_does(settings):
    no_language_model(settings)
    kb = make(ask_questions=True)
    document, _chunk = indexed(kb)
    of_file = {"code": "pages_recognised", "params": {"pages": "1"}}
    Document.objects.filter(pk=document.pk).update(remarks=[of_file])

    again(document, keep_chunks=True)
    assert [remark["code"] for remark in document.remarks] == ["pages_recognised", "model_did_not_read"]

    with language_model(settings) as model:
        model.always("chat", Reply(json.dumps(FOUND, ensure_ascii=False)))
        again(document, keep_chunks=True)
    assert document.remarks == [of_file]
