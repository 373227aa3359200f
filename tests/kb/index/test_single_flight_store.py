"""Many who need an index at once, and writers in between: every interleaving is driven, none is hoped for."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest
from django.core.cache import caches
from django.db import connection, transaction

from kb.base.db.transactions import Purpose, try_lock
from kb.index import bm25
from kb.index.bm25 import BM25Store, RedisTier
from kb.models import BM25Index, ChunkPostings, KnowledgeBase
from kb.search.services.search import SearchRequest, search
from retrieval.cache import CacheKey
from retrieval.errors import ChannelUnavailable, DegradationCode, RetrievalError, ScopeOutdated
from tests.factories import make_document, principal
from tests.interleaving import Gate, until
from tests.kb.index.searching import (
    PATIENCE,
    assert_as_built,
    at_once,
    builds,
    empty_redis,
    find,
    load,
    log,
    new_process,
    ranking,
    redis_entries,
    request,
    settle,
    sql,
    tier,
    version,
)
from tests.kb.search.faults.searches import out_of_time

pytestmark = pytest.mark.django_db(transaction=True)


def ask(kb, **fields):
    return search(
        principal(kb.owner), SearchRequest(query="保修期", knowledge_base_ids=[kb.pk], log=False, **fields)
    ).result


@pytest.fixture
def waiting(monkeypatch):
    """Holds a builder at its first wait for another process's build."""
    clock = SimpleNamespace(monotonic=time.monotonic, perf_counter=time.perf_counter, sleep=lambda seconds: None)
    monkeypatch.setattr(bm25, "time", clock)
    gate = Gate(monkeypatch, clock, "sleep")
    yield gate
    gate.open()


# -- Threads ---------------------------------------------------------------------------------------------------------
def test_twenty_threads_on_a_cold_base_build_once_and_all_get_the_index(kb):
    loaded = at_once(20, lambda: load(kb))
    assert builds() == 1
    assert {each.detail["version"] for each in loaded} == {version(kb)}
    assert len({id(each.index) for each in loaded}) == 1
    assert_as_built(loaded[0], kb)


def test_first_uses_at_the_same_moment_share_one_cache(monkeypatch):
    bm25._shared_cache.cache_clear()
    real, both = bm25.TieredCache, threading.Barrier(2)

    def slow(**arguments):
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # would let a second one in
        return real(**arguments)

    monkeypatch.setattr(bm25, "TieredCache", slow)
    first, second = at_once(2, BM25Store)
    assert first.cache is second.cache
    assert first._flights is second._flights


def test_a_build_that_fails_fails_for_those_who_wait_and_is_tried_again(kb):
    good = list(ChunkPostings.objects.filter(knowledge_base=kb).values_list("pk", "frequencies"))
    ChunkPostings.objects.filter(knowledge_base=kb).update(frequencies=b"\x01")
    with pytest.raises(RetrievalError, match="damaged"):
        load(kb)
    for pk, frequencies in good:
        ChunkPostings.objects.filter(pk=pk).update(frequencies=frequencies)
    assert len(find(kb, "保修期")) == 1


def test_a_base_that_moved_to_another_tokenizer_since_the_permission_check_asks_for_another_try(kb):
    asked = version(kb)
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="another")
    with pytest.raises(ScopeOutdated):
        load(kb, at=asked, tokenizer_id=kb.tokenizer_id)


# -- Processes -------------------------------------------------------------------------------------------------------
WAITERS = """
SELECT count(DISTINCT application_name) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'other process %%' AND query LIKE %s
"""


def waiters(kb):
    """How many other processes have asked for the lock of this knowledge base's build as their last query."""
    with connection.cursor() as cursor:
        cursor.execute(WAITERS, [f"%pg_try_advisory_lock({(Purpose.BUILD_INDEX << 32) | kb.pk})%"])
        return cursor.fetchone()[0]


