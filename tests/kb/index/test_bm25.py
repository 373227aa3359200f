"""Three tiers on real Redis and PostgreSQL: which one answers, and what each of them keeps."""

import time

import pytest
from django.db import transaction

from kb.content.services import knowledge_base_delete
from kb.index.bm25 import BM25Store
from kb.models import BM25Index
from kb.providers.embedding_models import tokenizer
from tests.factories import make_document, make_kb
from tests.kb.index.searching import (
    PATIENCE,
    assert_as_built,
    builds,
    empty_redis,
    find,
    load,
    log,
    new_process,
    redis_entries,
    settle,
    sql,
    tier,
    version,
)

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_chunk_of_a_one_chunk_base_is_found_by_keyword():
    kb = make_kb()
    document = make_document(kb, "保修期是两年")
    assert find(kb, "保修") == [document.chunks.get().pk]


def test_an_empty_base_has_an_empty_index():
    kb = make_kb()
    assert (load(kb).index.chunk_count, find(kb, "任何")) == (0, [])


def test_the_first_search_builds_and_the_next_ones_find_the_nearest_tier(kb):
    tiers = [tier(kb), tier(kb)]
    new_process()
    tiers += [tier(kb)]
    empty_redis()
    new_process()
    tiers += [tier(kb), tier(kb)]
    assert tiers == ["build", "process", "redis", "database", "process"]


@pytest.mark.parametrize("nearest", ["redis", "database"])
def test_what_a_tier_kept_is_the_index_that_was_built(kb, nearest):
    load(kb)
    settle()
    if nearest == "database":
        empty_redis()
    new_process()
    loaded = load(kb)
    assert loaded.detail["cache_tier"] == nearest
    assert_as_built(loaded, kb)


def test_what_the_database_answers_goes_up_into_redis(kb):
    load(kb)
    settle()
    empty_redis()
    new_process()
    load(kb)
    new_process()
    assert tier(kb) == "redis"


def test_the_trace_tells_where_an_index_came_from(kb):
    built = load(kb).detail
    make_document(kb, "新的内容")
    updated = load(kb).detail
    assert (built["version"], built["base_version"], built["changed_chunks"]) == (built["version"],) * 2 + (0,)
    assert built["build_ms"] > 0
    assert (updated["version"], updated["base_version"]) == (version(kb), built["version"])
    assert (updated["changed_chunks"], updated["indexed_chunks"]) == (1, 4)
    assert (updated["tiers"]["process"]["builds"], updated["tiers"]["process"]["updates"]) == (1, 1)


def test_the_persistent_tier_holds_one_row_with_what_it_holds(kb):
    load(kb)
    settle()
    row = BM25Index.objects.get(knowledge_base=kb)
    assert (row.version, row.chunk_count, row.tokenizer_id) == (version(kb), 3, tokenizer().id)


def test_redis_holds_one_entry_and_its_pointer_a_base(kb):
    for text in ("一", "二", "三"):
        make_document(kb, text)
        BM25Store().merge(kb.pk, kb.tokenizer_id)
    assert len(redis_entries()) == 2


def test_a_payload_over_redis_limit_lands_in_postgresql_only(kb, settings):
    settings.BM25_REDIS_MAX_BYTES = 10
    new_process()
    load(kb)
    new_process()
    assert redis_entries() == []
    assert tier(kb) == "database"


def test_an_index_over_the_memory_limit_is_answered_but_not_held(kb, settings):
    settings.BM25_MEMORY_BYTES = 10
    new_process()
    load(kb)
    settle()
    assert [tier(kb), tier(kb)] == ["redis", "redis"]
    assert BM25Store().cache.stats()["process"].nbytes == 0


def test_invalidate_clears_all_three_tiers_and_takes_a_new_version(kb):
    load(kb)
    settle()
    before = version(kb)
    BM25Store().invalidate(kb.pk)
    assert version(kb) > before
    assert not BM25Index.objects.exists()
    assert redis_entries() == []
    assert BM25Store().cache.stats()["process"].nbytes == 0
    assert tier(kb) == "build"


def test_invalidating_one_base_leaves_the_others_alone(kb):
    other = make_kb()
    make_document(other, "保修期")
    load(other)
    settle()
    BM25Store().invalidate(kb.pk)
    assert tier(other) == "process"


def test_adding_and_deleting_a_document_keep_the_base_that_the_log_leads_from(kb):
    load(kb)
    settle()
    make_document(kb, "新的内容")
    kb.documents.first().delete()
    assert BM25Index.objects.exists()
    assert len(redis_entries()) == 2


@pytest.mark.parametrize("change", ["add", "delete"])
def test_on_commit_a_document_clears_the_tiers_of_a_base_that_nothing_leads_from(kb, change):
    load(kb)
    settle()
    with transaction.atomic():
        make_document(kb, "新的内容") if change == "add" else kb.documents.get().delete()
        sql(
            "INSERT INTO kb_chunkchange (knowledge_base_id, version, operation) "
            "SELECT knowledge_base_id, version, 'reset' FROM kb_versions WHERE knowledge_base_id = %s",
            kb.pk,
        )
        assert BM25Index.objects.exists()
    assert not BM25Index.objects.exists()
    assert redis_entries() == []
    assert BM25Store().cache.stats()["process"].nbytes == 0


def test_a_deleted_base_leaves_nothing_in_any_tier(kb):
    load(kb)
    settle()
    knowledge_base_delete(kb)
    assert not BM25Index.objects.exists()
    assert redis_entries() == []
    assert BM25Store().cache.stats()["process"].nbytes == 0
    assert log(kb) == []


def test_a_base_deleted_after_the_permission_check_is_searched_once_and_has_no_chunks(kb):
    kb_id, seen = kb.pk, version(kb)
    kb.delete()
    loaded = BM25Store().request(kb_id, seen, kb.tokenizer_id).wait(time.monotonic() + PATIENCE)
    settle()
    assert loaded.index.chunk_count == 0
    assert builds() == 1
    assert redis_entries() == []
