import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.dedupe import NEIGHBOURS, Sketches, candidate_pairs, groups_of, shared_shares

RANDOM = np.random.default_rng(7)


def text(size):
    return np.unique(RANDOM.integers(0, 2**63, size=size, dtype=np.uint64))


def like(terms, share):
    """A text of as many terms that has so much of all of both in common with another."""
    kept = round(2 * len(terms) * share / (1 + share))
    return np.unique(np.concatenate([terms[:kept], text(len(terms) - kept)]))


def sketched(texts):
    starts = np.cumsum([0, *(len(each) for each in texts[:-1])]).astype(np.int64)
    return Sketches.of(np.concatenate(texts), starts)


@pytest.mark.parametrize(("share", "least"), [(1.0, 200), (0.95, 200), (0.9, 199), (0.8, 190)])
def test_pairs_that_are_alike_are_candidates(share, least):
    texts = [each for _ in range(200) for one in [text(40)] for each in (one, like(one, share))]

    pairs = candidate_pairs(sketched(texts), 0.8)

    assert len(set(map(tuple, pairs.tolist())) & {(at, at + 1) for at in range(0, 400, 2)}) >= least


def test_texts_that_have_little_in_common_are_no_candidates():
    shared = text(10)
    texts = [np.unique(np.concatenate([shared, text(40)])) for _ in range(500)]

    assert len(candidate_pairs(sketched(texts), 0.8)) == 0


def test_a_phrase_of_all_texts_makes_no_square_of_them():
    one = text(20)

    pairs = candidate_pairs(sketched([one] * 1_000), 0.8)

    assert len(pairs) <= 1_000 * NEIGHBOURS
    assert [group.tolist() for group in groups_of(pairs, 1_000)] == [list(range(1_000))]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_texts_have_no_pairs(count):
    none = np.empty(0, dtype=np.int64)
    sketches = Sketches.joined([Sketches.of(none.astype(np.uint64), none), *([sketched([text(5)])] * count)])

    pairs = candidate_pairs(sketches, 0.8)

    assert pairs.shape == (0, 2)
    assert groups_of(pairs, count) == []


SETS = st.lists(st.tuples(*[st.sets(st.integers(0, 30))] * 2), max_size=8)


@given(SETS)
def test_the_share_is_jaccard_s(pairs):
    sides = [[np.array(sorted(each), dtype=np.uint64) for each in side] for side in zip(*pairs, strict=True)] or [
        [],
        [],
    ]

    shares = shared_shares(*sides)

    assert shares.tolist() == pytest.approx([len(a & b) / max(1, len(a | b)) for a, b in pairs])


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=30))
def test_groups_are_what_pairs_connect(pairs):
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    expected = {number: {number} for number in range(20)}
    for one, other in pairs:
        union = expected[one] | expected[other]
        for each in union:
            expected[each] = union
    wanted = {tuple(sorted(group)) for group in expected.values() if len(group) > 1}

    groups = groups_of(np.array(pairs, dtype=np.int64).reshape(-1, 2), 20)

    assert {tuple(group.tolist()) for group in groups} == wanted
