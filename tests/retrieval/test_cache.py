import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat

import pytest

from retrieval.bm25 import OkapiIndex
from retrieval.cache import CacheKey, Found, TieredCache, TierStats, TierUnavailable
from retrieval.payload import PayloadCodec
from retrieval.postings import count_postings, hash_terms
from tests.fakes import Blob

KEY = CacheKey("installation", 7, 42, "jieba:1:abc", "f00d")
OTHER_KB = replace(KEY, kb_id=8)
CODEC = PayloadCodec(b"secret")


def decode(key: CacheKey, state: object) -> Blob:
    if not isinstance(state, bytes):
        raise ValueError("not bytes")  # noqa: TRY004 - what a decoder is asked to raise
    return Blob(state)


class DictTier:
    """A byte tier in memory, with one payload a knowledge base, that can be switched off."""

    def __init__(self, name: str, max_bytes: int = 1000):
        self.name = name
        self.entries: dict[int, tuple[CacheKey, bytes]] = {}
        self.is_up = True
        self._max_bytes = max_bytes

    def _reach(self) -> None:
        if not self.is_up:
            raise TierUnavailable(f"{self.name} refused the connection")

    def load(self, key: CacheKey) -> tuple[CacheKey, bytes] | None:
        self._reach()
        entry = self.entries.get(key.kb_id)
        return entry if entry and entry[0].serves(key) else None

    def store(self, key: CacheKey, payload: bytes) -> bool:
        self._reach()
        entry = self.entries.get(key.kb_id)
        if len(payload) > self._max_bytes or (entry and entry[0].version > key.version):
            return False
        self.entries[key.kb_id] = (key, payload)
        return True

    def drop(self, kb_id: int) -> None:
        self._reach()
        self.entries.pop(kb_id, None)


@pytest.fixture
def shared():
    return DictTier("shared")


@pytest.fixture
def stored():
    return DictTier("stored")


@pytest.fixture
def new_process(shared, stored):
    """Makes a cache with a memory of its own over the same byte tiers."""

    def make(max_bytes=1000, codec=CODEC, **options):
        return TieredCache(max_bytes, [shared, stored], codec, lambda blob: blob.content, decode, **options)

    return make


@pytest.fixture
def logged(caplog):
    def texts(level=logging.WARNING):
        return [record.getMessage() for record in caplog.records if record.levelno == level]

    caplog.set_level(logging.INFO, logger="retrieval.cache")
    return texts


def add(cache, key, content):
    """What a process does with an index that it has built."""
    blob = Blob(content)
    cache.keep(key, blob)
    cache.publish(key, blob)


def look_up(cache, key):
    """What a process does that needs an index: (content, version, tier)."""
    found = cache.live(key)
    if found is None:
        found = cache.stored(key)
        if found is None:
            return None
        cache.keep(found.key, found.value)
    return found.value.content, found.key.version, found.tier


def test_an_empty_cache_has_nothing(new_process):
    cache = new_process()

    assert (cache.live(KEY), cache.held(KEY), cache.stored(KEY)) == (None, None, None)


def test_what_was_kept_is_the_same_live_object_in_this_process_only(new_process):
    cache, blob = new_process(), Blob(b"index")

    cache.keep(KEY, blob)

    assert cache.live(KEY) == Found(blob, KEY, "process")
    assert new_process().stored(KEY) is None


def test_what_was_published_is_found_in_the_nearest_byte_tier_and_then_in_own_memory(new_process):
    add(new_process(), KEY, b"index")
    cache = new_process()

    assert look_up(cache, KEY) == (b"index", 42, "shared")
    assert look_up(cache, KEY) == (b"index", 42, "process")


def test_what_a_byte_tier_answers_is_not_put_into_memory_by_itself(new_process):
    add(new_process(), KEY, b"index")
    cache = new_process()

    cache.stored(KEY)

    assert cache.held(KEY) is None


def test_a_hit_in_the_last_tier_goes_up_into_those_above_under_its_own_key(new_process, shared, stored):
    add(new_process(), KEY, b"index")
    shared.entries.clear()

    assert look_up(new_process(), KEY.at(41)) == (b"index", 42, "stored")
    assert shared.entries == stored.entries
    assert look_up(new_process(), KEY) == (b"index", 42, "shared")


@pytest.mark.parametrize("find", [TieredCache.live, TieredCache.stored])
def test_a_newer_version_answers_for_an_older_one_under_its_own_key(new_process, find):
    cache = new_process()
    add(cache, KEY, b"index")

    found = find(cache, KEY.at(41))

    assert (found.value.content, found.key) == (b"index", KEY)


