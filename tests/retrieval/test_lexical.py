import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.postings import inverse_document_frequency, ngrams


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("保修期", ["保修", "修期"]),
        ("税", []),
        ("warranty", ["war", "arr", "rra", "ran", "ant", "nty"]),
        ("AI 5g", ["ai", "5g"]),
        ("c", ["c"]),
        ("温控器TH-01，两年", ["温控", "控器", "th", "01", "两年"]),
        ("保修，期限", ["保修", "期限"]),
        ("新北市新北", ["新北", "北市", "市新"]),
        ("\uff21\uff22\uff23\uff24", ["abc", "bcd"]),
        ("war\u00adranty", ["war", "arr", "rra", "ran", "ant", "nty"]),
        ("Привет", ["при", "рив", "иве", "вет"]),
        ("にほん", ["にほ", "ほん"]),
        ("snake_case", ["sna", "nak", "ake", "cas", "ase"]),
    ],
)
def test_ngrams_of_a_text(text, expected):
    assert ngrams(text) == expected


@given(st.text())
def test_each_ngram_stands_once_and_has_letters_and_digits_only(text):
    grams = ngrams(text)

    assert len(grams) == len(set(grams))
    assert all(1 <= len(gram) <= 3 for gram in grams)
    assert not any(character.isspace() for gram in grams for character in gram)


@pytest.mark.parametrize("text", ["Warranty TH-01", "STRASSE", "Ǆungla"])
def test_case_makes_no_difference(text):
    assert ngrams(text) == ngrams(text.lower())


def test_a_rarer_term_tells_more_and_every_term_something():
    idf = inverse_document_frequency(np.array([0, 1, 5, 10]), 10)

    assert (np.diff(idf) < 0).all()
    assert (idf > 0).all()


def test_a_term_that_more_chunks_hold_than_there_are_still_counts():
    assert inverse_document_frequency(np.array([12]), 10)[0] > 0
