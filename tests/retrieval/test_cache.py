import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.bm25 import OkapiIndex
from retrieval.cache import CacheKey, Found, MemoryTier, TieredCache, TierStats, TierUnavailable
from retrieval.payload import PayloadCodec
from retrieval.postings import count_postings, hash_terms

KEY = CacheKey("installation", 7, 42, "jieba:1:abc", "f00d")
CODEC = PayloadCodec(b"secret")


class Blob:
    """A cached value of a known size."""

    def __init__(self, content: bytes):
        self.content = content

    @property
    def nbytes(self) -> int:
        return len(self.content)


def decode(state: object) -> Blob:
    if not isinstance(state, bytes):
        raise ValueError("not bytes")  # noqa: TRY004 - what a decoder is asked to raise
    return Blob(state)


class DictTier:
    """A byte tier in memory that can be switched off."""

    def __init__(self, name: str):
        self.name = name
        self.payloads: dict[CacheKey, bytes] = {}
        self.is_up = True

    def _reach(self) -> None:
        if not self.is_up:
            raise TierUnavailable(f"{self.name} refused the connection")

    def load(self, key: CacheKey) -> bytes | None:
        self._reach()
        return self.payloads.get(key)

    def store(self, key: CacheKey, payload: bytes) -> None:
        self._reach()
        self.payloads[key] = payload

    def drop(self, kb_id: int) -> None:
        self._reach()
        self.payloads = {key: payload for key, payload in self.payloads.items() if key.kb_id != kb_id}


@pytest.fixture
def shared():
    return DictTier("shared")


@pytest.fixture
def stored():
    return DictTier("stored")


@pytest.fixture
def new_process(shared, stored):
    """Makes a cache with a memory of its own over the same byte tiers."""

    def make(max_bytes=1000, codec=CODEC):
        return TieredCache(MemoryTier(max_bytes), [shared, stored], codec, lambda blob: blob.content, decode)

    return make


@pytest.fixture
def warnings_of(caplog):
    def texts(level=logging.WARNING):
        return [record.getMessage() for record in caplog.records if record.levelno == level]

    caplog.set_level(logging.INFO, logger="retrieval.cache")
    return texts


def answer(found):
    return None if found is None else (found.value.content, found.tier)


def test_an_empty_cache_has_nothing(new_process):
    assert new_process().get(KEY) is None


def test_what_was_put_is_the_same_live_object_in_this_process(new_process):
    cache, blob = new_process(), Blob(b"index")

    cache.put(KEY, blob)

    assert cache.get(KEY) == Found(blob, "process")


def test_another_process_finds_it_in_the_nearest_byte_tier_and_then_in_its_own_memory(new_process):
    new_process().put(KEY, Blob(b"index"))
    cache = new_process()

    assert answer(cache.get(KEY)) == (b"index", "shared")
    assert answer(cache.get(KEY)) == (b"index", "process")


def test_a_hit_in_the_last_tier_is_promoted_to_those_above(new_process, shared):
    new_process().put(KEY, Blob(b"index"))
    shared.payloads.clear()

    assert answer(new_process().get(KEY)) == (b"index", "stored")
    assert answer(new_process().get(KEY)) == (b"index", "shared")


@pytest.mark.parametrize(
    "change",
    [{"installation": "other"}, {"kb_id": 8}, {"version": 43}, {"tokenizer_id": "rjieba"}, {"fingerprint": "beef"}],
)
def test_every_part_of_the_key_counts(new_process, change):
    cache = new_process()
    cache.put(KEY, Blob(b"index"))

    assert cache.get(replace(KEY, **change)) is None


@settings(deadline=None)
@given(parts=st.tuples(*[st.tuples(st.text("a|1"), st.integers(0, 11), st.integers(0, 11), st.text("a|1"))] * 2))
def test_different_keys_have_different_texts(parts):
    texts = set()
    for installation, kb_id, version, tokenizer_id in set(parts):
        try:
            texts.add(str(CacheKey(installation, kb_id, version, tokenizer_id, "f")))
        except ValueError:
            assert "|" in installation + tokenizer_id
            return
    assert len(texts) == len(set(parts))


