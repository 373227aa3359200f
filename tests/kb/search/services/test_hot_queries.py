import pytest
from django.utils import translation
from hypothesis import given, strategies as st

from kb.base.errors import NotAllowed, NotVisible
from kb.models import Document, KnowledgeBase, KnowledgeBaseVersion, Membership, Principal
from kb.search.selectors import searchable
from kb.search.services.invalidation import caches_invalidate, responses_invalidate
from kb.search.services.search import cache_response, cached_response, key_of
from retrieval.errors import Degradation, DegradationCode
from tests.factories import make_document, make_kb, make_member, make_user
from tests.fakes import HASHING_NOTE
from tests.kb.index.searching import settle, tier

pytestmark = pytest.mark.django_db

NO_RERANKER = Degradation("rerank", DegradationCode.RERANKER_UNAVAILABLE, "fetch it")
TIMEOUT = Degradation("rerank", DegradationCode.RERANKER_TIMEOUT, "allow more time")


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, "工作满一年的员工每年享有五天带薪年假。", title="员工手册")
    return kb


def key(*kbs, **changes):
    """As a search makes it, from what the database holds now."""
    found = searchable(Principal(make_user(superuser=True)), [kb.pk for kb in kbs])
    asked = {
        "query": "年假可以休几天？",
        "scope": [found[kb.pk] for kb in kbs],
        "profile": "default v1",
        "fingerprints": ["c0ffee"],
        "request": {"filters": None},
    }
    return key_of(**{**asked, **changes})


def unsaved(pk, version, content_version):
    kb = KnowledgeBase(pk=pk)
    KnowledgeBaseVersion(knowledge_base=kb, version=version, content_version=content_version)
    return kb


numbers = st.integers(0, 3)
searches = st.tuples(
    st.text("ab,", max_size=3), st.lists(st.tuples(numbers, numbers, numbers), max_size=2), st.text("ab", max_size=2)
)


@given(one=searches, other=searches)
def test_two_searches_have_one_key_exactly_where_they_are_equal(one, other):
    first, second = (
        key_of(query=query, scope=[unsaved(*each) for each in scope], profile=profile, fingerprints=[], request={})
        for query, scope, profile in (one, other)
    )
    assert (first == second) == (one == other)


def is_cached(*kbs, **changes):
    return cached_response(key(*kbs, **changes)) is not None


# -- What the key holds ----------------------------------------------------------------------------------------------
def test_the_same_search_gets_the_response_again(kb):
    cache_response(key(kb), b"{}", [])
    assert cached_response(key(kb)) == b"{}"


def test_the_order_of_the_knowledge_bases_is_part_of_the_key(kb):
    other = make_kb()
    assert key(kb, other) != key(other, kb) != key(kb)


def test_a_query_that_is_no_valid_unicode_has_a_key_too(kb):
    assert len(key(kb, query="\ud800")) == 32


@pytest.mark.parametrize(
    "change",
    [
        {"query": "年假"},
        {"profile": "default v2"},
        {"fingerprints": ["beef"]},
        {"fingerprints": ["c0ffee", "beef"]},
        {"request": {"filters": {"tags": ["人事"]}}},
        {"request": {"filters": None, "history": ["哪种假？"]}},
    ],
    ids=str,
)
def test_another_search_does_not(kb, change):
    cache_response(key(kb), b"{}", [])
    assert not is_cached(kb, **change)


def test_other_knowledge_bases_or_another_order_do_not(kb):
    other = make_kb()
    cache_response(key(kb, other), b"{}", [])
    assert is_cached(kb, other)
    assert not is_cached(other, kb)
    assert not is_cached(kb)


def test_another_language_does_not(kb):
    with translation.override("zh-hans"):
        cache_response(key(kb), b"{}", [])
    with translation.override("en"):
        assert not is_cached(kb)


