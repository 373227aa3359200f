"""The keys of the cache, and its memory of live objects."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from retrieval.cache import CacheKey, TieredCache
from retrieval.payload import PayloadCodec
from tests.fakes import Blob

KEY = CacheKey("installation", 7, 42, "jieba:1:abc", "f00d")
OTHER_KB = replace(KEY, kb_id=8)

keys = st.builds(
    CacheKey, *[st.text("a1:", max_size=3), st.integers(0, 11), st.integers(0, 11), *[st.text("a1:", max_size=3)] * 2]
)


class Memory(TieredCache[Blob]):
    """A cache without byte tiers."""

    def __init__(self, max_bytes: int):
        super().__init__(
            max_bytes, [], PayloadCodec(b"secret"), lambda blob: blob.content, lambda _key, state: Blob(state)
        )

    @property
    def nbytes(self) -> int:
        return self.stats()["process"].nbytes

    def put(self, key: CacheKey, value: Blob) -> bool:
        stores = self.stats()["process"].stores
        self.keep(key, value)
        return self.stats()["process"].stores > stores


@given(key=keys)
def test_a_keys_text_leads_back_to_it(key):
    assert CacheKey.parse(str(key)) == key


@given(one=keys, other=keys)
def test_different_keys_have_different_texts(one, other):
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize("part", ["installation", "tokenizer_id", "fingerprint"])
def test_no_part_of_a_key_may_hold_the_separator(part):
    with pytest.raises(ValueError, match=r"must not contain '\|'"):
        replace(KEY, **{part: "a|b"})


@pytest.mark.parametrize("text", ["", "garbage", "a|1|2|b", "a|1|2|b|c|d", "a|one|2|b|c", "a|1|two|b|c"])
def test_a_text_that_is_no_key_is_refused(text):
    with pytest.raises(ValueError, match=r"unpack|int\(\)"):
        CacheKey.parse(text)


@given(key=keys, version=st.integers(0, 11))
def test_a_key_serves_its_own_version_and_earlier_ones(key, version):
    assert key.serves(key.at(version)) == (key.version >= version)


@pytest.mark.parametrize(
    "change", [{"installation": "other"}, {"kb_id": 8}, {"tokenizer_id": "rjieba"}, {"fingerprint": "beef"}]
)
def test_a_key_serves_no_other_lineage(change):
    assert not KEY.serves(replace(KEY, version=1, **change))


def test_memory_evicts_the_least_recently_used_when_its_bytes_are_spent():
    memory = Memory(10)
    one, two, three = (replace(KEY, kb_id=kb_id) for kb_id in (1, 2, 3))

    memory.put(one, Blob(b"1234"))
    memory.put(two, Blob(b"1234"))
    memory.live(one)
    memory.put(three, Blob(b"1234"))

    assert [memory.live(key) is not None for key in (one, two, three)] == [True, False, True]
    assert memory.nbytes == 8


def test_memory_counts_a_replaced_value_once():
    memory = Memory(10)

    memory.put(KEY, Blob(b"1234567"))
    memory.put(KEY, Blob(b"12345678"))

    assert memory.nbytes == 8
    assert memory.live(KEY).value.content == b"12345678"


def test_memory_keeps_the_newest_version_whatever_the_order():
    memory = Memory(100)

    kept = [memory.put(KEY.at(version), Blob(b"1")) for version in (41, 43, 42)]

    assert kept == [True, True, False]
    assert memory.live(KEY).key == KEY.at(43)
    assert memory.nbytes == 1


def test_memory_holds_the_newest_once_whichever_thread_comes_last():
    memory = Memory(100)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda version: memory.keep(KEY.at(version), Blob(b"1")), [*range(400), *range(399, 0, -1)]))

    assert memory.live(KEY.lineage).key.version == 399
    assert memory.nbytes == 1


def test_memory_holds_the_lineages_of_a_kb_side_by_side_and_drops_them_together():
    memory = Memory(100)
    old_tokenizer, new_tokenizer = KEY, replace(KEY, tokenizer_id="rjieba")
    for key in (old_tokenizer, new_tokenizer, OTHER_KB):
        memory.put(key, Blob(b"1"))
    assert memory.nbytes == 3

    memory.drop(KEY.kb_id)

    assert [memory.live(key) is not None for key in (old_tokenizer, new_tokenizer, OTHER_KB)] == [False, False, True]


@given(puts=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 12))))
def test_memory_never_exceeds_its_bound_nor_goes_back(puts):
    memory = Memory(10)
    lineages = [replace(KEY, kb_id=kb_id).lineage for kb_id in range(1, 5)]

    for kb_id, version, size in puts:
        before = memory.live(lineages[kb_id - 1])
        is_older = before is not None and before.key.version > version
        assert memory.put(lineages[kb_id - 1].at(version), Blob(bytes(size))) == (size <= 10 and not is_older)
        held = [entry for entry in map(memory.live, lineages) if entry is not None]
        assert memory.nbytes == sum(found.value.nbytes for found in held) <= 10
        assert all(found.key.version >= version for found in held if found.key.kb_id == kb_id)

    for kb_id in range(1, 5):
        memory.drop(kb_id)
    assert memory.nbytes == 0
