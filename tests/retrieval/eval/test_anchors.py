import pytest
from hypothesis import given, strategies as st

from retrieval.eval.judged_sets import MIN_RUN, anchor_hash, same_passage, squeezed

SENTENCES = [
    "工作满一年的员工每年享有五天带薪年假。",
    "病假需要在当天上午十点之前告知上级。",
    "出差的交通费按实际发生额报销。",
]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("".join(SENTENCES), SENTENCES[1]),
        (SENTENCES[0] + SENTENCES[1], SENTENCES[1] + SENTENCES[2]),
        ("五天", SENTENCES[0]),
    ],
)
def test_one_within_the_other_or_half_in_common_is_the_same_passage(first, second):
    assert same_passage(first, second)
    assert same_passage(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SENTENCES[0], SENTENCES[1]),
        (SENTENCES[0] + SENTENCES[1], SENTENCES[1][-9:] + SENTENCES[2]),
        ("四天带薪年假", SENTENCES[0]),
        ("", SENTENCES[0]),
    ],
)
def test_a_short_overlap_is_not(first, second):
    assert not same_passage(first, second)


def test_a_run_counts_from_half_of_the_shorter_passage():
    common = "甲" * MIN_RUN + "乙" * MIN_RUN
    assert same_passage("子" * 10 + common, common + "丑" * len(common))
    assert not same_passage("子" * (len(common) + 1) + common, common + "丑" * (len(common) + 1))


def test_white_space_does_not_count():
    assert squeezed("五天\n\n 年 假") == "五天年假"
    assert anchor_hash("五天\n年假") == anchor_hash(" 五天 年假")
    assert anchor_hash("五天年假") != anchor_hash("十天年假")


@given(st.text(min_size=1).map(squeezed).filter(bool), st.text().map(squeezed), st.text().map(squeezed))
def test_a_passage_is_the_same_as_whatever_holds_it(passage, before, after):
    assert same_passage(passage, before + passage + after)


@given(st.text("甲乙", min_size=1, max_size=50), st.text("甲乙", min_size=1, max_size=50))
def test_every_run_in_common_is_found_wherever_it_stands(first, second):
    shorter, longer = sorted((first, second), key=len)
    run = max(MIN_RUN, -(-len(shorter) // 2))
    runs = {shorter[start : start + run] for start in range(len(shorter) - run + 1)}
    assert same_passage(first, second) == (shorter in longer or any(each in longer for each in runs))