@pytest.mark.parametrize("find", [TieredCache.live, TieredCache.stored])
@pytest.mark.parametrize(
    "change",
    [{"installation": "other"}, {"kb_id": 8}, {"version": 43}, {"tokenizer_id": "rjieba"}, {"fingerprint": "beef"}],
)
def test_nothing_answers_for_a_newer_version_or_another_lineage(new_process, find, change):
    cache = new_process()
    add(cache, KEY, b"index")

    assert find(cache, replace(KEY, **change)) is None


def test_what_is_held_of_the_past_can_be_had_as_a_base(new_process):
    cache, blob = new_process(), Blob(b"index")
    cache.keep(KEY, blob)

    assert cache.held(KEY.at(43)) == Found(blob, KEY, "process")
    assert cache.stats()["process"] == TierStats(stores=1, nbytes=5)


def test_a_payload_is_decoded_with_the_key_it_is_kept_under(new_process, shared):
    add(new_process(), KEY, b"index")
    told = []
    cache = TieredCache(
        1000, [shared], CODEC, lambda blob: blob.content, lambda key, state: told.append(key) or Blob(state)
    )

    cache.stored(KEY.at(1))

    assert told == [KEY]


def test_drop_forgets_one_kb_in_every_tier(new_process, shared, stored):
    cache = new_process()
    add(cache, KEY, b"index")
    add(cache, OTHER_KB, b"other")

    cache.drop(KEY.kb_id)

    assert look_up(cache, KEY) is None
    assert list(shared.entries) == list(stored.entries) == [OTHER_KB.kb_id]
    assert look_up(cache, OTHER_KB) == (b"other", 42, "process")


def test_a_value_larger_than_the_memory_is_served_from_below_and_not_kept_with_one_warning(new_process, caplog):
    cache = new_process(max_bytes=3)
    add(cache, KEY, b"index")

    assert look_up(cache, KEY) == (b"index", 42, "shared")
    assert look_up(cache, KEY) == (b"index", 42, "shared")
    assert cache.stats()["process"] == TierStats(misses=2, errors=3)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["raise BM25_MEMORY_MB"]


def test_a_tier_that_is_down_is_a_miss_and_the_next_one_answers(new_process, shared):
    add(new_process(), KEY, b"index")
    shared.is_up = False

    assert look_up(new_process(), KEY) == (b"index", 42, "stored")


def test_with_every_byte_tier_down_the_process_still_serves_and_drops(new_process, shared, stored):
    shared.is_up = stored.is_up = False
    cache = new_process()

    assert look_up(cache, KEY) is None
    add(cache, KEY, b"index")
    assert look_up(cache, KEY) == (b"index", 42, "process")
    cache.drop(KEY.kb_id)
    assert look_up(cache, KEY) is None


def test_an_outage_warns_once_and_again_after_a_recovery(new_process, shared, logged):
    cache = new_process()
    outage = "cache tier shared is unavailable, going on without it: shared refused the connection"

    shared.is_up = False
    cache.stored(KEY)
    cache.publish(KEY, Blob(b"index"))
    cache.drop(KEY.kb_id)
    assert logged() == [outage]

    shared.is_up = True
    cache.stored(KEY)
    assert logged(logging.INFO) == ["cache tier shared is back"]

    shared.is_up = False
    cache.stored(KEY)
    assert logged() == [outage, outage]


@pytest.mark.parametrize("reach", [lambda cache: cache.publish(KEY, Blob(b"")), lambda cache: cache.drop(7)])
def test_any_contact_with_a_tier_ends_its_outage(new_process, shared, logged, reach):
    cache = new_process()
    shared.is_up = False
    cache.stored(KEY)

    shared.is_up = True
    reach(cache)

    assert logged(logging.INFO) == ["cache tier shared is back"]


def test_a_fault_that_no_tier_announced_is_not_hidden(new_process, shared, monkeypatch):
    def fail(key):
        raise ZeroDivisionError

    monkeypatch.setattr(shared, "load", fail)

    with pytest.raises(ZeroDivisionError):
        new_process().stored(KEY)


def unusable_payloads():
    good = CODEC.seal(str(KEY), b"index")
    return {
        "another secret": PayloadCodec(b"attacker").seal(str(KEY), b"index"),
        "another kb": CODEC.seal(str(OTHER_KB), b"index"),
        "another version": CODEC.seal(str(KEY.at(41)), b"index"),
        "truncated": good[:-1],
        "older format": b"\x00" + good[1:],
        "garbage": b"\xff" * 50,
        "empty": b"",
        "another state": CODEC.seal(str(KEY), {"format": 0}),
    }


@pytest.mark.parametrize("payload", unusable_payloads().values(), ids=unusable_payloads().keys())
def test_an_unusable_payload_is_a_miss_with_one_warning_and_is_overwritten(new_process, shared, logged, payload):
    shared.entries[7] = (KEY, payload)
    cache = new_process()

    assert cache.stored(KEY) is None
    assert cache.stored(KEY) is None
    assert len(logged()) == 1
    assert logged()[0].startswith(f"cache tier shared holds an unusable payload for {KEY}")

    add(cache, KEY, b"index")
    assert look_up(new_process(), KEY) == (b"index", 42, "shared")


