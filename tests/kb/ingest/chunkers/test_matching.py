from itertools import accumulate, pairwise

import pytest
from hypothesis import given, strategies as st

from kb.ingest.chunkers.matching import edited_part, held_parts, pairs


@pytest.mark.parametrize(
    ("old", "new", "paired"),
    [
        ("abc", "abc", {0: 0, 1: 1, 2: 2}),
        ("abc", "axc", {0: 0, 2: 2}),
        ("ab", "ba", {0: 1, 1: 0}),
        ("xax", "ax", {0: 1, 1: 2}),
        ("xax", "xa", {0: 0, 1: 1}),
        ("aaa", "aa", {0: 0, 1: 1}),
        ("", "a", {}),
        ("a", "", {}),
    ],
)
def test_equal_ones_are_paired_with_their_neighbours(old, new, paired):
    assert pairs(old, new) == paired


@given(st.text(alphabet="abcd", max_size=40), st.text(alphabet="abcd", max_size=40))
def test_every_equal_one_is_paired_once(old, new):
    paired = pairs(old, new)
    assert all(old[other] == new[position] for position, other in paired.items())
    assert len(set(paired.values())) == len(paired) == sum(min(old.count(key), new.count(key)) for key in "abcd")


def test_many_equal_ones_are_paired_in_order():
    assert pairs(["a"] * 50_000, ["a"] * 50_000) == {place: place for place in range(50_000)}


def test_a_part_is_found_in_the_whole_that_holds_it():
    assert held_parts(["一。", "三。", "五。"], ["一。二。", "三。四。"]) == {0: {0: 0}, 1: {1: 0}}


def test_repeated_text_is_found_where_the_order_has_it():
    assert held_parts(["同样。", "甲。", "同样。"], ["同样。甲。", "乙。同样。"]) == {0: {0: 0, 1: 3}, 1: {2: 2}}


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["In November. ", "No"], "In November. No"),
        (["Say no. ", "no. ", "No"], "Say no. no. No"),
        (["of twelve months ", "twelve months more"], "of twelve months more"),
        (["No", " November"], "No November"),
    ],
)
def test_a_part_is_found_where_it_stands_and_not_in_the_words_before_it(parts, whole):
    [held] = held_parts(parts, [whole]).values()
    begins = {number: whole.rindex(part) for number, part in enumerate(parts)} | {0: 0}
    assert held == begins


def test_no_part_is_found_across_two_texts():
    assert held_parts(["一。二。"], ["一。", "二。"]) == {}


@given(st.lists(st.text(alphabet="ab。", min_size=1, max_size=9), min_size=1, max_size=20))
def test_what_is_told_to_hold_a_part_holds_it(wholes):
    parts = [whole[: len(whole) // 2 + 1] for whole in wholes]
    held = held_parts(parts, wholes)
    assert sorted(each for members in held.values() for each in members) == list(range(len(parts)))
    for holder, members in held.items():
        assert all(wholes[holder].startswith(parts[each], place) for each, place in members.items())


CUT = "第一句说甲。第二句说乙。第三句说丙。"


@pytest.mark.parametrize(
    ("edited", "parts"),
    [
        (CUT, ["第一句说甲。", "第二句说乙。", "第三句说丙。"]),
        ("第一句说甲。第二句说丁。第三句说丙。", ["第一句说甲。", "第二句说丁。", "第三句说丙。"]),
        ("第一句说甲。第三句说丙。", ["第一句说甲。", "", "第三句说丙。"]),
        ("前言。" + CUT + "后记。", ["前言。第一句说甲。", "第二句说乙。", "第三句说丙。后记。"]),
    ],
)
def test_the_parts_of_a_text_have_their_parts_of_its_edit(edited, parts):
    assert [edited_part(CUT, edited, start, start + 6) for start in (0, 6, 12)] == parts


@given(st.lists(st.text(alphabet="ab。 ", min_size=1, max_size=6), min_size=1, max_size=8), st.text(alphabet="abc。 "))
def test_parts_share_all_of_an_edit(parts, edited):
    text = "".join(f"{number}:{part}|" for number, part in enumerate(parts))
    places = [0, *accumulate(len(f"{number}:{part}|") for number, part in enumerate(parts))]
    shared = "".join(edited_part(text, edited, first, last) for first, last in pairwise(places))
    assert "".join(shared.split()) == "".join(edited.split())
