import pytest
from hypothesis import given, strategies as st

from kb.ingest.chunkers.strategies import ChunkDraft, ChunkSettings, approximate_tokens, split
from kb.ingest.parser.parsed import ParsedDocument, Region, Section

MIXED = "机器学习是人工智能。The end. “对话。”她说！表 1：a, b；\n\n\t 第条—…🙂é\u3000"
SENTENCE = "机器学习是人工智能的一个分支。"


def document(*sections):
    made = (section if isinstance(section, Section) else Section(section) for section in sections)
    return ParsedDocument("title", tuple(made))


def texts(parsed, **settings):
    return [draft.text for draft in split(parsed, ChunkSettings(**settings))]


def visible(text):
    return "".join(text.split())


def test_a_short_section_is_one_chunk_with_all_its_facts():
    parsed = document(Section("退款 policy", 3, ("手册", "退款")))
    assert split(parsed, ChunkSettings()) == [
        ChunkDraft("退款 policy", 0, ("手册", "退款"), 4, regions=(Region(page=3),))
    ]


def test_chinese_text_is_cut_after_its_sentences():
    assert texts(document(SENTENCE * 4), size=31, overlap=0) == [SENTENCE * 2, SENTENCE * 2]


def test_a_closing_quote_stays_with_its_sentence():
    first = "他说：“今天我们在这里学习检索。”"
    assert texts(document(first + "然后大家都离开了那里。"), size=20, overlap=0)[0] == first


def test_english_text_is_cut_after_its_sentences():
    parsed = document("Retrieval finds passages. Ranking sorts them! Is that all? It is.")
    assert texts(parsed, size=46, overlap=0) == [
        "Retrieval finds passages. Ranking sorts them!",
        "Is that all? It is.",
    ]


def test_a_number_is_not_cut_at_its_point():
    parsed = document("The measured value was 3.14159265358979 in the end")
    assert texts(parsed, size=24, overlap=0) == ["The measured value was", "3.14159265358979 in the", "end"]


def test_paragraphs_are_preferred_to_sentences():
    assert texts(document("一句。两句。\n\n三句话很长。四句话也很长。"), size=20, overlap=0) == [
        "一句。两句。",
        "三句话很长。四句话也很长。",
    ]


def test_a_sentence_longer_than_a_chunk_is_cut_at_its_commas():
    parsed = document("第一个分句有十个字哦，第二个分句有十个字哦，第三个分句有十个字哦。")
    assert texts(parsed, size=25, overlap=0) == [
        "第一个分句有十个字哦，第二个分句有十个字哦，",
        "第三个分句有十个字哦。",
    ]


def test_text_without_any_boundary_is_cut_at_the_size():
    assert texts(document("字" * 50), size=20, overlap=0) == ["字" * 20, "字" * 20, "字" * 10]


def test_the_overlap_repeats_whole_sentences():
    parsed = document("甲甲甲甲甲甲甲甲。乙乙乙乙乙乙乙乙。丙丙丙丙丙丙丙丙。")
    assert texts(parsed, size=20, overlap=10) == [
        "甲甲甲甲甲甲甲甲。乙乙乙乙乙乙乙乙。",
        "乙乙乙乙乙乙乙乙。丙丙丙丙丙丙丙丙。",
    ]


def test_chunks_do_not_cross_headings():
    parsed = document(Section("甲", None, ("一",)), Section("乙", None, ("二",)))
    assert [(draft.text, draft.heading_path) for draft in split(parsed, ChunkSettings())] == [
        ("甲", ("一",)),
        ("乙", ("二",)),
    ]


def test_chunks_do_not_cross_pages():
    drafts = split(document(Section("甲", 1), Section("乙", 2)), ChunkSettings())
    assert [(draft.text, draft.page) for draft in drafts] == [("甲", 1), ("乙", 2)]


def test_short_neighbours_under_one_heading_share_a_chunk():
    assert texts(document(Section("甲", 1, ("一",)), Section("乙", 1, ("一",)))) == ["甲\n\n乙"]


