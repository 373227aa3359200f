import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.dedupe import deduplicate, fingerprint, merge_queries
from retrieval.errors import Degradation, DegradationCode
from retrieval.types import Passage, Provenance, Ranking

NAN = float("nan")


def passage(chunk_id, text, *, kb_id=1, source="a.md", heading_path=()):
    return Passage(chunk_id, 1, kb_id, "title", source, None, text, heading_path)


def passages(**texts):
    """Passages by chunk id from `c1="text"`."""
    return {int(name[1:]): passage(int(name[1:]), text) for name, text in texts.items()}


def ranking(channel, found, *, kb_id=1, query=0, **more):
    ids, scores = np.array(list(found), dtype=np.int64), np.array(list(found.values()), dtype=np.float64)
    return Ranking(channel, kb_id, ids, scores, query=query, **more)


def found(ranking):
    return dict(zip(ranking.chunk_ids.tolist(), ranking.scores.tolist(), strict=True))


def test_equal_passages_of_two_bases_have_one_fingerprint():
    assert fingerprint(passage(1, "text", kb_id=1)) == fingerprint(passage(2, "text", kb_id=2))


@pytest.mark.parametrize(
    "other",
    [
        passage(1, "b", source="a", heading_path=("h",)),
        passage(1, "hb", source="a", heading_path=()),
        passage(1, "b", source="ah", heading_path=()),
        passage(1, "b", source="a", heading_path=("h", "")),
        passage(1, "1:b", source="a", heading_path=("h1",)),
    ],
)
def test_another_source_heading_or_text_is_another_fingerprint(other):
    same = passage(1, "text", source="a", heading_path=("h1",))
    assert fingerprint(other) != fingerprint(same)
    assert fingerprint(passage(1, "b", source="a", heading_path=("h1",))) != fingerprint(other)


texts = st.text(alphabet="a1:,", max_size=4)


@given(st.tuples(texts, st.lists(texts, max_size=2), texts), st.tuples(texts, st.lists(texts, max_size=2), texts))
def test_fingerprints_are_equal_exactly_when_all_parts_are(one, other):
    prints = [fingerprint(passage(1, text, source=url, heading_path=tuple(path))) for url, path, text in (one, other)]
    assert (prints[0] == prints[1]) == (one == other)


def test_a_ranking_of_one_query_is_returned_as_it_is():
    only = ranking("vector", {1: 0.5}, query=1)
    other_base = ranking("vector", {2: 0.5}, kb_id=2)
    merged = merge_queries([only, other_base])
    assert merged[0] is only
    assert merged[1] is other_base


def test_a_chunk_keeps_its_best_rank_over_the_queries_and_the_score_there():
    first = ranking("vector", {1: 0.9, 2: 0.8, 3: 0.7})
    second = ranking("vector", {3: 0.6, 4: 0.5}, query=1)
    (merged,) = merge_queries([first, second])
    assert list(found(merged).items()) == [(1, 0.9), (3, 0.6), (2, 0.8), (4, 0.5)]


def test_equal_ranks_go_by_query_then_by_chunk_id():
    rankings = [ranking("bm25", {5: 1.0}, query=2), ranking("bm25", {9: 1.0}, query=1), ranking("bm25", {3: 1.0})]
    (merged,) = merge_queries(rankings)
    assert merged.chunk_ids.tolist() == [3, 9, 5]
    assert merged.query == 0


def test_exact_scores_are_the_best_over_the_queries():
    tables = [np.array([0.2, NAN, NAN]), np.array([0.1, 0.4, NAN])]
    rankings = [
        ranking("vector", {}, query=query, score=lambda ids, table=table: table[ids])
        for query, table in enumerate(tables)
    ]
    (merged,) = merge_queries([*rankings, ranking("vector", {}, query=2)])
    np.testing.assert_array_equal(merged.score(np.array([0, 1, 2])), [0.2, 0.4, NAN])


def test_queries_that_cannot_score_give_a_ranking_that_cannot():
    (merged,) = merge_queries([ranking("fts", {1: 1.0}), ranking("fts", {1: 1.0}, query=1)])
    assert merged.score is None


def test_what_the_queries_tell_besides_is_merged():
    slow = Degradation("bm25", DegradationCode.BM25_INDEX_BUILDING, "wait")
    rankings = [
        ranking("bm25", {}, degradations=(slow,), detail={"tier": "process"}),
        ranking("bm25", {}, query=1, degradations=(slow,), detail={"tier": "shared", "terms": 2}, lexicon="lexicon"),
    ]
    (merged,) = merge_queries(rankings)
    assert merged.degradations == (slow,)
    assert merged.detail == {"tier": "process", "terms": 2}
    assert merged.lexicon == "lexicon"


def test_rankings_without_equal_contents_are_left_untouched():
    rankings = [ranking("vector", {1: 0.9, 2: 0.8}), ranking("bm25", {2: 3.0, 3: 1.0})]
    result = deduplicate(rankings, passages(c1="x", c2="y", c3="zz"))
    assert all(kept is given for kept, given in zip(result.rankings, rankings, strict=True))
    assert result.dropped == {}


def test_chunks_without_a_passage_leave_all_rankings():
    rankings = [ranking("vector", {1: 0.9, 2: 0.8}), ranking("bm25", {1: 3.0})]
    result = deduplicate(rankings, passages(c2="y"))
    assert [found(each) for each in result.rankings] == [{2: 0.8}, {}]


