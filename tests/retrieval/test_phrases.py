import pytest
from hypothesis import given, strategies as st

from retrieval.dictionary import Phrase, PhraseFinder

# Of two planes: Chinese and Latin letters, also beyond the basic one.
LATIN = "ab\U00010428"
CHARACTERS = LATIN + "恤集𠮷 +"


def found(phrases, text):
    return [text[start:end] for start, end, _ in PhraseFinder(phrases).find(text)]


def every_occurrence(phrases, text):
    """A search at every place for every length; the text's folded characters are as many as its own."""
    folded = text.casefold()

    def ends_within_a_word(at):
        return 0 < at < len(folded) and folded[at - 1] in LATIN and folded[at] in LATIN

    return [
        Phrase(start, end, folded[start:end])
        for start in range(len(text))
        for end in range(start + 2, len(text) + 1)
        if folded[start:end] in phrases and not ends_within_a_word(start) and not ends_within_a_word(end)
    ]


def is_trimmed(text):
    return text == text.strip()


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("t恤", "一件T恤衫"),
        ("维生素c", "补充维生素C。"),
        ("spring boot", "the Spring Boot-based one"),
        ("spring boot", "Spring\nBoot"),
        ("c++标准", "最新C++标准草案"),
        (".net", "ASP.NET"),
        ("th-01", "TH-01-X"),
        ("a]b^-\\", "A]B^-\\"),
        ("𠮷野家t恤", "买A𠮷野家T恤"),
    ],
)
def test_a_phrase_is_found_whatever_its_case_and_neighbours(phrase, text):
    assert [hit.casefold().replace("\n", " ") for hit in found([phrase], text)] == [phrase]


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("ai芯片", "OpenAI芯片"),
        ("spring boot", "spring boots"),
        ("k8s", "k8s2"),
        ("t恤", "T 恤"),
        ("it", "item 2it"),
        ("\U00010428恤", "a\U00010428恤"),
    ],
)
def test_a_phrase_does_not_begin_or_end_within_a_latin_word(phrase, text):
    assert found([phrase], text) == []


def test_phrases_over_and_inside_one_another_are_all_found():
    phrases = ["k8s集群", "k8s集群管理 v2", "集群管理 v2"]

    assert found(phrases, "K8s集群管理 v2") == ["K8s集群", "K8s集群管理 v2", "集群管理 v2"]


def test_places_are_those_of_the_text_though_folding_makes_it_longer():
    text = "Straße ßT恤 STRAẞE B"

    assert list(PhraseFinder(["ßt恤".casefold(), "strasse b"]).find(text)) == [
        Phrase(7, 10, "sst恤"),
        Phrase(11, 19, "strasse b"),
    ]


def test_no_phrases_are_found_where_there_are_none():
    assert found([], "Spring Boot") == []


@pytest.mark.parametrize(
    ("phrases", "text"), [(["t恤", "t恤衫"], "一件T恤"), (["spring boot", "spring boot starter"], "Spring Boot")]
)
def test_a_text_may_end_where_a_longer_phrase_goes_on(phrases, text):
    assert found(phrases, text) == [text[-len(phrases[0]) :]]


def test_the_occurrences_of_a_phrase_share_its_string():
    first, second = PhraseFinder(["t恤"]).find("T恤T恤")

    assert first.term is second.term


@given(
    phrases=st.sets(st.text(CHARACTERS, min_size=2, max_size=5).filter(is_trimmed), max_size=8),
    text=st.text(CHARACTERS + "AB\U00010400", max_size=30),
)
def test_every_occurrence_with_whole_words_is_found(phrases, text):
    assert list(PhraseFinder(phrases).find(text)) == every_occurrence(phrases, text)


@given(
    longest=st.text(CHARACTERS, min_size=3, max_size=7),
    before=st.text(CHARACTERS, max_size=4),
    after=st.text(CHARACTERS, max_size=4),
    data=st.data(),
)
def test_of_phrases_that_begin_alike_every_occurrence_is_found(longest, before, after, data):
    phrases = set(filter(is_trimmed, (longest[:end] for end in range(2, len(longest) + 1))))
    text = before + longest[: data.draw(st.integers(2, len(longest)))] + after

    assert list(PhraseFinder(phrases).find(text)) == every_occurrence(phrases, text)
