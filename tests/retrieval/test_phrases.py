import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.phrases import Phrase, PhraseFinder


def found(phrases, text):
    return [text[start:end] for start, end, _ in PhraseFinder(phrases).find(text)]


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
    ],
)
def test_a_phrase_is_found_whatever_its_case_and_neighbours(phrase, text):
    assert [hit.casefold().replace("\n", " ") for hit in found([phrase], text)] == [phrase]


@pytest.mark.parametrize(
    ("phrase", "text"),
    [("ai芯片", "OpenAI芯片"), ("spring boot", "spring boots"), ("k8s", "k8s2"), ("t恤", "T 恤"), ("it", "item 2it")],
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


@given(
    phrases=st.sets(st.text("ab恤集 +", min_size=2, max_size=5).filter(lambda text: text == text.strip()), max_size=8),
    text=st.text("aAbB恤集 +", max_size=30),
)
def test_every_occurrence_with_whole_words_is_found(phrases, text):
    folded = text.casefold()

    def ends_within_a_word(at):
        return 0 < at < len(folded) and folded[at - 1] in "ab" and folded[at] in "ab"

    expected = [
        Phrase(start, end, folded[start:end])
        for start in range(len(text))
        for end in range(start + 2, len(text) + 1)
        if folded[start:end] in phrases and not ends_within_a_word(start) and not ends_within_a_word(end)
    ]

    assert list(PhraseFinder(phrases).find(text)) == expected
