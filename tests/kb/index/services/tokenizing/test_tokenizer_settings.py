"""Whose tokenizer settings are, what they do to searches, and what becomes of them when packages change."""

import sys

import pytest

from kb.base.errors import Rejected
from kb.content.services import knowledge_base_delete
from kb.index.services.tokenizing import TOKENIZING, tokenizer_change, tokenizer_settings
from kb.ingest.services.chunks import chunk_update
from kb.models import Chunk, KnowledgeBase, Principal, TokenizerSettings
from kb.providers.embedding_models import _load_tokenizer
from kb.search.services.search import SearchRequest, search
from retrieval.errors import DegradationCode
from retrieval.tokenize import engine_versions
from tests.factories import make_document, make_kb
from tests.kb.index.services.tokenizing.searching import ask, found_by_keyword, fresh, settings

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(("dictionary", "stop_words"), [("石墨烯 0", ""), ("", "x" * 60)])
def test_a_line_that_cannot_be_used_is_named(dictionary, stop_words):
    with pytest.raises(Rejected, match="第 1 行"):
        settings(dictionary, stop_words)


def test_stop_words_of_a_knowledge_base_are_neither_indexed_nor_searched(kb):
    tokenizer_change(kb, settings(stop_words="保修期\n保修"))
    TOKENIZING.advance(fresh(kb))
    assert found_by_keyword(kb, "保修期") == []
    assert found_by_keyword(kb, "电源") == ["安装前请先关闭电源"]


def test_traditional_and_simplified_find_each_other(kb):
    make_document(kb, "電腦的說明書")
    tokenizer_change(kb, settings(simplify=True))
    TOKENIZING.advance(fresh(kb))
    assert found_by_keyword(kb, "电脑") == ["電腦的說明書"]
    assert found_by_keyword(kb, "電源") == ["安装前请先关闭电源"]


def test_rjieba_serves_as_a_drop_in_under_its_own_id(kb):
    tokenizer_change(kb, settings(engine="rjieba"))
    TOKENIZING.advance(fresh(kb))
    assert fresh(kb).tokenizer_id.startswith("rjieba-")
    assert found_by_keyword(kb, "保修期") == ["石墨烯电池的保修期是两年"]


def test_knowledge_bases_of_different_tokenizers_are_searched_together(kb):
    other = make_kb(owner=kb.owner)
    make_document(other, "石墨烯的制备")
    tokenizer_change(other, settings("石墨烯 1000"))
    TOKENIZING.advance(fresh(other))
    request = SearchRequest(query="石墨烯", knowledge_base_ids=[kb.pk, other.pk], explain=True)
    result = search(Principal(kb.owner), request).result
    assert result.analysis.terms(kb.pk) != result.analysis.terms(other.pk)
    assert {hit.passage.kb_id for hit in result.hits if "bm25" in hit.ranks} == {kb.pk, other.pk}
    by_kb = {hit.passage.kb_id: hit.matched_terms for hit in result.hits}
    assert by_kb[other.pk] == ("石墨", "石墨烯")


def test_what_a_knowledge_base_s_editors_wrote_is_theirs_alone(kb):
    other, plain = make_kb(), make_kb()
    tokenizer_change(kb, settings("# 甲公司的机密\n石墨烯 1000"))
    tokenizer_change(other, settings("石墨烯 1000"))
    tokenizer_change(plain, settings("# 只有注释"))
    assert fresh(kb).target_tokenizer_id == fresh(other).target_tokenizer_id
    assert tokenizer_settings(fresh(other)).dictionary == "石墨烯 1000"
    assert tokenizer_settings(fresh(plain)).dictionary == "# 只有注释"
    assert tokenizer_settings(make_kb()).dictionary == ""


def test_new_comments_are_kept_and_need_no_work(kb):
    assert not tokenizer_change(kb, settings("# 待补充"))
    assert not tokenizer_change(fresh(kb), settings("# 已补充"))
    assert tokenizer_settings(fresh(kb)).dictionary == "# 已补充"


def test_settings_go_with_their_tokenizer_and_their_knowledge_base(kb):
    tokenizer_change(kb, settings("石墨烯 1000"))
    tokenizer_change(kb, settings("石墨烯 2000"))
    assert TokenizerSettings.objects.get().dictionary == "石墨烯 2000"
    knowledge_base_delete(fresh(kb))
    assert not TokenizerSettings.objects.exists()


def test_a_target_of_older_rules_is_replaced_by_that_of_the_present_ones(kb, enqueued):
    tokenizer_change(kb, settings("石墨烯 1000"))
    current = fresh(kb).target_tokenizer_id
    KnowledgeBase.objects.update(target_tokenizer_id="older")
    TokenizerSettings.objects.update(tokenizer_id="older")
    assert not TOKENIZING.advance(fresh(kb))
    assert fresh(kb).target_tokenizer_id == current
    assert TOKENIZING.advance(fresh(kb))
    assert tokenizer_settings(fresh(kb)).dictionary == "石墨烯 1000"


def test_a_target_whose_options_are_the_active_ones_by_now_needs_no_work(kb):
    KnowledgeBase.objects.update(target_tokenizer_id="that of default options under older rules")
    assert TOKENIZING.advance(fresh(kb))
    assert (fresh(kb).tokenizer_id, fresh(kb).target_tokenizer_id) == (kb.tokenizer_id, "")


@pytest.fixture
def without_rjieba(monkeypatch):
    """A process in which the package is not installed."""
    engine_versions.cache_clear()
    _load_tokenizer.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rjieba", None)
        yield patch
    engine_versions.cache_clear()
    _load_tokenizer.cache_clear()


def test_a_process_without_the_package_writes_nothing_and_changes_no_settings(kb, request):
    tokenizer_change(kb, settings("石墨烯 1000", engine="rjieba"))
    TOKENIZING.advance(fresh(kb))
    before = fresh(kb).tokenizer_id
    request.getfixturevalue("without_rjieba")
    chunk = Chunk.objects.filter(text__contains="石墨烯").select_related("document", "knowledge_base").get()
    with pytest.raises(Rejected, match="pip install rjieba"):
        chunk_update(chunk, text="钠离子电池", enabled=True)
    assert (fresh(kb).tokenizer_id, fresh(kb).lacks_postings) == (before, False)
    assert Chunk.objects.get(pk=chunk.pk).text == "石墨烯电池的保修期是两年"
    degraded = {each.code: each.detail for each in ask(kb, "保修期").degraded}
    assert "pip install rjieba" in degraded[DegradationCode.BM25_DEPENDENCIES_MISSING]