def test_two_cold_processes_build_once(kb, other_process):
    processes = [other_process(), other_process()]
    with try_lock(Purpose.BUILD_INDEX, kb.pk):
        for process in processes:
            process.tell("search", kb.pk, "保修期")
        until(lambda: waiters(kb) == 2)
        assert not BM25Index.objects.exists()
    answers = [process.answer() for process in processes]
    assert sorted(answer["tier"] for answer in answers) == ["build", "redis"]
    assert sum(answer["builds"] for answer in answers) == 1
    assert answers[0]["found"] == answers[1]["found"] == find(kb, "保修期")


def test_what_another_process_publishes_between_the_look_and_the_lock_is_not_built_again(
    kb, other_process, monkeypatch
):
    process = other_process()
    gate = Gate(monkeypatch, bm25, "try_lock")
    asked = request(kb)
    gate.wait()
    assert process.ask("search", kb.pk, "保修期")["tier"] == "build"
    until(BM25Index.objects.exists)
    gate.open()
    assert asked.wait(time.monotonic() + PATIENCE).detail["cache_tier"] == "redis"
    assert builds() == 0


def test_a_builder_that_is_killed_hands_its_lock_on(kb, db_name, waiting):
    from tests.kb.index.other_process import OtherProcess

    process = OtherProcess(db_name)
    assert process.ask("hold build lock", kb.pk) is True
    asked = request(kb)
    waiting.wait()
    process.kill()
    process.close()
    waiting.open()
    assert asked.wait(time.monotonic() + PATIENCE).detail["cache_tier"] == "build"


def test_a_builder_that_waits_too_long_for_another_process_builds_itself(kb, monkeypatch):
    monkeypatch.setattr(bm25, "LOCK_PATIENCE_SECONDS", 0)
    with try_lock(Purpose.BUILD_INDEX, kb.pk) as taken:
        assert taken
        assert tier(kb) == "build"


def connections_in_use():
    stats = connection.pool.get_stats()
    return stats["pool_size"] - stats["pool_available"]


def test_neither_the_builder_nor_the_search_holds_a_connection_while_another_process_builds(kb, waiting):
    with ThreadPoolExecutor(1) as searching, try_lock(Purpose.BUILD_INDEX, kb.pk):
        answer = searching.submit(load, kb)
        waiting.wait()
        until(lambda: connections_in_use() == 2)  # this thread's and the lock's
        waiting.open()
        assert not answer.done()
    assert answer.result(PATIENCE).detail["cache_tier"] == "build"


# -- A deadline ------------------------------------------------------------------------------------------------------
def test_a_waiter_past_its_deadline_is_told_that_the_index_is_being_built(kb):
    with try_lock(Purpose.BUILD_INDEX, kb.pk), pytest.raises(ChannelUnavailable) as error:
        request(kb).wait(time.monotonic())
    assert error.value.code is DegradationCode.BM25_INDEX_BUILDING


def test_a_search_past_its_budget_answers_from_the_vectors_and_the_next_one_has_the_index(kb, monkeypatch):
    with try_lock(Purpose.BUILD_INDEX, kb.pk), monkeypatch.context() as patched:
        out_of_time(patched)
        early = ask(kb)
    settle()
    later = ask(kb)
    assert (DegradationCode.BM25_INDEX_BUILDING, "bm25") in {(each.code, each.stage) for each in early.degraded}
    assert {"vector"} == {channel for hit in early.hits for channel in hit.ranks if channel in {"vector", "bm25"}}
    assert DegradationCode.BM25_INDEX_BUILDING not in {each.code for each in later.degraded}
    assert "bm25" in later.hits[0].ranks
    assert builds() == 1


# -- Writers in between ----------------------------------------------------------------------------------------------
def test_a_commit_during_a_build_leaves_no_stale_index(kb, monkeypatch):
    seen = version(kb)
    gate = Gate(monkeypatch, bm25, "build_index", after=True)
    asked = request(kb)
    gate.wait()
    make_document(kb, "延长保修期可以另外购买")
    gate.open()

    stale = asked.wait(time.monotonic() + PATIENCE)
    settle()

    assert (stale.detail["version"], stale.index.chunk_count) == (seen, 3)
    assert BM25Index.objects.get().version == seen
    assert RedisTier(0)._held(kb.pk).version == seen
    assert_as_built(load(kb), kb)
    for clear in (lambda: None, empty_redis):
        clear()
        new_process()
        loaded = load(kb)
        assert (loaded.detail["base_version"], loaded.detail["changed_chunks"]) == (seen, 1)
        assert_as_built(loaded, kb)


