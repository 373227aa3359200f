import pytest
from hypothesis import given, strategies as st

from retrieval.config import RetrievalConfig
from retrieval.selection import MOST_NEAR_MISSES, result_count, select, source_caps, stands_for_parent, with_near_misses
from retrieval.types import Candidate, Passage

CAPS = {"max_books": 2, "max_videos": 1, "max_qa": 1, "max_web": 0}


def candidate(chunk_id, kind="book", *, cut_by=None, parent=None, score=0.1):
    passage = Passage(chunk_id, 1, 1, "title", "a.md", None, "text", source_type=kind or "book", parent_id=parent)
    passage = None if kind is None else passage
    return Candidate(chunk_id, 1, {}, {"rerank": score}, passage=passage, cut_by=cut_by)


def below(chunk_id, kind="book", **fields):
    return candidate(chunk_id, kind, cut_by="gate", **fields)


def near_misses(candidates, **settings):
    """The ids of near misses, in order."""
    config = RetrievalConfig(**settings)
    marked = with_near_misses(select(candidates, config), config, "rerank")
    assert [each.chunk_id for each in marked] == [each.chunk_id for each in candidates]
    return [each.chunk_id for each in marked if each.is_near_miss]


def fates(candidates, **settings):
    """What cuts each candidate, in order."""
    return [each.cut_by for each in select(candidates, RetrievalConfig(**settings))]


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({"top_k": 5}, 5),
        ({"top_k": 50}, 10),
        ({"top_k": 50, "general_final_count": 50}, 50),
        ({"top_k": 5, "rerank_top_k": 8}, 8),
        ({"top_k": 5, "rerank_top_k": 30, "general_final_count": 20}, 20),
        ({"general_retrieval": False}, 16),
        ({"general_retrieval": False, "top_k": 1, "general_final_count": 1}, 16),
        ({"general_retrieval": False, "rerank_top_k": 4}, 4),
        ({"general_retrieval": False, "rerank_top_k": 40}, 16),
    ],
)
def test_the_count_is_the_fewest_that_the_settings_allow(changed, count):
    assert result_count(RetrievalConfig(**changed)) == count


def test_a_general_search_counts_all_kinds_alike():
    candidates = [candidate(1, "web"), candidate(2, "web"), candidate(3), candidate(4)]
    assert fates(candidates, top_k=2, **CAPS) == [None, None, "top_k", "top_k"]


def test_each_kind_of_source_has_its_cap():
    kinds = ["video", "video", "qa", "book", "qa", "book", "book", "web"]
    candidates = [candidate(chunk_id, kind) for chunk_id, kind in enumerate(kinds)]
    assert fates(candidates, general_retrieval=False, **CAPS) == [
        None, "per_source", None, None, "per_source", None, "per_source", "per_source",
    ]  # fmt: skip


def test_one_over_its_cap_takes_no_place_in_the_count():
    candidates = [candidate(1, "video"), candidate(2, "video"), candidate(3), candidate(4)]
    assert fates(candidates, general_retrieval=False, rerank_top_k=2, **CAPS) == [None, "per_source", None, "top_k"]


@pytest.mark.parametrize("kind", ["podcast", "", None])
def test_other_kinds_share_the_cap_of_books(kind):
    candidates = [candidate(1, kind), candidate(2), candidate(3), candidate(4, "qa")]
    assert fates(candidates, general_retrieval=False, **CAPS) == [None, None, "per_source", None]


def test_candidates_cut_before_stay_as_they_are_and_take_no_place():
    cut = candidate(1, cut_by="gate")
    selected = select([cut, candidate(2), candidate(3)], RetrievalConfig(top_k=1))
    assert selected[0] is cut
    assert [each.cut_by for each in selected] == ["gate", None, "top_k"]


def test_caps_of_nothing_select_nothing():
    none = dict.fromkeys(CAPS, 0)
    assert fates([candidate(1), candidate(2, "qa")], general_retrieval=False, **none) == ["per_source"] * 2


@given(
    st.lists(st.tuples(st.sampled_from(["book", "video", "qa", "web"]), st.sampled_from([None, "gate"])), max_size=30),
    st.booleans(),
    st.integers(1, 12),
)
def test_the_order_stays_and_only_a_full_count_or_cap_cuts(drawn, general, most):
    candidates = [candidate(chunk_id, kind, cut_by=cut_by) for chunk_id, (kind, cut_by) in enumerate(drawn)]
    config = RetrievalConfig(general_retrieval=general, top_k=most, rerank_top_k=most, **CAPS)
    selected = select(candidates, config)
    assert [each.chunk_id for each in selected] == list(range(len(drawn)))
    taken = [each.passage.source_type for each in selected if each.cut_by is None]
    caps = {"book": 2, "video": 1, "qa": 1, "web": 0}
    alive = [kind for kind, cut_by in drawn if cut_by is None]
    possible = len(alive) if general else sum(min(alive.count(kind), cap) for kind, cap in caps.items())
    assert len(taken) == min(possible, result_count(config))
    assert general or all(taken.count(kind) <= cap for kind, cap in caps.items())


