"""A knowledge base on an embedding model behind HTTP, indexed while everything is well."""

import pytest


@pytest.fixture
def models(settings):
    """A server of embeddings, of reranking and of chat; what it hangs on is released at the end."""
    from tests.kb.search.faults.searches import of_letters
    from tests.servers import ModelServer, Reply

    with ModelServer() as server:
        server.always("embeddings", Reply(content=of_letters))
        settings.EMBEDDING_BASE_URL = server.base_url
        yield server


@pytest.fixture
def begun(monkeypatch):
    """Keywords answer once the vectors' search has begun: one whose thread comes too late is late for another reason."""
    import threading

    from retrieval.channels import BM25Channel, VectorChannel
    from tests.interleaving import PATIENCE

    has_begun, by_vector, by_keyword = threading.Event(), VectorChannel.search, BM25Channel.search

    def search_vectors(*arguments):
        has_begun.set()
        return by_vector(*arguments)

    def search_keywords(*arguments):
        assert has_begun.wait(PATIENCE)
        has_begun.clear()
        return by_keyword(*arguments)

    monkeypatch.setattr(VectorChannel, "search", search_vectors)
    monkeypatch.setattr(BM25Channel, "search", search_keywords)


@pytest.fixture
def clock():
    from tests.retrieval.byte_tiers import Clock

    return Clock()


@pytest.fixture
def kb(models, transactional_db):
    """Searched once, so that the keyword index and the tokenizer are warm."""
    from kb.models import KnowledgeBase
    from tests.factories import make_document, make_kb
    from tests.kb.search.faults.searches import DIMENSION, MODEL, OTHERS, POWER, WARRANTY, ask, notes

    kb = make_kb(embedding_model=MODEL)
    make_document(kb, WARRANTY, POWER, *OTHERS)
    KnowledgeBase.objects.filter(pk=kb.pk).update(dimension=DIMENSION)  # as every service that writes chunks does
    assert notes(ask(kb, query="电源")) == []
    return kb
