from hypothesis import given, strategies as st

from kb.ingest.chunkers.strategies import ChunkSettings, located, split_text
from kb.ingest.parser.parsed import Section
from tests.kb.ingest.chunkers.cutting import cut, texts

SENTENCE = "机器学习是人工智能的一个分支。"


def test_what_stands_under_one_heading_is_one_chunk_over_its_pages():
    sections = [
        Section("甲。", 1, ("手册", "退款")),
        Section("乙。", 2, ("手册", "退款")),
        Section("丙。", 2, ("手册",)),
    ]
    drafts = cut("headings", *sections)
    assert [(draft.text, draft.page, draft.heading_path) for draft in drafts] == [
        ("甲。\n\n乙。", 1, ("手册", "退款")),
        ("丙。", 2, ("手册",)),
    ]


def test_a_long_section_is_cut_after_sentences_and_every_piece_knows_its_path_and_page():
    drafts = cut("headings", Section(SENTENCE * 2, 4, ("一",)), Section(SENTENCE * 2, 5, ("一",)), size=33, overlap=0)
    assert [(draft.text, draft.page, draft.heading_path) for draft in drafts] == [
        (SENTENCE * 2, 4, ("一",)),
        (SENTENCE * 2, 5, ("一",)),
    ]


def test_a_page_is_right_where_chunks_overlap():
    sections = [Section("".join(f"第{page}页第{n}句话在这里。" for n in range(6)), page, ("一",)) for page in (1, 2, 3)]
    for draft in cut("headings", *sections, size=40, overlap=15):
        assert draft.text.startswith(f"第{draft.page}页")


def test_rows_of_a_table_stay_by_themselves():
    rows = [Section(f"名称：{name}", None, ("表",), "record") for name in "甲乙"]
    assert texts(cut("headings", *rows)) == ["名称：甲", "名称：乙"]


@given(
    st.lists(st.sampled_from(["一句。", "Two words. ", "\n\n", " \n", "字" * 30, "同样。"]), max_size=40),
    st.integers(0, 19),
)
def test_pieces_are_found_where_they_stand(parts, overlap):
    text = "".join(parts)
    pieces = list(split_text(text, ChunkSettings(size=20, overlap=overlap)))
    places = list(located(text, pieces))
    assert [text[start : start + len(piece)] for start, piece in places] == pieces
