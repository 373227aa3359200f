"""Keyword searches of the tests: as a first process, as a new one, and compared with a full build."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.cache import caches
from django.db import connection, connections

from kb.base.models import installation_id
from kb.index import bm25
from kb.index.bm25 import BM25Store
from kb.index.fulltext import build_index
from kb.models import ChunkChange, KnowledgeBase, KnowledgeBaseVersion
from kb.providers.embedding_models import tokenizer
from retrieval.postings import hash_terms
from tests.interleaving import PATIENCE

QUERIES = ("保修期", "电源 关闭", "thermostat warranty", "内容", "一 二 三")


def version(kb):
    return KnowledgeBaseVersion.objects.get(pk=kb.pk).version


def request(kb, at=None, tokenizer_id=None):
    active = tokenizer_id or KnowledgeBase.objects.get(pk=kb.pk).tokenizer_id
    return BM25Store().request(kb.pk, at or version(kb), active)


def load(kb, at=None, tokenizer_id=None):
    return request(kb, at, tokenizer_id).wait(time.monotonic() + PATIENCE)


def tier(kb):
    return load(kb).detail["cache_tier"]


def ranking(index, query):
    ids, scores = index.search(hash_terms(tokenizer()(query)), 1_000)
    return ids.tolist(), scores.tolist()


def find(kb, query):
    return ranking(load(kb).index, query)[0]


def assert_as_built(loaded, kb):
    """The index is, in ids and scores, what a full build gives now."""
    full = build_index(kb.pk, KnowledgeBase.objects.get(pk=kb.pk).tokenizer_id).index
    assert loaded.index.chunk_count == full.chunk_count
    for query in QUERIES:
        ids, scores = ranking(loaded.index, query)
        expected_ids, expected_scores = ranking(full, query)
        assert ids == expected_ids
        assert scores == pytest.approx(expected_scores, rel=1e-9, abs=0)


def builds():
    return BM25Store().cache.stats()["process"].builds


def settle():
    """Waits for what builders still do after they have handed out their index: publishing it."""
    bm25._shared_flights()._executor.shutdown(wait=True)
    bm25._shared_flights.cache_clear()


def new_process():
    """No index in memory, as in a process that has just started."""
    settle()
    bm25._shared_cache.cache_clear()


def redis_entries():
    return caches["bm25"].keys(f"*{installation_id()}*")


def empty_redis():
    """Deletes what this installation holds there: tests of other processes share the server."""
    caches["bm25"].delete_pattern(f"*{installation_id()}*")


def key(kb, at=None):
    return BM25Store._key(kb.pk, at or version(kb), kb.tokenizer_id)


def log(kb):
    return list(ChunkChange.objects.filter(knowledge_base_id=kb.pk).order_by("id").values_list("operation", "chunk_id"))


def sql(statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def at_once(count, function):
    """The results of as many threads, which start together."""
    barrier = threading.Barrier(count)

    def start():
        barrier.wait(PATIENCE)
        try:
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as threads:
        return [call.result(PATIENCE) for call in [threads.submit(start) for _ in range(count)]]