def test_of_equal_chunks_the_best_ranked_stands_for_all():
    rankings = [ranking("vector", {1: 0.9, 2: 0.8, 3: 0.7}), ranking("bm25", {3: 9.0, 1: 8.0, 2: 7.0})]
    result = deduplicate(rankings, passages(c1="x", c2="same", c3="same"))
    assert result.dropped == {2: 3}
    vector, bm25 = result.rankings
    assert list(found(vector).items()) == [(1, 0.9), (3, 0.8)]
    assert list(found(bm25).items()) == [(3, 9.0), (1, 8.0)]


def test_equal_ranks_go_to_the_first_knowledge_base_and_then_to_the_lower_id():
    two_bases = [ranking("vector", {7: 0.9}, kb_id=2), ranking("vector", {4: 0.9}, kb_id=1)]
    assert deduplicate(two_bases, passages(c4="same", c7="same")).dropped == {4: 7}
    one_base = [ranking("vector", {7: 0.9}), ranking("bm25", {4: 0.9})]
    assert deduplicate(one_base, passages(c4="same", c7="same")).dropped == {7: 4}


def test_the_other_base_loses_the_chunk_and_the_home_moves_it_up():
    rankings = [
        ranking("bm25", {1: 9.0}, kb_id=1),
        ranking("vector", {5: 0.9, 6: 0.8, 1: 0.7}, kb_id=1),
        ranking("vector", {8: 0.9, 2: 0.8, 9: 0.7}, kb_id=2),
    ]
    result = deduplicate(rankings, passages(c1="same", c2="same", c5="a", c6="b", c8="c", c9="d"))
    _, home, other = result.rankings
    assert list(found(home).items()) == [(5, 0.9), (1, 0.7), (6, 0.8)]
    assert list(found(other).items()) == [(8, 0.9), (9, 0.7)]


def test_a_chunk_its_own_channel_has_not_found_enters_without_a_score():
    rankings = [
        ranking("bm25", {1: 9.0}, kb_id=1),
        ranking("vector", {5: 0.9}, kb_id=1),
        ranking("vector", {8: 0.9, 2: 0.8}, kb_id=2),
    ]
    home = deduplicate(rankings, passages(c1="same", c2="same", c5="a", c8="c")).rankings[1]
    assert home.chunk_ids.tolist() == [5, 1]
    np.testing.assert_array_equal(home.scores, [0.9, NAN])


def test_a_channel_that_the_home_base_lacks_is_not_invented():
    rankings = [ranking("bm25", {1: 9.0}, kb_id=1), ranking("vector", {8: 0.9, 2: 0.8}, kb_id=2)]
    result = deduplicate(rankings, passages(c1="same", c2="same", c8="c"))
    assert [(each.channel, each.kb_id, each.chunk_ids.tolist()) for each in result.rankings] == [
        ("bm25", 1, [1]),
        ("vector", 2, [8]),
    ]


def test_provenance_lists_every_place_of_a_content():
    rankings = [
        ranking("vector", {3: 0.9, 1: 0.8}),
        ranking("vector", {1: 0.7}, query=1),
        ranking("bm25", {2: 5.0}, kb_id=2),
    ]
    result = deduplicate(rankings, passages(c1="same", c2="same", c3="x"))
    assert result.dropped == {1: 2}
    assert result.provenance_of([2]) == {
        2: (
            Provenance("vector", 1, 1, query=0, rank=2, score=0.8),
            Provenance("vector", 1, 1, query=1, rank=1, score=0.7),
            Provenance("bm25", 2, 2, query=0, rank=1, score=5.0),
        )
    }


def test_provenance_of_what_nothing_found_is_empty():
    assert deduplicate([ranking("vector", {1: 0.9})], passages(c1="x")).provenance_of([4]) == {4: ()}


found_ids = st.lists(st.integers(1, 12), unique=True, max_size=8)


@given(
    st.lists(found_ids, min_size=2, max_size=2),
    st.lists(found_ids, min_size=2, max_size=2),
    st.lists(st.sampled_from("abcd"), min_size=24, max_size=24),
)
def test_every_content_is_left_once_at_its_best_rank(vector, bm25, contents):
    # The second knowledge base has its own chunks, 12 ids further on.
    shifted = {1: 0, 2: 12}
    stored = {chunk_id: passage(chunk_id, contents[chunk_id - 1]) for chunk_id in range(1, 25)}
    rankings = [
        ranking(
            channel, {chunk_id + shifted[kb_id]: 1.0 / (rank + 1) for rank, chunk_id in enumerate(ids)}, kb_id=kb_id
        )
        for channel, lists in (("vector", vector), ("bm25", bm25))
        for kb_id, ids in enumerate(lists, start=1)
    ]
    result = deduplicate(rankings, stored)
    left = {chunk_id for each in result.rankings for chunk_id in each.chunk_ids.tolist()}
    assert len({stored[chunk_id].text for chunk_id in left}) == len(left)
    assert {stored[chunk_id].text for chunk_id in left} == {
        stored[chunk_id].text for each in rankings for chunk_id in each.chunk_ids.tolist()
    }
    for before, after in zip(rankings, result.rankings, strict=True):
        assert dataclasses.replace(after, chunk_ids=before.chunk_ids, scores=before.scores) == before
        assert len(after.chunk_ids) == len(after.scores) == len(set(after.chunk_ids.tolist()))
        best = [_best_rank(rankings, before.channel, stored, stored[each].text) for each in after.chunk_ids.tolist()]
        assert best == sorted(best)


def _best_rank(rankings, channel, stored, text):
    return min(
        rank
        for each in rankings
        if each.channel == channel
        for rank, chunk_id in enumerate(each.chunk_ids.tolist(), start=1)
        if stored[chunk_id].text == text
    )
