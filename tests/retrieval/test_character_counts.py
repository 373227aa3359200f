from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.character_counts import PAIR_BITS, CharacterCounter, CharacterCounts, query_codes

OTHERS = " a1\n。𠮷\ud800"
CHINESE = st.text(alphabet="保修期三年内免费ーカ" + OTHERS, max_size=30)


def counts_of(texts):
    counter = CharacterCounter()
    for text in texts:
        counter.add(text)
    return counter.counts()


def code(text):
    return ord(text) if len(text) == 1 else ord(text[0]) << PAIR_BITS | ord(text[1])


def counted(text):
    """Each character that counts and each pair of two that touch, with how often it stands in a text."""
    kept = ["" if each in OTHERS else each for each in text]
    return Counter(filter(None, kept)) + Counter(a + b for a, b in pairwise(kept) if a and b)


@given(st.lists(CHINESE, max_size=8), CHINESE)
def test_a_score_is_bm25_s_over_the_characters_and_pairs_of_all_texts(texts, query):
    counts = counts_of(texts)
    codes = query_codes(query, (query,))
    wanted = sorted(counted(query), key=code)
    assert codes.tolist() == [code(each) for each in wanted]

    lengths = [sum(count for each, count in counted(text).items() if len(each) == 1) for text in texts]
    average = sum(lengths) / max(sum(map(bool, lengths)), 1) or 1.0
    saturation = counts.saturation(codes, texts)
    assert saturation.shape == (len(texts), len(wanted))
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        held = counted(text)
        expected = [held[each] / (held[each] + 1.5 * (0.25 + 0.75 * length / average)) for each in wanted]
        assert saturation[row].tolist() == pytest.approx(expected)
    chunk_count = sum(map(bool, lengths))
    frequencies = np.array([sum(each in counted(text) for text in texts) for each in wanted])
    assert counts.most(codes) == pytest.approx(2.5 * np.log1p((chunk_count - frequencies + 0.5) / (frequencies + 0.5)))


@given(st.lists(CHINESE, max_size=5), st.lists(CHINESE, max_size=5), CHINESE)
def test_added_chunks_count_as_if_they_had_been_there(texts, added, query):
    codes = query_codes(query, (query,))
    joined, whole = counts_of(texts).with_added(added), counts_of([*texts, *added])
    assert joined.chunk_count == whole.chunk_count
    assert joined.rarity(codes).tolist() == whole.rarity(codes).tolist()
    assert joined.saturation(codes, ["保修三年"]).tolist() == whole.saturation(codes, ["保修三年"]).tolist()
    assert joined.with_added([]).chunk_count == counts_of(texts).chunk_count  # not added to what was added


def test_a_text_counts_the_same_beside_one_that_has_to_be_composed():
    codes = query_codes("平成", ("平成",))
    assert not counts_of(["山"]).saturation(codes, ["㍻", "ｶﾞ"]).any()
    assert counts_of(["㍻", "ｶﾞ"]).rarity(codes).tolist() == counts_of(["ガ"]).rarity(codes).tolist()


def test_many_chunks_are_counted_in_parts_as_all_at_once():
    texts = [f"保修期{'一二三四五六七八九'[number % 9]}年" for number in range(2_345)]
    codes = query_codes("保修期三年", ("保修期三年",))
    frequencies = np.array(
        [sum(counted(text)[each] > 0 for text in texts) for each in sorted(counted("保修期三年"), key=code)]
    )
    expected = np.log1p((2_345 + 200 - frequencies + 0.5) / (frequencies + 0.5))
    assert counts_of(texts).rarity(codes) == pytest.approx(expected)


def test_only_the_characters_of_telling_words_count_and_all_pairs():
    codes = query_codes("怎么保修", ("保修",))
    assert codes.tolist() == sorted(map(code, ["保", "修", "怎么", "么保", "保修"]))


@pytest.mark.parametrize("text", ["warranty 404", "보증 기간", "😀𠀀", "", "\ud800"])
def test_other_scripts_have_no_codes(text):
    assert query_codes(text, (text,)).size == 0


@pytest.mark.parametrize(
    ("written", "folded"),
    [
        ("ｶﾒﾗ", "カメラ"),
        ("\uf900", "豈"),
        ("\u2f08\u2f12", "人力"),
        ("ｶﾞｽﾊﾟﾈﾙ", "ガスパネル"),
        ("カ\u3099スハ\u309aネル", "ガスパネル"),
    ],
)
def test_forms_of_one_character_count_as_one(written, folded):
    codes = query_codes(folded, (folded,))
    assert query_codes(written, (written,)).tolist() == codes.tolist()
    assert counts_of([written]).state() == counts_of([folded]).state()
    assert counts_of([folded]).saturation(codes, [written]).tolist() == [[0.4] * codes.size]


def test_what_was_stored_counts_as_before_and_garbage_is_refused():
    counts = counts_of(["保修期三年", "三年内免费"])
    codes = query_codes("保修三年", ("保修三年",))
    read = CharacterCounts.from_state(counts.state())
    assert read.rarity(codes).tolist() == counts.rarity(codes).tolist()
    assert read.saturation(codes, ["保修"]).tolist() == counts.saturation(codes, ["保修"]).tolist()
    with pytest.raises(ValueError, match="codes"):
        CharacterCounts.from_state({"codes": ("<f8", (1,), b"12345678")})


@pytest.mark.parametrize(
    "wrong",
    [
        {"codes": ("<u4", (2, 1), bytes((1, 0, 0, 0, 2, 0, 0, 0)))},
        {"codes": ("<u4", (1,), bytes((1, 0, 0, 0)))},
        {"codes": ("<u4", (2,), bytes((2, 0, 0, 0, 2, 0, 0, 0)))},
        {"codes": ("<u4", (2,), bytes((2, 0, 0, 0, 1, 0, 0, 0)))},
        {"document_frequencies": ("<u4", (2,), bytes((1, 0, 0, 0, 0, 0, 0, 0)))},
        {"document_frequencies": ("<u4", (2,), "text")},
        {"chunk_count": -1},
        {"total_length": 1.5},
        {"total_length": None},
    ],
)
def test_what_no_counts_can_be_is_refused(wrong):
    counts = bytes((1, 0, 0, 0, 2, 0, 0, 0))
    good = {"codes": ("<u4", (2,), counts), "document_frequencies": ("<u4", (2,), counts)}
    good |= {"chunk_count": 2, "total_length": 3}
    CharacterCounts.from_state(good)
    with pytest.raises(ValueError, match=r"codes|document_frequencies|chunk_count"):
        CharacterCounts.from_state(good | wrong)


@pytest.mark.parametrize("missing", ["codes", "document_frequencies", "chunk_count", "total_length"])
def test_counts_without_a_part_are_refused(missing):
    state = counts_of(["保修"]).state()
    del state[missing]
    with pytest.raises(ValueError, match=missing):
        CharacterCounts.from_state(state)


@pytest.mark.parametrize("state", [None, [], "counts", 7])
def test_what_is_no_mapping_is_refused(state):
    with pytest.raises(ValueError, match="codes"):
        CharacterCounts.from_state(state)