def test_an_unusable_payload_is_overwritten_by_the_tier_below(new_process, shared):
    add(new_process(), KEY, b"index")
    shared.entries[7] = (KEY, b"garbage")

    assert look_up(new_process(), KEY) == (b"index", 42, "stored")
    assert look_up(new_process(), KEY) == (b"index", 42, "shared")


def test_each_unusable_payload_has_a_warning_of_its_own(new_process, shared, logged):
    cache = new_process()
    shared.entries = {key.kb_id: (key, b"garbage") for key in (KEY, OTHER_KB)}

    cache.stored(KEY)
    cache.stored(OTHER_KB)

    assert [str(key) in text for key, text in zip((KEY, OTHER_KB), logged(), strict=True)] == [True, True]


def test_a_state_too_large_to_seal_stays_in_this_process(new_process, shared, stored, logged):
    cache = new_process(codec=PayloadCodec(b"secret", max_bytes=10))

    add(cache, KEY, bytes(100))

    assert look_up(cache, KEY) == (bytes(100), 42, "process")
    assert (shared.entries, stored.entries) == ({}, {})
    assert logged() == [f"{KEY} stays in this process only: a state of 115 bytes is over the limit of 10"]


def test_a_tier_that_does_not_want_a_payload_leaves_it_to_the_others(shared, stored):
    shared = DictTier("shared", max_bytes=10)
    cache = TieredCache(1000, [shared, stored], CODEC, lambda blob: blob.content, decode)

    add(cache, KEY, b"index")

    assert (shared.entries, list(stored.entries)) == ({}, [7])
    assert [cache.stats()[tier].stores for tier in ("shared", "stored")] == [0, 1]


def test_each_tier_counts_its_own(new_process, shared, stored):
    add(new_process(), KEY, b"index")
    size = len(stored.entries[7][1])
    shared.entries[7] = (KEY, b"garbage")
    cache = new_process()

    look_up(cache, KEY)
    look_up(cache, KEY)
    look_up(cache, KEY.at(43))
    stored.is_up = False
    look_up(cache, KEY.at(44))
    cache.count(builds=1, updates=2)

    assert cache.stats() == {
        "process": TierStats(hits=1, misses=3, stores=1, nbytes=5, builds=1, updates=2),
        "shared": TierStats(misses=3, stores=1, errors=1, nbytes=size),
        "stored": TierStats(hits=1, misses=2, errors=1, nbytes=size),
    }


def test_the_observer_is_told_what_the_counters_add_up_to(new_process, shared, stored):
    told, memory_sizes = Counter(), []

    def observe(tier, field, amount):
        if (tier, field) == ("process", "nbytes"):
            memory_sizes.append(amount)
        else:
            told[tier, field] += amount

    cache = new_process(observe=observe)
    look_up(cache, KEY)
    add(cache, KEY, b"index")
    look_up(cache, KEY)
    cache.drop(KEY.kb_id)
    shared.entries[7] = (KEY, b"garbage")
    stored.is_up = False
    look_up(cache, KEY)
    cache.count(builds=1)

    stats = cache.stats()
    fields = ("hits", "misses", "stores", "errors", "nbytes", "builds", "updates")
    counted = {(tier, field): getattr(stats[tier], field) for tier in stats for field in fields}
    assert told == {place: amount for place, amount in counted.items() if amount}
    assert memory_sizes == [5, 0]


def test_counts_are_exact_under_threads(new_process):
    cache = new_process()
    cache.keep(KEY, Blob(b"index"))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(cache.live, repeat(KEY, 400)))

    assert {found.tier for found in answers} == {"process"}
    assert cache.stats()["process"].hits == 400


def test_an_index_comes_back_from_bytes_with_the_same_answers(shared):
    rows = [["知识", "库"], ["检索"], ["检索", "速度"]]
    counted = [count_postings(tokens) for tokens in rows]
    index = OkapiIndex.build(
        (chunk_id, postings.terms_bytes, postings.frequencies_bytes, postings.length)
        for chunk_id, postings in enumerate(counted)
    )
    here, there = (
        TieredCache(10_000, [shared], CODEC, OkapiIndex.state, lambda key, state: OkapiIndex.from_state(state))
        for _ in range(2)
    )
    terms = hash_terms(["知识", "库", "检索", "速度"])

    here.publish(KEY, index)
    found = there.stored(KEY)

    assert found.tier == "shared"
    assert [array.tolist() for array in found.value.search(terms, 3)] == [
        array.tolist() for array in index.search(terms, 3)
    ]
