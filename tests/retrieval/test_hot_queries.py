from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.hot_queries import HotQueryCache, HotQueryKey, ScopeVersion
from tests.retrieval.byte_tiers import Clock, DictTier

HANDBOOK, FAQ = ScopeVersion(1, 41, 42), ScopeVersion(2, 51, 52)
KEY = HotQueryKey("年假可以休几天？", (HANDBOOK, FAQ), "c0ffee", "zh-hans")

scopes = st.builds(ScopeVersion, st.integers(1, 3), st.integers(0, 3), st.integers(0, 3))
keys = st.builds(
    HotQueryKey,
    st.text("ab,", max_size=3),
    st.lists(scopes, max_size=2).map(tuple),
    st.text("ab", max_size=2),
    st.sampled_from(["", "en", "zh-hans"]),
)


@pytest.fixture
def cache():
    return HotQueryCache(100_000, DictTier(), 60, clock=Clock())


def test_a_response_is_found_under_its_key(cache):
    cache.put(KEY, b"{}")
    assert cache.get(KEY) == b"{}"


@pytest.mark.parametrize(
    "change",
    [
        {"query": "年假可以休几天?"},
        {"scope": (FAQ, HANDBOOK)},
        {"scope": (HANDBOOK,)},
        {"scope": (replace(HANDBOOK, version=43), FAQ)},
        {"scope": (replace(HANDBOOK, content_version=43), FAQ)},
        {"fingerprint": "beef"},
        {"language": "en"},
    ],
    ids=str,
)
def test_a_response_is_found_under_no_other_key(cache, change):
    cache.put(KEY, b"{}")
    assert cache.get(replace(KEY, **change)) is None


@given(one=keys, other=keys)
def test_keys_have_one_digest_exactly_where_they_are_equal(one, other):
    assert (one.digest() == other.digest()) == (one == other)


def test_a_query_that_is_no_valid_unicode_has_a_key_too():
    assert len(replace(KEY, query="\ud800").digest()) == 32


def test_another_process_finds_the_response():
    shared, clock = DictTier(), Clock()
    HotQueryCache(100_000, shared, 60, clock=clock).put(KEY, b"{}")
    other = HotQueryCache(100_000, shared, 60, clock=clock)
    assert other.get(KEY) == b"{}"
    assert other.stats()["shared"].hits == 1


def test_a_response_is_served_until_its_time_is_over():
    clock = Clock()
    cache = HotQueryCache(100_000, DictTier(), 60, clock=clock)
    cache.put(KEY, b"{}")
    clock.now += 60
    assert cache.get(KEY) is None