def test_a_search_that_joins_a_build_from_before_its_version_gets_its_version(kb, monkeypatch):
    gate = Gate(monkeypatch, bm25, "build_index", after=True)
    request(kb)
    gate.wait()
    make_document(kb, "延长保修期可以另外购买")
    asked = request(kb)
    gate.open()
    loaded = asked.wait(time.monotonic() + PATIENCE)
    assert loaded.detail["version"] == version(kb)
    assert_as_built(loaded, kb)
    assert builds() == 1


@pytest.mark.parametrize("held", [False, True], ids=["cold", "warm"])
def test_a_commit_between_the_permission_check_and_the_request_misleads_nobody(kb, held):
    if held:
        load(kb)
    seen = version(kb)
    make_document(kb, "延长保修期可以另外购买")
    at_its_version = load(kb, at=seen)
    assert at_its_version.detail["version"] == (seen if held else version(kb))
    assert at_its_version.index.chunk_count == (3 if held else 4)
    assert_as_built(load(kb), kb)


def test_a_builder_that_publishes_late_changes_nothing(kb, monkeypatch):
    monkeypatch.setattr(bm25, "LOCK_PATIENCE_SECONDS", 0)
    gate = Gate(monkeypatch, bm25.TieredCache, "publish")
    load(kb)
    gate.wait()
    BM25Store().invalidate(kb.pk)
    make_document(kb, "延长保修期可以另外购买")
    assert tier(kb) == "build"
    until(lambda: BM25Index.objects.filter(version=version(kb)).exists())
    rows, entries, resets = list(BM25Index.objects.values()), sorted(redis_entries()), log(kb)
    gate.open()
    settle()
    assert list(BM25Index.objects.values()) == rows
    assert sorted(redis_entries()) == entries
    assert log(kb) == resets
    assert CacheKey.parse(caches["bm25"].get(RedisTier._pointer(kb.pk)).decode()).version == version(kb)


# -- Open transactions -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("held", [False, True], ids=["cold", "warm"])
def test_an_open_transaction_searches_what_it_wrote_and_leaves_nothing_behind(kb, held):
    if held:
        load(kb)
        settle()
    rows, entries = list(BM25Index.objects.values()), sorted(redis_entries())
    resets, nbytes = log(kb), BM25Store().cache.stats()["process"].nbytes

    with transaction.atomic():
        make_document(kb, "尚未提交的保修期")
        own = load(kb)
        assert len(ranking(own.index, "保修期")[0]) == 2
        assert_as_built(own, kb)
        transaction.set_rollback(True)
    settle()

    assert list(BM25Index.objects.values()) == rows
    assert sorted(redis_entries()) == entries
    assert (log(kb), BM25Store().cache.stats()["process"].nbytes) == (resets, nbytes)
    assert len(find(kb, "保修期")) == 1


def test_what_an_open_transaction_wrote_is_hidden_from_the_others(kb):
    load(kb)
    with transaction.atomic():
        make_document(kb, "尚未提交的保修期")
        (found,) = at_once(1, lambda: find(kb, "保修期"))
        assert len(found) == 1
    assert len(find(kb, "保修期")) == 2


def test_an_open_transaction_uses_the_base_that_the_process_holds(kb):
    load(kb)
    before = builds()
    with transaction.atomic():
        sql("DELETE FROM kb_chunk WHERE knowledge_base_id = %s AND position = 0", kb.pk)
        loaded = load(kb)
    assert (loaded.detail["cache_tier"], loaded.detail["changed_chunks"]) == ("process", 1)
    assert builds() == before
