import logging
import sys

import pytest

from kb.index.services.reindex import reindex_postings
from kb.ingest.services.documents import document_add_text
from kb.ingest.services.indexing import index_document
from kb.models import ChunkPostings, KnowledgeBase, Principal
from kb.search import wiring as conf
from kb.search.services.search import SearchRequest, search
from retrieval.bm25 import BM25_UNAVAILABLE
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


def find(kb, query="保修期"):
    return search(Principal(kb.owner), SearchRequest(query=query, knowledge_base_ids=[kb.pk], log=False)).result


@pytest.fixture
def missing(monkeypatch):
    """A package that cannot be imported, and a process that has not looked for it yet."""

    def remove(package):
        monkeypatch.setitem(sys.modules, package, None)
        conf._load_tokenizer.cache_clear()

    yield remove
    conf._load_tokenizer.cache_clear()


@pytest.mark.parametrize("package", ["rank_bm25", "jieba"])
def test_without_the_keyword_packages_search_is_vector_only_and_says_so_once(missing, caplog, package):
    kb = make_kb()
    make_document(kb, "保修期是两年", "安装前请关闭电源")
    missing(package)
    with caplog.at_level(logging.WARNING):
        results = [find(kb), find(kb)]
    assert caplog.text.count("⚠️ BM25 dependencies unavailable, using vector-only search mode.") == 1
    assert BM25_UNAVAILABLE in caplog.text
    for result in results:
        assert "bm25_dependencies_missing" in {each.code for each in result.degraded}
        assert result.hits[0].passage.text == "保修期是两年"
        assert result.hits[0].score_scale == "cosine"


def test_what_was_indexed_without_them_is_named_until_it_is_reindexed(missing, monkeypatch):
    kb = make_kb()
    missing("jieba")
    index_document(document_add_text(knowledge_base=kb, text="保修期是两年", title="", user=None).pk)
    assert not ChunkPostings.objects.exists()
    monkeypatch.undo()
    conf._load_tokenizer.cache_clear()
    assert "bm25_postings_outdated" in {each.code for each in find(kb).degraded}
    reindex_postings(KnowledgeBase.objects.get(pk=kb.pk))
    assert find(kb).hits[0].ranks["bm25"] == 1


def test_the_environment_is_the_default_of_every_profile(settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "top_k": 1, "rrf_k": 10, "lexical_fallback": False}
    kb = make_kb()
    make_document(kb, "保修期是两年", "保修期可以延长")
    hits = find(kb).hits
    assert len(hits) == 1
    assert hits[0].scores["fused"] == pytest.approx(1 / 11)