# -- What makes a response unreachable ---------------------------------------------------------------------------------
CHANGES = {
    "a new document": lambda kb: make_document(kb, "病假另计。"),
    "a deleted document": lambda kb: kb.documents.all().delete(),
    "a title": lambda kb: Document.objects.filter(knowledge_base=kb).update(title="手册"),
    "metadata": lambda kb: Document.objects.filter(knowledge_base=kb).update(metadata={"author": "Li"}),
    "tags": lambda kb: Document.objects.filter(knowledge_base=kb).update(tags=["人事"]),
    "a disabled chunk": lambda kb: kb.chunks.update(enabled=False),
    "an explicit invalidation": lambda kb: responses_invalidate([kb.pk]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_makes_earlier_responses_unreachable_at_once(kb, change):
    cache_response(key(kb), b"{}", [])
    CHANGES[change](kb)
    assert not is_cached(kb)


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_change_of_one_knowledge_base_leaves_the_others_alone(kb, change):
    other = make_kb()
    cache_response(key(other), b"{}", [])
    CHANGES[change](kb)
    assert is_cached(other)


# -- What is kept ------------------------------------------------------------------------------------------------------
def test_a_response_with_a_fault_is_not_kept(kb):
    assert not cache_response(key(kb), b"{}", [HASHING_NOTE, TIMEOUT])
    assert not is_cached(kb)


def test_a_response_that_is_degraded_by_choice_is_kept(kb):
    assert cache_response(key(kb), b"{}", [HASHING_NOTE])
    assert is_cached(kb)


def test_a_response_without_the_rerank_server_is_not_kept_as_that_may_be_back_at_once(kb, settings):
    settings.RERANK_BASE_URL = "http://127.0.0.1:9"
    assert not cache_response(key(kb), b"{}", [NO_RERANKER])


def test_a_cache_that_is_switched_off_keeps_and_serves_nothing(kb, settings):
    cache_response(key(kb), b"{}", [])
    settings.CACHE_ENABLED = False
    assert not is_cached(kb)
    assert not cache_response(key(kb, query="年假"), b"{}", [])
    settings.CACHE_ENABLED = True
    assert not is_cached(kb, query="年假")


# -- Invalidation ------------------------------------------------------------------------------------------------------
def test_an_invalidation_tells_which_knowledge_bases_exist(kb):
    assert responses_invalidate([kb.pk, kb.pk + 1_000]) == [kb.pk]
    assert responses_invalidate([]) == []


def test_without_ids_all_that_the_principal_may_edit_are_invalidated(kb):
    own, shared, seen = make_kb(kb.owner), make_kb(), make_kb()
    Membership.objects.create(knowledge_base=shared, user=kb.owner, role="editor")
    Membership.objects.create(knowledge_base=seen, user=kb.owner, role="viewer")
    assert caches_invalidate(Principal(kb.owner)) == sorted([kb.pk, own.pk, shared.pk])


def test_a_key_bound_to_some_knowledge_bases_invalidates_these_only(kb):
    make_kb(kb.owner)
    assert caches_invalidate(Principal(kb.owner, frozenset([kb.pk]))) == [kb.pk]


def test_what_the_principal_cannot_see_is_named_and_nothing_is_invalidated(kb):
    hidden = make_kb()
    cache_response(key(kb), b"{}", [])
    with pytest.raises(NotVisible, match=str(hidden.pk)):
        caches_invalidate(Principal(kb.owner), [kb.pk, hidden.pk])
    assert is_cached(kb)


def test_a_viewer_may_not_invalidate(kb):
    cache_response(key(kb), b"{}", [])
    with pytest.raises(NotAllowed, match=str(kb.pk)):
        caches_invalidate(Principal(make_member(kb)), [kb.pk])
    assert is_cached(kb)


def test_a_stranger_has_nothing_to_invalidate(kb):
    assert caches_invalidate(Principal(make_user())) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("bm25", "next_tier"), [(False, "process"), (True, "build")])
def test_keyword_indexes_are_invalidated_where_asked_for(kb, bm25, next_tier):
    tier(kb)
    settle()
    caches_invalidate(Principal(kb.owner), [kb.pk], bm25=bm25)
    assert tier(kb) == next_tier
    settle()
