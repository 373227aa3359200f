"""Searches of the fault matrix, what they say is missing, and the breakers and clocks that they run under."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

from kb.base import cache as query_caches
from kb.base.db.transactions import Purpose, try_lock
from kb.index import bm25
from kb.index.bm25 import BM25Store
from kb.providers import embedding_models as providers
from kb.search.services.search import MAX_LATENCY_BUDGET_MS, SearchRequest, search
from retrieval.execution import CircuitBreaker
from retrieval.query_vectors import PATIENCE_SECONDS
from tests.factories import principal
from tests.kb.index.searching import new_process, settle

MODEL = "openai:small"
QUERY = "智能温控器的保修期"
WARRANTY, POWER = "智能温控器的保修期是两年", "安装智能温控器前请先关闭电源"
OTHERS = ("智能温控器的说明书在盒子里", "员工每年享有五天带薪年假")
DIMENSION = 64
AT_ONCE = {"Retry-After": "0"}  # clients that try a second time do not wait for it


def of_letters(body):
    """Vectors that are the nearer, the more characters two texts share."""
    letters = [{ord(letter) % DIMENSION for letter in text} for text in body["input"]]
    return [[float(place in held) for place in range(DIMENSION)] for held in letters]


def ask(*kbs, query=QUERY, overrides=None, **fields):
    """The result of a search by the owner, through the service that the API calls; without a gate, unless asked for."""
    request = SearchRequest(
        query=query,
        knowledge_base_ids=[kb.pk for kb in kbs],
        overrides={"score_threshold": 0, **(overrides or {})},
        log=False,
        **fields,
    )
    return search(principal(kbs[0].owner), request).result


def notes(result):
    return [(each.stage, each.code.value) for each in result.degraded]


def texts(result):
    return [hit.passage.text for hit in result.hits]


def channels(result):
    """Those that found any of the results."""
    stages = {"characters", "fused", "rerank"}
    return {channel for hit in result.hits for channel in hit.ranks if channel not in stages}


def embedder_breaker(clock, model_id=MODEL, patience_s=PATIENCE_SECONDS):
    """Gives the process's guard of an embedding model a breaker that goes by the clock, and returns it."""
    held = query_caches.query_embedder(providers.embedder(model_id))
    held._patience_s = patience_s
    held._guard.breaker = CircuitBreaker(clock=clock)
    return held._guard.breaker


def out_of_time(monkeypatch):
    """Whoever waits for a keyword index finds the time of any search over, and the other channels have all of it."""
    ahead = 2 * MAX_LATENCY_BUDGET_MS / 1_000
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + ahead, perf_counter=time.perf_counter, sleep=time.sleep
    )
    monkeypatch.setattr(bm25, "time", clock)


@contextmanager
def building(kb):
    """Nobody has the keyword index of a knowledge base, and another process holds the lock under which it is built."""
    new_process()
    BM25Store().invalidate(kb.pk)
    with try_lock(Purpose.BUILD_INDEX, kb.pk) as taken:
        assert taken
        yield
    settle()
