from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st

from retrieval.cache import ENTRY_OVERHEAD_BYTES, ByteCache, Recent
from tests.retrieval.byte_tiers import Clock, DictTier

TTL = 60


def room_for(count, size=4):
    return count * (size + ENTRY_OVERHEAD_BYTES)


@pytest.fixture
def shared():
    return DictTier()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def new_process(shared, clock):
    def make(memory_bytes=10_000, **options):
        return ByteCache(memory_bytes, shared, TTL, clock=clock, **options)

    return make


@pytest.fixture
def cache(new_process):
    return new_process()


def test_what_was_kept_is_found_in_memory(cache, shared):
    cache.keep(b"k", b"value")
    assert (cache.get(b"k").value, cache.get(b"k").tier) == (b"value", "memory")
    assert not shared.asked


def test_what_was_published_is_found_by_another_process_and_held_by_it(new_process, cache, shared):
    cache.publish(b"k", b"value")
    other = new_process()
    assert [(other.get(b"k").value, tier) for tier in ("shared", "memory")] == [
        (b"value", "shared"),
        (b"value", "memory"),
    ]
    assert shared.asked == [b"k"]


def test_the_tier_that_answered_is_told(new_process, cache):
    cache.publish(b"k", b"value")
    other = new_process()
    assert [other.get(b"k").tier, other.get(b"k").tier] == ["shared", "memory"]


def test_what_nobody_has_is_not_found(cache):
    assert cache.get(b"k") is None


def test_a_shared_tier_that_is_away_is_a_miss_and_memory_serves_on(cache, shared):
    shared.away = True
    cache.put(b"k", b"value")
    assert cache.get(b"k").value == b"value"
    assert cache.get(b"other") is None


@pytest.mark.parametrize("payload", [b"", b"short"])
def test_a_shared_payload_without_a_time_is_a_miss(cache, shared, payload):
    shared.entries[b"k"] = payload
    assert cache.get(b"k") is None


def test_an_entry_ends_with_its_time(cache, clock):
    cache.keep(b"k", b"value")
    clock.now += TTL - 1
    assert cache.get(b"k") is not None
    clock.now += 1
    assert cache.get(b"k") is None


def test_going_up_from_the_shared_tier_does_not_lengthen_an_entrys_time(new_process, cache, clock):
    cache.publish(b"k", b"value")
    other = new_process()
    clock.now += TTL - 1
    assert other.get(b"k").tier == "shared"
    clock.now += 1
    assert other.get(b"k") is None


def test_an_expired_entry_gives_its_memory_back(new_process, clock):
    cache = new_process(room_for(2))
    cache.keep(b"k", b"1234")
    clock.now += TTL
    assert cache.held(b"k") is None
    assert cache.stats()["memory"].nbytes == 0


def test_the_least_recently_used_goes_when_the_bytes_are_spent(new_process):
    cache = new_process(room_for(2))
    cache.keep(b"one", b"1234")
    cache.keep(b"two", b"1234")
    cache.get(b"one")
    cache.keep(b"three", b"1234")
    assert [cache.get(key) is not None for key in (b"one", b"two", b"three")] == [True, False, True]


def test_what_is_larger_than_all_memory_is_not_held_and_drives_nothing_out(new_process):
    cache = new_process(room_for(1))
    cache.keep(b"small", b"1234")
    cache.keep(b"large", b"12345")
    assert cache.get(b"large") is None
    assert cache.get(b"small") is not None


def test_a_replaced_value_counts_once():
    memory = Recent(room_for(2))
    for value in (b"1234", b"4321"):
        memory.put(b"k", value, room_for(1))
    assert memory.get(b"k") == b"4321"
    assert memory.nbytes == room_for(1)


@given(puts=st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.binary(max_size=12))))
def test_memory_never_exceeds_its_bound(puts):
    memory = Recent(10)
    for key, value in puts:
        memory.put(key, value, len(value))
        held = {each for each, _ in puts if memory.get(each) is not None}
        assert memory.nbytes == sum(len(memory.get(each)) for each in held) <= 10


def test_threads_leave_the_count_of_bytes_right():
    memory = Recent(12)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: memory.put(number % 7, b"1234", 4), range(2_000)))
    held = [memory.get(number) for number in range(7)]
    assert memory.nbytes == sum(len(value) for value in held if value) == 12


def test_look_ups_and_stores_are_counted_by_tier(new_process, shared):
    told = []
    cache = new_process(observe=lambda *count: told.append(count))
    cache.get(b"k")
    cache.put(b"k", b"value")
    cache.get(b"k")
    shared.away = True
    cache.publish(b"k", b"value")

    memory, behind = cache.stats()["memory"], cache.stats()["shared"]
    assert (memory.hits, memory.misses, memory.stores, memory.nbytes) == (1, 1, 1, 5 + ENTRY_OVERHEAD_BYTES)
    assert (behind.hits, behind.misses, behind.stores) == (0, 1, 1)
    assert told == [
        ("memory", "misses", 1),
        ("shared", "misses", 1),
        ("memory", "stores", 1),
        ("shared", "stores", 1),
        ("memory", "hits", 1),
    ]


def test_who_only_looks_counts_nothing_and_brings_nothing_nearer(cache, new_process):
    cache.put(b"key", b"value")
    other = new_process()

    assert cache.peek(b"key").tier == "memory"
    assert [other.peek(b"key").tier for _ in range(2)] == ["shared", "shared"]
    assert other.peek(b"other") is None
    assert other.stats()["memory"].misses == other.stats()["shared"].misses == 0
