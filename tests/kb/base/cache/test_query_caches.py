"""The caches of queries over a real Redis: up, dead, frozen, emptied or lying."""

import logging
import os
import signal
from functools import lru_cache

import pytest
from django.core.cache import caches

from kb.base import cache as query_caches
from kb.base.cache import (
    MAX_SHARED_BYTES,
    PAUSE_SECONDS,
    SharedRedis,
    SignedBytes,
    hot_queries,
    query_embedder,
    shared_redis,
)
from retrieval.embedders.hashing import HashingEmbedder
from retrieval.embedders.openai_http import OpenAIEmbedder
from retrieval.execution import CircuitBreaker
from tests.kb.index.searching import at_once
from tests.own_redis import OwnRedis
from tests.retrieval.byte_tiers import Clock

pytestmark = pytest.mark.django_db

KEY = b"\x03" * 32
NAME = b"\x01" * 32


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = OwnRedis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def redis(server, settings, clock, monkeypatch):
    """The server, up and empty, as the caches' shared tier in a process that has just started."""
    server.start()
    settings.CACHES = {**settings.CACHES, "bm25": {**settings.CACHES["bm25"], "LOCATION": server.url()}}
    caches["bm25"].clear()
    breakers = {"failures_to_open": 1, "seconds_open": PAUSE_SECONDS, "clock": clock}
    connect = lru_cache(maxsize=None)(lambda url: SharedRedis(CircuitBreaker(**breakers)))
    monkeypatch.setattr(query_caches, "_redis_at", connect)
    query_caches.forget()
    yield server
    query_caches.forget()


@pytest.fixture
def client(redis):
    with redis._client() as client:
        client.select(0)
        yield client


@pytest.fixture
def tier():
    return SignedBytes("test")