def test_the_best_chunk_of_a_longer_passage_stands_for_the_others_which_take_no_place():
    candidates = [candidate(1, parent=7), candidate(2, parent=7), candidate(3, parent=8), candidate(4), candidate(5)]
    assert fates(candidates, top_k=3) == [None, "parent", None, None, "top_k"]


def test_a_chunk_that_was_cut_before_stands_for_none():
    candidates = [candidate(1, parent=7, cut_by="gate"), candidate(2, parent=7)]
    assert fates(candidates, top_k=3) == ["gate", None]


def test_what_stands_for_a_chunk_of_a_longer_passage_is_told():
    candidates = select([candidate(1), candidate(2, parent=7), candidate(3, parent=7)], RetrievalConfig())
    assert stands_for_parent(candidates, candidates[2]) == 2
    assert stands_for_parent(candidates, candidates[0]) is None


def test_the_first_that_the_gate_cut_are_near_misses_and_stay_cut():
    config = RetrievalConfig()
    candidates = [candidate(1), *(below(chunk_id) for chunk_id in range(2, 8)), candidate(9, cut_by="fusion")]
    marked = with_near_misses(select(candidates, config), config, "rerank")
    assert [each.chunk_id for each in marked if each.is_near_miss] == [2, 3, 4]
    assert [each.cut_by for each in marked] == [None, *["gate"] * 6, "fusion"]
    assert [each.is_given for each in marked] == [True] * 4 + [False] * 4


def test_near_misses_keep_the_order_of_the_results_whatever_they_score():
    assert near_misses([below(1, score=0.1), candidate(2), below(3, score=0.3)]) == [1, 3]


@pytest.mark.parametrize(("top_k", "found"), [(2, []), (3, [3]), (4, [3, 4]), (9, [3, 4, 5])])
def test_results_and_near_misses_are_never_more_than_was_asked_for(top_k, found):
    candidates = [candidate(1), candidate(2), *(below(chunk_id) for chunk_id in range(3, 9))]
    assert near_misses(candidates, top_k=top_k) == found


def test_what_scores_nothing_is_no_near_miss():
    assert near_misses([below(1, score=0.0), below(2, score=-0.2), below(3, score=0.01)]) == [3]


def test_a_longer_passage_is_no_near_miss_twice_nor_beside_a_result_of_it():
    candidates = [below(1, parent=7), candidate(2, parent=7), below(3, parent=8), below(4, parent=8), below(5)]
    assert near_misses(candidates) == [3, 5]


def test_near_misses_keep_to_the_caps_of_their_kinds():
    candidates = [below(1, "video"), candidate(2, "video"), below(3, "qa"), below(4, "qa"), below(5)]
    assert near_misses(candidates, general_retrieval=False, **CAPS) == [3, 5]


@given(
    st.lists(
        st.tuples(st.sampled_from(["book", "video", "qa"]), st.sampled_from([None, "gate"]), st.sampled_from([0, 0.2])),
        max_size=30,
    ),
    st.booleans(),
    st.integers(1, 12),
)
def test_near_misses_take_what_the_results_leave(drawn, general, most):
    candidates = [candidate(number, kind, cut_by=cut, score=score) for number, (kind, cut, score) in enumerate(drawn)]
    config = RetrievalConfig(general_retrieval=general, top_k=most, rerank_top_k=most, **CAPS)
    selected = select(candidates, config)
    marked = with_near_misses(selected, config, "rerank")
    near = [each for each in marked if each.is_near_miss]
    assert [each._replace(is_near_miss=False) for each in marked] == selected
    assert all(each.cut_by == "gate" and each.scores["rerank"] > 0 for each in near)
    assert len(near) <= MOST_NEAR_MISSES
    given_kinds = [each.passage.source_type for each in marked if each.is_given]
    assert len(given_kinds) <= result_count(config)
    assert general or all(given_kinds.count(kind) <= cap for kind, cap in source_caps(config).items())


def first_of_vectors(chunk_id, rank, score=0.0, kb_id=1):
    return below(chunk_id, score=score)._replace(ranks={"vector": rank}, kb_id=kb_id)


def test_what_shares_no_word_is_a_near_miss_among_the_first_of_vectors_that_compare_meaning():
    config = RetrievalConfig()
    cut = [
        first_of_vectors(1, 4),
        first_of_vectors(2, 1),
        first_of_vectors(3, 2, score=-0.1),
        first_of_vectors(4, 1, kb_id=2),
        below(5, score=0.0),
        first_of_vectors(6, 3),
    ]
    marked = with_near_misses(select(cut, config), config, "rerank", {1})
    assert [each.chunk_id for each in marked if each.is_near_miss] == [2, 6]
    assert not any(each.is_near_miss for each in with_near_misses(select(cut, config), config, "rerank"))
