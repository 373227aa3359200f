import re

from hypothesis import given, strategies as st

from kb.ingest.chunkers import strategies as tokens
from kb.ingest.parser.parsed import Section
from tests.kb.ingest.chunkers.cutting import cut, texts, visible


def word_ends(text):
    """A tokenizer of two characters a token within words, as subwords are."""
    return [
        min(start + 2, match.end())
        for match in re.finditer(r"\w+|[^\w\s]", text)
        for start in range(match.start(), match.end(), 2)
    ]


def by_words(text, **settings):
    counter = {"token_ends": word_ends, "count_tokens": lambda each: len(word_ends(each))}
    return cut("tokens", text, **counter, **settings)


def test_every_chunk_but_the_last_has_the_number_of_tokens():
    drafts = by_words("ab cd " * 50, size=20, overlap=0)
    assert [draft.token_count for draft in drafts] == [20] * 5


def test_the_overlap_repeats_tokens():
    drafts = by_words(" ".join(f"{number:02d}" for number in range(40)), size=20, overlap=5)
    assert [draft.text.split()[0] for draft in drafts] == ["00", "15", "30"]
    assert drafts[0].text.split()[-5:] == drafts[1].text.split()[:5]


def test_a_word_of_several_tokens_stays_whole():
    words = [f"word{number:04d}" for number in range(60)]
    for draft in by_words(" ".join(words), size=22, overlap=6):
        assert set(draft.text.split()) <= set(words)


def test_a_word_longer_than_a_chunk_is_cut():
    assert texts(by_words("a" * 100, size=20, overlap=0)) == ["a" * 40, "a" * 40, "a" * 20]


def test_without_a_tokenizer_tokens_are_approximated():
    drafts = cut("tokens", "检索" * 30, size=20, overlap=0)
    assert texts(drafts) == ["检索" * 10] * 3


def test_a_window_has_no_more_tokens_than_the_size_by_its_own_count():
    drafts = cut(
        "tokens", "检索" * 30, size=20, overlap=0, count_tokens=lambda text: len(text) + 2, token_ends=lambda text: list(range(1, len(text) + 1))
    )  # fmt: skip
    assert max(draft.token_count for draft in drafts) == 20
    assert "".join(texts(drafts)) == "检索" * 30


def test_chunks_cross_neither_headings_nor_pages():
    drafts = cut("tokens", Section("甲", 1, ("一",)), Section("乙", 2, ("一",)), Section("丙", 2, ("二",)))
    assert [(draft.text, draft.page, draft.heading_path) for draft in drafts] == [
        ("甲", 1, ("一",)),
        ("乙", 2, ("一",)),
        ("丙", 2, ("二",)),
    ]


def test_a_text_that_is_read_in_pieces_is_cut_as_if_it_were_one(monkeypatch):
    text = "".join(f"第{number}条规定。 rule {number} " for number in range(400))
    whole = texts(cut("tokens", text, size=30, overlap=8))
    monkeypatch.setattr(tokens, "_READ_AT_ONCE", 500)
    assert texts(cut("tokens", text, size=30, overlap=8)) == whole


@given(st.text(alphabet="机器学习。ab c\n，. ", max_size=400), st.integers(20, 40))
def test_without_overlap_no_character_is_lost_or_doubled(text, size):
    assert visible("".join(texts(cut("tokens", text, size=size, overlap=0)))) == visible(text)


@given(st.text(alphabet="机器学习。ab c\n，. ", max_size=400), st.integers(20, 40), st.integers(0, 19))
def test_no_chunk_is_blank_or_longer_than_the_size(text, size, overlap):
    assert all(0 < draft.token_count <= size for draft in cut("tokens", text, size=size, overlap=overlap))