def test_drop_forgets_one_kb_in_every_tier(new_process, shared, stored):
    cache, other = new_process(), replace(KEY, kb_id=8)
    cache.put(KEY, Blob(b"index"))
    cache.put(other, Blob(b"other"))

    cache.drop(KEY.kb_id)

    assert cache.get(KEY) is None
    assert list(shared.payloads) == list(stored.payloads) == [other]
    assert answer(cache.get(other)) == (b"other", "process")


def test_a_tier_that_is_down_is_a_miss_and_the_next_one_answers(new_process, shared):
    new_process().put(KEY, Blob(b"index"))
    shared.is_up = False

    assert answer(new_process().get(KEY)) == (b"index", "stored")


def test_with_every_byte_tier_down_the_process_still_serves_and_drops(new_process, shared, stored):
    shared.is_up = stored.is_up = False
    cache = new_process()

    assert cache.get(KEY) is None
    cache.put(KEY, Blob(b"index"))
    assert answer(cache.get(KEY)) == (b"index", "process")
    cache.drop(KEY.kb_id)
    assert cache.get(KEY) is None


def test_an_outage_warns_once_and_again_after_a_recovery(new_process, shared, warnings_of):
    cache = new_process()
    outage = "cache tier shared is unavailable, going on without it: shared refused the connection"

    shared.is_up = False
    cache.get(KEY)
    cache.put(KEY, Blob(b"index"))
    cache.drop(KEY.kb_id)
    assert warnings_of() == [outage]

    shared.is_up = True
    cache.get(KEY)
    assert warnings_of(logging.INFO) == ["cache tier shared is back"]

    shared.is_up = False
    cache.get(KEY)
    assert warnings_of() == [outage, outage]


def test_a_fault_that_no_tier_announced_is_not_hidden(new_process, shared, monkeypatch):
    def fail(key):
        raise ZeroDivisionError

    monkeypatch.setattr(shared, "load", fail)

    with pytest.raises(ZeroDivisionError):
        new_process().get(KEY)


def unusable_payloads():
    good = CODEC.seal(str(KEY), b"index")
    return {
        "another secret": PayloadCodec(b"attacker").seal(str(KEY), b"index"),
        "another kb": CODEC.seal(str(replace(KEY, kb_id=8)), b"index"),
        "truncated": good[:-1],
        "older format": b"\x00" + good[1:],
        "garbage": b"\xff" * 50,
        "empty": b"",
        "another state": CODEC.seal(str(KEY), {"format": 0}),
    }


@pytest.mark.parametrize("payload", unusable_payloads().values(), ids=unusable_payloads().keys())
def test_an_unusable_payload_is_a_miss_with_one_warning_and_is_overwritten(new_process, shared, warnings_of, payload):
    shared.payloads[KEY] = payload
    cache = new_process()

    assert cache.get(KEY) is None
    assert cache.get(KEY) is None
    assert len(warnings_of()) == 1
    assert warnings_of()[0].startswith(f"cache tier shared holds an unusable payload for {KEY}")

    cache.put(KEY, Blob(b"index"))
    assert answer(new_process().get(KEY)) == (b"index", "shared")


def test_an_unusable_payload_is_overwritten_by_the_tier_below(new_process, shared):
    new_process().put(KEY, Blob(b"index"))
    shared.payloads[KEY] = b"garbage"

    assert answer(new_process().get(KEY)) == (b"index", "stored")
    assert answer(new_process().get(KEY)) == (b"index", "shared")


def test_a_value_larger_than_the_memory_is_served_from_below_and_not_kept(new_process):
    cache = new_process(max_bytes=3)
    cache.put(KEY, Blob(b"index"))

    assert answer(cache.get(KEY)) == (b"index", "shared")
    assert answer(cache.get(KEY)) == (b"index", "shared")
    assert cache.stats()["process"] == TierStats(misses=2)


