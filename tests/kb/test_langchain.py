"""LangChain's adapters against its own standard suites, and what those do not ask for."""

import asyncio

import pytest
from django.db import connection
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import VectorStoreRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests

from kb.base.errors import NotAllowed, NotVisible
from kb.providers.embedding_models import embedder
from kb.rag import RAGService
from kb.search.services import search_log
from retrieval.langchain import KnowledgeBaseRetriever, KnowledgeBaseVectorStore
from tests.factories import make_document, make_kb, make_member, make_user


@pytest.fixture
def kb():
    return make_kb(language="en")


@pytest.fixture
def vectorstore(kb):
    return RAGService().get_vector_store(kb.owner.pk, kb.pk)


@pytest.fixture
def logged():
    """The log's own thread must not write while the tables are emptied."""
    yield
    search_log.flush()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("logged")
class TestStandardVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, vectorstore):
        return vectorstore


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("logged")
class TestStandardRetriever(RetrieversIntegrationTests):
    retriever_constructor = KnowledgeBaseRetriever
    retriever_query_example = "warranty"

    @pytest.fixture(autouse=True)
    def _store(self, vectorstore):
        vectorstore.add_texts(["The warranty is two years", "Warranty cards", "Switch it off first", "Returns"])
        self.store = vectorstore

    @property
    def retriever_constructor_params(self):
        return {"vectorstore": self.store}


@pytest.mark.django_db
def test_langchains_index_adds_skips_and_cleans_up(vectorstore):
    """The indexing API, as users drive it: a second run with one document changed and one gone."""
    manager = InMemoryRecordManager("zhiku")
    manager.create_schema()

    def run(*contents):
        documents = [Document(page_content=content, metadata={"source": "faq.md"}) for content in contents]
        return index(documents, manager, vectorstore, cleanup="full", source_id_key="source", key_encoder="sha256")

    assert run("warranty", "returns")["num_added"] == 2
    second = run("warranty", "repairs")
    assert (second["num_added"], second["num_skipped"], second["num_deleted"]) == (1, 1, 1)
    assert {found.page_content for found in vectorstore.similarity_search("x", k=5)} == {"warranty", "repairs"}


@pytest.mark.django_db
def test_the_retrievers_documents_say_where_they_come_from(kb, vectorstore):
    make_document(kb, "The warranty is two years", source="手册.md", tags=["law"])
    vectorstore.add_texts(["Warranty cards"], [{"source": "cards.pdf", "lang": "en"}], ids=["cards"])
    documents = {
        found.id: found.metadata for found in RAGService().get_retriever(kb.owner.pk, kb.pk, 5).invoke("warranty")
    }
    text, chunk = documents.pop("cards"), documents.popitem()[1]
    assert (text["source"], text["lang"], text["knowledge_base_id"]) == ("cards.pdf", "en", kb.pk)
    assert (chunk["source"], chunk["tags"], chunk["score_scale"]) == ("手册.md", ["law"], "overlap")


@pytest.mark.django_db
def test_the_retriever_is_langchains_with_k_where_langchain_keeps_it(kb):
    retriever = RAGService().get_retriever(kb.owner.pk, kb.pk, 3)
    assert isinstance(retriever, VectorStoreRetriever)
    assert retriever.search_kwargs["k"] == 3


@pytest.mark.django_db
def test_embeddings_are_the_knowledge_bases_own_and_no_others_are_taken(kb, vectorstore):
    assert (
        vectorstore.embeddings.embed_query("warranty") == embedder(kb.embedding_model).embed_query("warranty").tolist()
    )
    with pytest.raises(ValueError, match="own model"):
        KnowledgeBaseVectorStore.from_texts(
            ["x"], DeterministicFakeEmbedding(size=6), knowledge_base=vectorstore.knowledge_base
        )


@pytest.mark.django_db
def test_writing_takes_an_editors_rights(kb, vectorstore):
    store = RAGService().get_vector_store(make_member(kb).pk, kb.pk)
    with pytest.raises(NotAllowed):
        store.add_texts(["x"])


@pytest.mark.django_db
def test_rights_that_are_withdrawn_end_at_once(kb, vectorstore):
    vectorstore.add_texts(["warranty"])
    member = make_member(kb)
    store = RAGService().get_vector_store(member.pk, kb.pk)
    assert store.similarity_search("warranty")
    member.memberships.all().delete()
    with pytest.raises(NotVisible):
        store.similarity_search("warranty")


@pytest.mark.django_db
def test_to_a_stranger_there_is_no_store(kb):
    with pytest.raises(NotVisible):
        RAGService().get_vector_store(make_user().pk, kb.pk)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("logged")
async def test_an_event_loops_threads_keep_no_connection(vectorstore):
    """More awaited calls at once than the loop would open connections for, were they kept."""
    await vectorstore.aadd_texts(["warranty"], ids=["a"])
    await asyncio.gather(*(vectorstore.asimilarity_search("warranty") for _ in range(8)))
    held = await asyncio.gather(*(asyncio.to_thread(lambda: connection.connection) for _ in range(8)))
    assert held == [None] * 8
