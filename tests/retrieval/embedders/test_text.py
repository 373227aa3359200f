import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.characters import code_points, estimate_token_ends, estimate_tokens, is_cjk, is_word_character


@given(st.text())
def test_code_points_are_those_of_the_text(text):
    assert code_points(text).tolist() == [ord(char) for char in text]


@pytest.mark.parametrize("char", ["知", "々", "〇", "ひ", "カ", "ㄅ", "한", "𠀀", "豈"])  # noqa: RUF001
def test_scripts_without_spaces_are_cjk(char):
    assert is_cjk(code_points(char)).all()


@pytest.mark.parametrize("char", ["a", "é", "7", "。", "，", "￥", "😀", "\u2e7f"])
def test_other_characters_are_not_cjk(char):
    assert not is_cjk(code_points(char)).any()


def test_letters_digits_and_marks_are_word_characters():
    assert is_word_character("aé7कि_。 ").tolist() == [True, True, True, True, True, False, False, False]


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("知识库", 3), ("word", 1), ("words", 2), ("知识 base", 4)])
def test_a_cjk_character_is_a_token_and_four_others_are_one(text, tokens):
    assert estimate_tokens(text) == tokens


def test_classes_of_an_empty_text_are_empty():
    assert is_cjk(code_points("")).dtype == np.bool_
    assert len(is_word_character("")) == 0


@given(st.text(alphabet="知识ab. \n"))
def test_every_estimated_token_has_an_end(text):
    ends = estimate_token_ends(text)
    assert len(ends) == estimate_tokens(text)
    assert ends == sorted(set(ends))
    assert not ends or ends[-1] == len(text)


def test_tokens_end_behind_every_cjk_character_and_every_fourth_other():
    assert estimate_token_ends("知words识 x") == [1, 5, 7, 9]
