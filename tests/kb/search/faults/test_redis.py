"""Without Redis every process keeps caches of its own: searches answer as before, say so, and stop saying it."""

import pytest
from django.core.cache import caches

from kb.base.cache import PAUSE_SECONDS, forget, shared_redis
from retrieval.execution import CircuitBreaker
from tests.kb.index.searching import new_process, settle
from tests.kb.search.faults.searches import QUERY, WARRANTY, ask, channels, notes, texts
from tests.own_redis import OwnRedis

ANOTHER = f"{QUERY}？"  # whose vector no cache holds, so that Redis is asked
AWAY = [("cache", "shared_cache_unavailable")]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = OwnRedis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis(server, settings, clock, models):
    """The caches' server, up, empty and asked by a client that goes by the clock."""
    assert server.start()
    settings.CACHES = {**settings.CACHES, "bm25": {**settings.CACHES["bm25"], "LOCATION": server.url()}}
    caches["bm25"].clear()
    forget()
    shared_redis()._breaker = CircuitBreaker(failures_to_open=1, seconds_open=PAUSE_SECONDS, clock=clock)
    return server


@pytest.fixture
def before(redis, kb):
    return ask(kb)


def test_a_search_without_redis_finds_the_same_and_says_so(redis, kb, before):
    redis.kill()

    result = ask(kb, query=ANOTHER)

    assert notes(result) == AWAY
    assert texts(result)[0] == texts(before)[0] == WARRANTY
    assert channels(result) == {"vector", "bm25"}


def test_a_process_that_starts_without_redis_has_the_keyword_index_from_the_database(redis, kb, before):
    settle()
    redis.kill()
    new_process()

    result = ask(kb, query=ANOTHER)

    assert notes(result) == AWAY
    assert channels(result) == {"vector", "bm25"}
    assert [span.detail["cache_tier"] for span in result.spans if span.stage == "bm25"] == ["database"]


def test_what_is_cached_in_the_process_needs_no_redis_but_the_note_stays(redis, kb, before):
    redis.kill()
    ask(kb, query=ANOTHER)

    assert notes(ask(kb)) == AWAY


def test_when_redis_is_back_the_note_goes_without_a_restart(redis, kb, before, clock):
    redis.kill()
    assert notes(ask(kb, query=ANOTHER)) == AWAY
    assert redis.start()
    assert notes(ask(kb)) == AWAY  # it is not asked again at once

    clock.now += PAUSE_SECONDS

    assert notes(ask(kb)) == []
