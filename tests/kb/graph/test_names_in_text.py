import pytest
from hypothesis import given, strategies as st

from kb.base.text import PREFIX_CHARACTERS, normalized_key
from kb.graph.readers import SearchedText, longest

LETTERS = st.text(alphabet="abcXYZ09 -温控器的ＡＢ①ß", max_size=40)
NAMES = LETTERS.filter(normalized_key)


def found(text, *names):
    searched = SearchedText(text)
    return [searched.written(span) for span in longest(searched.spans({normalized_key(name) for name in names}))]


def test_a_name_is_found_whatever_its_width_case_and_white_space():
    assert found("用ＬＬＭ和 Machine\n Learning。", "llm", "machine learning") == [
        "ＬＬＭ",  # noqa: RUF001 - as the text writes it
        "Machine\n Learning",
    ]


@pytest.mark.parametrize("text", ["javascript", "java8", "myjava"])
def test_a_part_of_a_latin_word_is_no_mention(text):
    assert found(text, "Java") == []


@pytest.mark.parametrize("text", ["用java写", "java-based", "(Java)", "java_8"])
def test_a_latin_word_ends_where_another_script_or_a_sign_begins(text):
    assert [each.casefold() for each in found(text, "Java")] == ["java"]


def test_the_longest_of_overlapping_names_is_the_mention():
    assert found("智能温控器保修", "温控器", "智能温控器", "温控", "保修") == ["智能温控器", "保修"]


def test_of_overlapping_names_as_long_as_each_other_the_first_is_the_mention():
    assert found("甲乙丙", "乙丙", "甲乙") == ["甲乙"]


def test_every_place_of_a_name_is_found():
    assert found("gpt gpt", "GPT") == ["gpt", "gpt"]


def test_a_decomposed_letter_is_found_by_its_composed_name():
    assert found("cafe\u0301 noir", "Café") == ["cafe\u0301"]


@given(before=LETTERS, name=NAMES, after=LETTERS)
def test_a_name_put_between_spaces_is_found_and_reads_as_the_text_writes_it(before, name, after):
    searched = SearchedText(f"{before} {name} {after}")
    key = normalized_key(name)

    spans = searched.spans([key])

    assert any(normalized_key(searched.written(span)) == key for span in spans)
    assert all(searched.written(span) in f"{before} {name} {after}" for span in spans)
    assert all(searched.folded[span.start : span.end] == key for span in spans)


@given(before=LETTERS, name=NAMES, after=LETTERS)
def test_the_prefix_of_every_name_that_stands_in_the_text_is_asked_for(before, name, after):
    searched = SearchedText(before + name + after)
    key = normalized_key(name)

    if searched.spans([key]):
        assert key[:PREFIX_CHARACTERS] in searched.prefixes()


@given(text=LETTERS, names=st.lists(NAMES, max_size=6))
def test_the_longest_mentions_do_not_overlap_and_leave_no_longer_one_out(text, names):
    spans = SearchedText(text + "".join(names)).spans({normalized_key(name) for name in names})

    kept = longest(spans)

    def overlap(a, b):
        return a.start < b.end and b.start < a.end

    assert not any(overlap(a, b) for a in kept for b in kept if a is not b)
    for span in set(spans) - set(kept):
        assert any(overlap(span, other) and len(other.key) >= len(span.key) for other in kept)


@pytest.mark.parametrize("text", ["", " \n", "\u200b"])
def test_a_text_of_nothing_holds_no_names(text):
    assert SearchedText(text).prefixes() == []


def test_a_long_text_asks_for_a_few_prefixes_a_character_at_most():
    text = "".join(chr(0x4E00 + n) for n in range(2_000))

    assert len(SearchedText(text).prefixes()) <= PREFIX_CHARACTERS * len(text)


def test_a_latin_word_asks_for_one_prefix():
    assert SearchedText("temperature").prefixes() == ["temp"]