@pytest.fixture
def frozen(redis):
    """A server that takes connections and answers nothing."""
    pid = int((redis.directory / "redis.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


def warnings(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


# -- Redis up and down -----------------------------------------------------------------------------------------------
def test_a_response_is_found_by_another_process():
    hot_queries().put(KEY, b"{}")
    query_caches.forget()
    assert hot_queries().get(KEY).value == b"{}"
    assert hot_queries().stats()["shared"].hits == 1
    assert not shared_redis().is_away


def test_a_vector_is_found_by_another_process():
    query_caches._query_vectors().publish(KEY, b"vector")
    query_caches.forget()
    found = query_caches._query_vectors().get(KEY)
    assert (found.value, found.tier) == (b"vector", "shared")


def test_an_entry_leaves_redis_when_its_time_is_over(tier, client):
    tier.put(NAME, b"value", 60)
    [name] = client.keys("*")
    assert 0 < client.pttl(name) <= 60_000


def test_another_installation_finds_nothing(tier, monkeypatch):
    tier.put(NAME, b"value", 60)
    monkeypatch.setattr(query_caches, "installation_id", lambda: "another")
    assert SignedBytes("test").get(NAME) is None


def test_what_is_too_large_stays_in_this_process(tier, client):
    assert not tier.put(NAME, bytes(MAX_SHARED_BYTES + 1), 60)
    assert client.dbsize() == 0


def test_a_dead_redis_is_a_miss_and_told_once(redis, tier, clock, caplog):
    redis.kill()
    found = []
    for _ in range(3):
        found += [tier.get(NAME), tier.put(NAME, b"value", 60)]
        clock.now += PAUSE_SECONDS
    assert found == [None, False] * 3
    assert shared_redis().is_away
    assert len(warnings(caplog)) == 1


def test_a_dead_redis_leaves_what_this_process_holds(redis):
    redis.kill()
    hot_queries().put(KEY, b"{}")
    assert hot_queries().get(KEY).value == b"{}"


def test_after_a_failure_redis_is_left_alone_until_the_pause_is_over(redis, tier, clock, caplog):
    caplog.set_level(logging.INFO)
    redis.kill()
    tier.get(NAME)
    redis.start()
    assert not tier.put(NAME, b"value", 60)
    assert shared_redis().is_away

    clock.now += PAUSE_SECONDS
    assert tier.put(NAME, b"value", 60)
    assert not shared_redis().is_away
    assert "have Redis again" in caplog.text


def test_that_redis_is_back_is_seen_although_nothing_is_looked_up(redis, tier, clock):
    redis.kill()
    tier.get(NAME)
    redis.start()
    clock.now += PAUSE_SECONDS
    assert not shared_redis().is_away


def test_a_redis_that_nobody_looked_up_anything_in_is_missed_too(redis):
    redis.kill()
    assert shared_redis().is_away


def test_a_redis_that_has_just_answered_is_not_asked_how_it_is(redis, tier, monkeypatch):
    monkeypatch.setattr("kb.base.cache.LOOK_SECONDS", 600.0)
    tier.get(NAME)
    redis.kill()
    assert not shared_redis().is_away


def test_a_frozen_redis_is_a_miss(frozen, tier, caplog):
    assert tier.get(NAME) is None
    assert shared_redis().is_away
    assert len(warnings(caplog)) == 1


def test_a_redis_without_room_refuses_and_is_not_away(redis, tier, client, caplog):
    client.config_set("maxmemory", "1mb")
    try:
        assert not tier.put(NAME, bytes(MAX_SHARED_BYTES), 60)
    finally:
        client.config_set("maxmemory", "0")
    assert not shared_redis().is_away
    assert "Redis refuses" in caplog.text


# -- Redis lying -----------------------------------------------------------------------------------------------------
def replace_with(change):
    def lie(client, name):
        client.set(name, change(client.get(name)))

    return lie


def put_another_keys_value(client, name):
    SignedBytes("test").put(b"\x02" * 32, b"another", 60)
    [other] = set(client.keys("*")) - {name}
    client.set(name, client.get(other))


def put_another_kinds_value(client, name):
    SignedBytes("other").put(NAME, b"another", 60)
    [other] = set(client.keys("*")) - {name}
    client.set(name, client.get(other))


def put_a_list(client, name):
    client.delete(name)
    client.rpush(name, "not", "a", "string")


LIES = {
    "garbage": replace_with(lambda value: b"\x00garbage" * 50),
    "nothing": replace_with(lambda value: b""),
    "a truncated value": replace_with(lambda value: value[:-1]),
    "a bare value": replace_with(lambda value: value[32:]),
    "a flipped bit": replace_with(lambda value: value[:-1] + bytes([value[-1] ^ 1])),
    "another key's value": put_another_keys_value,
    "another kind's value": put_another_kinds_value,
    "a list": put_a_list,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_redis_is_a_miss_with_one_warning_and_redis_is_not_away(tier, client, caplog, lie):
    tier.put(NAME, b"value", 60)
    [name] = client.keys("*")
    LIES[lie](client, name)
    assert tier.get(NAME) is None
    assert len(warnings(caplog)) == 1
    assert not shared_redis().is_away


@pytest.mark.parametrize("lie", sorted(LIES))
def test_after_a_lie_in_redis_a_value_gets_in(tier, client, lie):
    tier.put(NAME, b"value", 60)
    [name] = client.keys("*")
    LIES[lie](client, name)
    tier.get(NAME)
    assert tier.put(NAME, b"newer", 60)
    assert tier.get(NAME) == b"newer"


def test_a_value_signed_with_another_secret_is_a_miss(tier, settings):
    tier.put(NAME, b"value", 60)
    settings.SECRET_KEY = "another"
    assert tier.get(NAME) is None


def test_many_values_of_another_secret_are_one_warning(tier, settings, caplog):
    names = [bytes([number]) * 32 for number in range(5)]
    for name in names:
        tier.put(name, b"value", 60)
    settings.SECRET_KEY = "another"
    assert [tier.get(name) for name in names] == [None] * 5
    assert len(warnings(caplog)) == 1


# -- One a process ---------------------------------------------------------------------------------------------------
def served(model):
    return OpenAIEmbedder(f"openai:{model}", base_url="http://127.0.0.1:9/v1")


def test_a_model_has_one_embedder_of_queries_and_so_one_breaker():
    one = served("one")
    assert query_embedder(one) is query_embedder(one)
    assert query_embedder(served("one")) is not query_embedder(served("two"))


def test_a_model_that_moved_to_another_server_is_not_asked_at_the_old_one():
    old = query_embedder(served("one"))
    moved = OpenAIEmbedder("openai:one", base_url="http://127.0.0.1:10/v1")
    assert query_embedder(moved) is not old
    assert query_embedder(moved).embedder is moved


def test_so_many_embedders_are_held_and_no_more():
    first = query_embedder(HashingEmbedder())
    for number in range(query_caches.MAX_QUERY_EMBEDDERS):
        query_embedder(served(str(number)))
    assert query_embedder(first.embedder) is not first


def test_the_hashing_embedder_needs_no_guard_and_others_have_one():
    assert query_embedder(HashingEmbedder())._guard is None
    assert query_embedder(served("one"))._guard is not None


@pytest.mark.django_db(transaction=True)
def test_first_searches_at_the_same_moment_share_one_cache():
    assert len({id(cache) for cache in at_once(8, hot_queries)}) == 1
