import pytest
from hypothesis import given, strategies as st

from retrieval.config import RetrievalConfig
from retrieval.selection import result_count, select, stands_for_parent
from retrieval.types import Candidate, Passage

CAPS = {"max_books": 2, "max_videos": 1, "max_qa": 1, "max_web": 0}


def candidate(chunk_id, kind="book", *, cut_by=None, parent=None):
    passage = Passage(chunk_id, 1, 1, "title", "a.md", None, "text", source_type=kind or "book", parent_id=parent)
    passage = None if kind is None else passage
    return Candidate(chunk_id, 1, {}, {}, passage=passage, cut_by=cut_by)


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
