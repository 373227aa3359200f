import pytest
from hypothesis import given, strategies as st

from retrieval.keywords import Method, extract_keywords, textrank

WORDS = st.lists(st.sampled_from("abcdefg"), max_size=40)


def test_the_word_that_stands_near_the_most_others_is_first():
    scores = textrank(["hub", "a", "hub", "b", "hub", "c"], window=2)
    assert max(scores, key=scores.get) == "hub"


def test_words_alike_in_their_places_score_alike():
    scores = textrank(["a", "b"])
    assert scores["a"] == pytest.approx(scores["b"])


def test_the_scores_solve_the_equation():
    scores = textrank(["a", "b", "c"], window=2)  # a path: b is linked twice
    assert scores["a"] == pytest.approx(0.15 + 0.85 * scores["b"] / 2, abs=1e-3)
    assert scores["b"] == pytest.approx(0.15 + 0.85 * (scores["a"] + scores["c"]), abs=1e-3)


@given(WORDS)
def test_every_word_has_a_positive_score(words):
    scores = textrank(words)
    assert set(scores) == set(words)
    assert all(score > 0 for score in scores.values())


def test_keywords_by_textrank_are_content_words_in_chinese():
    text = "租赁合同是出租人将租赁物交付承租人使用的合同。承租人应当按照约定支付租金，出租人应当交付租赁物。"
    found = extract_keywords(text, "zh", method=Method.TEXTRANK)
    assert {"出租人", "承租人"} & set(found[:4])
    assert not {"的", "是", "将", "应当"} & set(found)


def test_keywords_by_textrank_are_content_words_in_english():
    text = (
        "The thermostat measures the room. The thermostat and the boiler share a cable, and the boiler heats the room."
    )
    found = extract_keywords(text, "en", method=Method.TEXTRANK)
    assert found[0].lower() in {"thermostat", "boiler", "room"}
    assert not {"the", "and", "a"} & {word.lower() for word in found}


def test_a_text_without_words_has_none():
    assert extract_keywords("123 。", "zh", method=Method.TEXTRANK) == ()
