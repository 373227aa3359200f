from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from retrieval.dictionary import (
    MAX_CHARACTERS,
    MAX_FREQUENCY,
    MAX_LINE_CHARACTERS,
    MAX_LINES,
    MAX_WORD_CHARACTERS,
    DictionaryError,
    DictionaryWord,
    parse_dictionary,
    parse_stop_words,
)


@pytest.mark.parametrize(
    ("line", "word", "frequency"),
    [
        ("云计算", "云计算", None),
        ("云计算 5", "云计算", 5),
        ("云计算 5 n", "云计算", 5),
        ("云计算 n", "云计算", None),
        ("  云计算\t5\tn  ", "云计算", 5),
        ("云计算\u3000\uff11\uff10", "云计算", 10),
        ("K8s集群 3", "K8s集群", 3),
        ("C++标准", "C++标准", None),
        ("spring boot", "spring boot", None),
        ("Spring   Boot 7 nz", "Spring Boot", 7),
        ("iPhone 15 1", "iPhone 15", 1),
        ("12306", "12306", None),
        ("12306 n x", "12306 n x", None),
    ],
)
def test_a_line_is_a_word_with_or_without_frequency_and_part_of_speech(line, word, frequency):
    assert parse_dictionary(line) == (DictionaryWord(word, frequency),)


def test_blank_lines_and_comments_are_skipped():
    assert parse_dictionary("\ufeff# products\n\n  \r\n  # more\r\n云计算 5\r\n") == (DictionaryWord("云计算", 5),)


def test_of_two_lines_with_one_word_the_last_counts():
    assert parse_dictionary("云计算 5\n大数据\n云计算 9") == (DictionaryWord("云计算", 9), DictionaryWord("大数据"))


@pytest.mark.parametrize(
    ("line", "problem", "message"),
    [
        ("100 n", "empty_word", "no word"),
        ("！？ 3", "no_letters", "take it out"),
        ("\u200b", "no_letters", "take it out"),
        ("字" * (MAX_WORD_CHARACTERS + 1), "word_too_long", "51 characters: write one of at most 50"),
        ("云计算 0", "bad_frequency", "frequency 0 is not"),
        ("云计算 -5 n", "bad_frequency", "frequency -5 is not"),
        ("Python 3.11", "bad_frequency", "add a frequency if the word ends in this number"),
        (f"云计算 {MAX_FREQUENCY + 1}", "bad_frequency", "from 1 to 1,000,000,000"),
        ("云计算 " + "9" * 500, "bad_frequency", "from 1 to 1,000,000,000"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_with_its_number_and_problem(line, problem, message):
    with pytest.raises(DictionaryError, match=message) as caught:
        parse_dictionary(f"云计算\n# comment\n{line}\n大数据")

    assert (caught.value.line, caught.value.problem) == (3, problem)
    assert str(caught.value).startswith("Line 3: ")


@pytest.mark.parametrize("parse", [parse_dictionary, parse_stop_words])
def test_the_number_of_lines_is_bounded(parse):
    assert parse("云\n" * MAX_LINES)

    with pytest.raises(DictionaryError, match="more than 50,000 lines") as caught:
        parse("云\n" * (MAX_LINES + 1))

    assert (caught.value.line, caught.value.problem) == (MAX_LINES + 1, "too_many_lines")


def _words_of(characters):
    """Lines of distinct words of 50 characters."""
    return "\n".join(f"{number:0{MAX_WORD_CHARACTERS}d}" for number in range(characters // MAX_WORD_CHARACTERS))


@pytest.mark.parametrize("parse", [parse_dictionary, parse_stop_words])
def test_the_characters_of_all_words_are_bounded(parse):
    words = _words_of(MAX_CHARACTERS)
    assert parse(words)

    with pytest.raises(DictionaryError, match="more than 500,000 characters in all: leave out") as caught:
        parse(f"{words}\n# comment\nx")

    assert caught.value.problem == "too_many_characters"


@pytest.mark.parametrize("parse", [parse_dictionary, parse_stop_words])
def test_a_word_that_is_repeated_counts_once_among_the_characters(parse):
    words = _words_of(MAX_CHARACTERS)

    assert parse(f"{words}\n{words}") == parse(words)


@pytest.mark.parametrize("parse", [parse_dictionary, parse_stop_words])
def test_a_line_is_refused_for_its_length_before_it_is_read(parse):
    assert parse("云" + " " * (MAX_LINE_CHARACTERS - 1))

    with pytest.raises(DictionaryError, match="more than 1,000 characters: write one word a line") as caught:
        parse("大\n云" + " " * MAX_LINE_CHARACTERS)

    assert (caught.value.line, caught.value.problem) == (2, "word_too_long")


@pytest.mark.parametrize("parse", [parse_dictionary, parse_stop_words])
def test_a_comment_may_be_as_long_as_one_likes(parse):
    assert parse("# " + "云" * MAX_LINE_CHARACTERS + "\n大") == parse("大")


def test_words_and_frequencies_at_their_bounds_are_taken():
    word = "字" * MAX_WORD_CHARACTERS

    assert parse_dictionary(f"{word} {MAX_FREQUENCY}") == (DictionaryWord(word, MAX_FREQUENCY),)


LINES = st.text("云算aA1 -.\t\u200b", max_size=12)


@given(lines=st.lists(LINES, max_size=4))
def test_each_word_of_a_readable_dictionary_is_one_line_of_it(lines):
    def is_readable(line):
        with suppress(DictionaryError):
            return bool(parse_dictionary(line))
        return False

    readable = list(filter(is_readable, lines))

    words = [entry.word for entry in parse_dictionary("\n".join(readable))]

    assert len(set(words)) == len(words)
    assert set(words) == {entry.word for line in readable for entry in parse_dictionary(line)}


@given(lines=st.lists(LINES, max_size=4))
def test_the_first_line_that_cannot_be_used_is_named(lines):
    def is_refused(line):
        with suppress(DictionaryError):
            parse_dictionary(line)
            return False
        return True

    refused = [number for number, line in enumerate(lines, 1) if is_refused(line)]

    if not refused:
        parse_dictionary("\n".join(lines))
        return
    with pytest.raises(DictionaryError) as caught:
        parse_dictionary("\n".join(lines))
    assert caught.value.line == refused[0]


def test_stop_words_are_one_a_line_without_comments_and_punctuation():
    assert parse_stop_words("# list\n的\n  as  well \n\n！\n产品\n的") == {"的", "as well", "产品"}


def test_a_stop_word_of_too_many_characters_is_refused():
    with pytest.raises(DictionaryError, match="Line 2: the word has 51 characters"):
        parse_stop_words("的\n" + "x" * (MAX_WORD_CHARACTERS + 1))