def test_a_heading_that_returns_later_is_not_merged_with_the_first():
    paths = [("一",), ("二",), ("一",)]
    drafts = split(document(*(Section("x", None, path) for path in paths)), ChunkSettings())
    assert [draft.heading_path for draft in drafts] == paths


def test_positions_count_through_the_whole_document():
    drafts = split(document(Section(SENTENCE * 4, 1), Section(SENTENCE * 4, 2)), ChunkSettings(size=20, overlap=0))
    assert [draft.position for draft in drafts] == list(range(8))


def test_blank_sections_give_no_chunks():
    assert texts(document(" \n\t", "\u3000")) == []


def test_without_a_tokenizer_tokens_are_approximated():
    assert texts(document("word " * 40), size=20, overlap=0, unit="tokens") == [("word " * 20).strip()] * 2


def test_a_given_tokenizer_counts_sizes_and_the_drafts_tokens():
    settings = ChunkSettings(size=20, overlap=0, unit="tokens", count_tokens=lambda text: 2 * len(text))
    drafts = split(document("字" * 25), settings)
    assert [(len(draft.text), draft.token_count) for draft in drafts] == [(10, 20), (10, 20), (5, 10)]


def test_characters_may_be_the_unit_while_a_tokenizer_counts_the_tokens():
    settings = ChunkSettings(size=20, overlap=0, count_tokens=lambda _text: 7)
    assert [draft.token_count for draft in split(document("字" * 20), settings)] == [7]


def test_a_tokenizer_that_counts_more_for_a_whole_than_for_its_parts_still_bounds_the_chunks():
    settings = ChunkSettings(size=20, overlap=0, unit="tokens", count_tokens=lambda text: len(text) ** 2 // 10)
    drafts = split(document("字" * 100), settings)
    assert max(draft.token_count for draft in drafts) <= 20
    assert "".join(draft.text for draft in drafts) == "字" * 100


def test_a_character_that_counts_more_than_a_chunk_is_a_chunk_of_its_own():
    settings = ChunkSettings(size=20, overlap=0, unit="tokens", count_tokens=lambda text: 30 * len(text))
    assert [draft.text for draft in split(document("甲 乙"), settings)] == ["甲", "乙"]


@given(st.lists(st.text(alphabet=MIXED, max_size=200), max_size=4), st.integers(20, 60))
def test_without_overlap_the_chunks_hold_every_visible_character_once_and_in_order(parts, size):
    parsed = document(*(Section(part, number) for number, part in enumerate(parts, 1)))
    assert visible("".join(texts(parsed, size=size, overlap=0))) == visible("".join(parts))


@given(st.lists(st.sampled_from(["。", ". ", "\n\n", "，", " ", "；\n", "!", "\t"]), max_size=60), st.data())
def test_with_overlap_every_word_is_in_some_chunk(separators, data):
    size = data.draw(st.integers(20, 60))
    overlap = data.draw(st.integers(0, size - 1))
    words = [f"w{number}w" for number in range(len(separators))]
    source = "".join(word + separator for word, separator in zip(words, separators, strict=True))
    joined = " ".join(texts(document(source), size=size, overlap=overlap))
    assert [word for word in words if word not in joined] == []


@given(
    st.text(alphabet=MIXED, max_size=400),
    st.integers(20, 60),
    st.integers(0, 19),
    st.sampled_from(["characters", "tokens"]),
)
def test_no_chunk_is_blank_or_longer_than_the_size(text, size, overlap, unit):
    settings = ChunkSettings(size=size, overlap=overlap, unit=unit)
    for draft in split(document(text), settings):
        assert 0 < settings.length(draft.text) <= size
        assert draft.text == draft.text.strip()
        assert draft.token_count == approximate_tokens(draft.text)


@given(st.text(alphabet=MIXED, max_size=300))
def test_splitting_is_deterministic(text):
    settings = ChunkSettings(size=30, overlap=10)
    assert split(document(text), settings) == split(document(text), settings)


@pytest.mark.parametrize("text", ["." * 200_000, "。" * 200_000, "\n" * 200_000, ")" * 200_000, "a\n" + " " * 200_000])
def test_long_runs_of_one_character_are_split(text):
    assert visible("".join(texts(document(text), overlap=0))) == visible(text)