def test_a_state_too_large_to_seal_stays_in_this_process(new_process, shared, warnings_of):
    cache = new_process(codec=PayloadCodec(b"secret", max_bytes=10))

    cache.put(KEY, Blob(bytes(100)))

    assert cache.get(KEY).tier == "process"
    assert shared.payloads == {}
    assert warnings_of() == [f"{KEY} stays in this process only: a state of 115 bytes is over the limit of 10"]


def test_each_tier_counts_its_own(new_process, shared, stored):
    new_process().put(KEY, Blob(b"index"))
    shared.payloads[KEY] = b"garbage"
    cache = new_process()

    cache.get(KEY)
    cache.get(KEY)
    cache.get(replace(KEY, version=43))
    stored.is_up = False
    cache.get(replace(KEY, version=44))

    assert cache.stats() == {
        "process": TierStats(hits=1, misses=3, stores=1),
        "shared": TierStats(misses=3, stores=1, errors=1),
        "stored": TierStats(hits=1, misses=2, errors=1),
    }


def test_counts_are_exact_under_threads(new_process):
    cache = new_process()
    cache.put(KEY, Blob(b"index"))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(cache.get, repeat(KEY, 400)))

    assert {found.tier for found in answers} == {"process"}
    assert cache.stats()["process"].hits == 400


def test_memory_evicts_the_least_recently_used_when_its_bytes_are_spent():
    memory = MemoryTier(10)
    keys = [replace(KEY, kb_id=kb_id) for kb_id in (1, 2, 3)]

    memory.put(keys[0], Blob(b"1234"))
    memory.put(keys[1], Blob(b"1234"))
    memory.get(keys[0])
    memory.put(keys[2], Blob(b"1234"))

    assert [memory.get(key) is not None for key in keys] == [True, False, True]
    assert memory.nbytes == 8


def test_memory_counts_a_replaced_value_once():
    memory = MemoryTier(10)

    memory.put(KEY, Blob(b"1234567"))
    memory.put(KEY, Blob(b"12345678"))

    assert memory.nbytes == 8
    assert memory.get(KEY).content == b"12345678"


def test_memory_lets_go_of_earlier_versions_of_a_kb_and_keeps_later_ones():
    memory = MemoryTier(100)
    older, newer, other = replace(KEY, version=41), replace(KEY, version=43), replace(KEY, kb_id=8, version=1)

    for key in (older, other, newer, KEY):
        memory.put(key, Blob(b"1"))

    assert [memory.get(key) is not None for key in (older, other, newer, KEY)] == [False, True, True, True]


@settings(deadline=None)
@given(puts=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 12))))
def test_memory_never_exceeds_its_bound(puts):
    memory = MemoryTier(10)
    keys = set()

    for kb_id, version, size in puts:
        key = replace(KEY, kb_id=kb_id, version=version)
        keys.add(key)
        assert memory.put(key, Blob(bytes(size))) == (size <= 10)
        held = [value.nbytes for value in map(memory.get, sorted(keys, key=str)) if value is not None]
        assert memory.nbytes == sum(held) <= 10

    for kb_id in range(1, 5):
        memory.drop(kb_id)
    assert memory.nbytes == 0


def test_an_index_comes_back_from_bytes_with_the_same_answers(shared):
    rows = [["知识", "库"], ["检索"], ["检索", "速度"]]
    counted = [count_postings(tokens) for tokens in rows]
    index = OkapiIndex.build(
        (chunk_id, postings.terms_bytes, postings.frequencies_bytes, postings.length)
        for chunk_id, postings in enumerate(counted)
    )
    caches = [TieredCache(MemoryTier(10_000), [shared], CODEC, OkapiIndex.state, OkapiIndex.from_state) for _ in "ab"]
    terms = hash_terms(list(chain.from_iterable(rows)))

    caches[0].put(KEY, index)
    found = caches[1].get(KEY)

    assert found.tier == "shared"
    assert [array.tolist() for array in found.value.search(terms, 3)] == [
        array.tolist() for array in index.search(terms, 3)
    ]
