"""Rows of a table that a curator switches off, returned with the rest of it, by every way out of a knowledge base."""

import json

import pytest
from django.core.files.base import ContentFile

from kb.agents.mcp import outputs
from kb.answers.services.answers import AskRequest
from kb.ingest.formats.outline import markdown_table
from kb.ingest.services.chunks import chunks_merge, chunks_set_enabled
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, KnowledgeBase
from kb.rag import RAGService
from kb.search.services.search import SearchRequest
from tests import factories
from tests.kb.assistants.making import make_assistant
from tests.kb.providers.language_model import language_model, prompts
from tests.servers import Reply

pytestmark = pytest.mark.django_db

QUESTION = "TH-01 保修"
ROWS = [f"TH-{number:02d}" for number in range(1, 31)]


@pytest.fixture
def llm(settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": 0.0, "max_chunk_chars": 4_000}
    with language_model(settings) as server:
        server.always("chat", Reply("24 个月 [1]。"))
        yield server


@pytest.fixture
def document(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(
        chunk_strategy="parent_child", chunk_size=120, chunk_overlap=0, parent_size=2_000
    )
    table = markdown_table([("型号", "保修"), *((row, "24 个月保修") for row in ROWS)])
    document = document_add(knowledge_base=kb, file=ContentFile(table.encode()), name="a.md", user=kb.owner)
    index_document(document.pk)
    document.refresh_from_db()
    return document


def rows_in(text):
    return {row for row in ROWS if row in text}


def rows_of(chunk):
    return rows_in(chunk.text)


def by_search(kb, **_):
    return RAGService().search(QUESTION, kb.pk, kb.owner_id)


def by_api(kb, client, **_):
    return client.post("/api/v1/search/", {"query": QUESTION, "knowledge_base_ids": [kb.pk]}, format="json").json()


def by_prompt(kb, llm, **_):
    RAGService().ask(QUESTION, [kb.pk], kb.owner_id)
    return prompts(llm)[-1]


def by_answer(kb, **_):
    return RAGService().ask(QUESTION, [kb.pk], kb.owner_id)


def by_mcp(kb, **_):
    request = SearchRequest(query=QUESTION, knowledge_base_ids=[kb.pk])
    return outputs.search(factories.principal(kb.owner), request).as_text()


def by_mcp_ask(kb, **_):
    request = AskRequest(query=QUESTION, knowledge_base_ids=[kb.pk])
    return outputs.ask(factories.principal(kb.owner), request).as_text()


def by_dify(kb, client_with, **_):
    setting = {"top_k": 2, "score_threshold": 0.0}
    body = {"retrieval_setting": setting, "query": QUESTION, "knowledge_id": str(kb.pk)}
    client = client_with(factories.make_api_key(kb.owner)[1])
    return client.post("/api/dify/retrieval", body, format="json").json()


def by_langchain(kb, **_):
    return [each.page_content for each in RAGService().get_retriever(kb.owner_id, kb.pk, 3).invoke(QUESTION)]


def by_openai(kb, client_with, **_):
    make_assistant(kb.owner, kb)
    body = {"model": "heaters", "messages": [{"role": "user", "content": QUESTION}]}
    client = client_with(factories.make_api_key(kb.owner)[1])
    return client.post("/v1/chat/completions", body, format="json").json()


WAYS = [by_search, by_api, by_prompt, by_answer, by_mcp, by_mcp_ask, by_dify, by_langchain, by_openai]


@pytest.mark.parametrize("way", WAYS)
def test_no_row_of_a_chunk_that_is_off_leaves_and_all_others_do(way, kb, document, client, client_with, llm):
    first, second, third, *_ = Chunk.objects.filter(document=document)
    assert rows_of(second)
    chunks_set_enabled(chunk_ids=[second.pk], enabled=False)

    found = json.dumps(way(kb=kb, client=client, client_with=client_with, llm=llm), ensure_ascii=False, default=str)

    assert rows_in(found) == set(ROWS) - rows_of(second)
    assert rows_of(first) | rows_of(third) <= rows_in(found)


def test_no_row_of_a_merged_chunk_that_is_off_leaves(kb, document):
    _first, second, third, *_ = Chunk.objects.filter(document=document)
    merged = chunks_merge(document=document, chunk_ids=[second.pk, third.pk])
    chunks_set_enabled(chunk_ids=[merged.pk], enabled=False)

    assert rows_in(str(by_search(kb))) == set(ROWS) - rows_of(second) - rows_of(third)
