import pytest
from django.db import connection

from kb.base.db.transactions import Purpose
from kb.base.models import installation_id
from kb.index.bm25 import BM25Store, RedisTier, index_fingerprint
from kb.index.services.reindex import (
    IndexState,
    add_index_state,
    database_bytes,
    index_state,
    indexed_knowledge_bases,
)
from kb.index.services.tokenizing import TOKENIZING, read_settings, tokenizer_change
from kb.models import BM25Index, ChunkChange, KnowledgeBase
from retrieval.cache import CacheKey, TierUnavailable
from tests.factories import make_document, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def user():
    return make_user()


@pytest.fixture
def kb(user):
    kb = make_kb(user)
    make_document(kb, "违约金过高的，可以请求减少。", "诉讼时效期间为三年。")
    return kb


def indexes(user):
    rows = list(indexed_knowledge_bases(principal(user)))
    add_index_state(rows)
    return rows


def only(user):
    (index,) = indexes(user)
    return index


def version_of(kb):
    return KnowledgeBase.objects.select_related("version_row").get(pk=kb.pk).version_row.version


def store_base(kb, **changes):
    """A base of the present version, as publishing one leaves it."""
    kb.refresh_from_db()
    values = {
        "version": version_of(kb),
        "tokenizer_id": kb.tokenizer_id,
        "format": index_fingerprint(),
        "payload": b"12345",
        "chunk_count": 2,
    }
    BM25Index.objects.update_or_create(knowledge_base=kb, defaults=values | changes)
    ChunkChange.objects.filter(knowledge_base=kb).delete()


def test_without_chunks_there_is_nothing_to_index(user):
    make_kb(user)

    assert only(user).index_state is IndexState.EMPTY


def test_before_the_first_search_there_is_no_base(user, kb):
    index = only(user)

    assert (index.index_state, index.base_version, index.base_bytes) == (IndexState.MISSING, None, None)


def test_a_base_of_the_present_version_is_current(user, kb):
    store_base(kb)

    index = only(user)

    assert (index.index_state, index.changes, index.base_bytes, index.base_chunks) == (IndexState.CURRENT, 0, 5, 2)
    assert index.version_row.version == index.base_version == version_of(kb)


def test_changes_since_the_base_are_counted_once_a_chunk(user, kb):
    store_base(kb)
    document = make_document(kb, "新的内容。")
    document.chunks.update(enabled=False)
    document.chunks.update(enabled=True)

    index = only(user)

    assert (index.index_state, index.changes) == (IndexState.CHANGED, 1)


def test_an_invalidated_index_is_built_again(user, kb):
    store_base(kb)

    BM25Store().invalidate(kb.pk)

    assert only(user).index_state is IndexState.MISSING


def test_a_base_of_another_tokenizer_is_outdated(user, kb):
    store_base(kb)

    tokenizer_change(kb, read_settings(engine="jieba", dictionary="", stop_words="违约金", simplify=False))
    TOKENIZING.advance(kb)

    assert only(user).index_state is IndexState.OUTDATED


def test_more_changes_than_are_read_over_a_base_outdate_it(kb, monkeypatch):
    monkeypatch.setattr("kb.index.bm25.MIN_CHANGES_TO_BUILD", 1)
    store_base(kb)
    make_document(kb, "一", "二")

    row = indexed_knowledge_bases(principal(kb.owner)).get()

    assert index_state(row, has_chunks=True) is IndexState.OUTDATED


def test_an_index_that_is_being_built_is_shown_as_such(user, kb):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [(Purpose.BUILD_INDEX << 32) | kb.pk])
        try:
            state = only(user).index_state
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [(Purpose.BUILD_INDEX << 32) | kb.pk])

    assert state is IndexState.BUILDING
    assert only(user).index_state is IndexState.MISSING


def test_bytes_in_redis_are_those_of_the_payload(user, kb):
    tier = RedisTier(1_000)
    tier.store(CacheKey("here", kb.pk, 1, "tokenizer", "format"), b"payload")

    size = only(user).redis_bytes
    tier.drop(kb.pk)

    assert (size, only(user).redis_bytes) == (7, 0)


def test_without_redis_its_sizes_are_unknown(user, kb, monkeypatch):
    def unreachable(self, kb_id):
        raise TierUnavailable

    monkeypatch.setattr(RedisTier, "size", unreachable)

    assert only(user).redis_bytes is None


def test_only_visible_knowledge_bases_are_told_of(user, kb):
    other = make_kb()
    make_document(other, "Secret.")
    store_base(kb)
    store_base(other, payload=b"123")
    member = make_member(other)

    assert indexes(user) == [kb]
    assert indexes(member) == [other]
    assert (database_bytes(principal(user)), database_bytes(principal(member))) == (5, 3)


def test_many_knowledge_bases_take_no_more_queries_than_one(user, kb, django_assert_num_queries):
    for _ in range(3):
        make_document(make_kb(user), "text")
    installation_id()  # read once a process

    with django_assert_num_queries(2):
        assert len(indexes(user)) == 4


@pytest.mark.django_db(transaction=True)
def test_a_published_index_is_current_in_both_shared_tiers(user, kb):
    BM25Store().merge(kb.pk, kb.tokenizer_id)

    index = only(user)

    assert (index.index_state, index.base_chunks, index.changes) == (IndexState.CURRENT, 2, 0)
    assert index.redis_bytes == index.base_bytes > 0


def test_a_base_of_an_older_format_is_outdated(kb, user):
    store_base(kb, format="older")
    assert only(user).index_state is IndexState.OUTDATED
