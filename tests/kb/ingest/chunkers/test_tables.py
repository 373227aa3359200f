import pytest
from hypothesis import given, strategies as st

from kb.ingest.chunkers.strategies import ChunkSettings, cut_text, split_text
from kb.ingest.formats.outline import markdown_table
from kb.ingest.parser.parsed import Section
from tests.kb.ingest.chunkers.cutting import cut, texts

HEADER = ("型号", "质保（月）")
ROWS = [(f"TH-{number:02d}", str(12 * number)) for number in range(1, 7)]
TABLE = markdown_table([HEADER, *ROWS])
SENTENCE = "机器学习是人工智能的一个分支。"


def test_each_part_of_a_table_has_its_header_and_whole_rows():
    parts = list(split_text(TABLE, ChunkSettings(size=70, overlap=0)))
    assert parts == [markdown_table([HEADER, *ROWS[start : start + 2]]) for start in (0, 2, 4)]


@pytest.mark.parametrize("strategy", ["recursive", "headings", "parent_child", "questions"])
def test_every_strategy_that_cuts_by_sentences_repeats_it(strategy):
    long_table = markdown_table([HEADER, *ROWS * 3])
    found = texts(
        cut(strategy, Section(f"{SENTENCE}\n\n{long_table}", 3, ("质保",)), size=90, overlap=0, parent_size=200)
    )
    rows = [text for text in found if "TH-" in text]
    assert len(rows) > 3
    assert all(
        text.removeprefix(SENTENCE).strip().startswith("| 型号 | 质保（月） |\n| --- | --- |\n| TH-") for text in rows
    )
    assert sum(text.count("TH-") for text in rows) == 18


def test_what_stands_before_and_after_a_short_table_shares_its_chunk():
    text = f"{SENTENCE}\n\n{markdown_table([HEADER, ROWS[0]])}\n\n{SENTENCE}"
    first, *_rest = split_text(f"{text}\n\n{SENTENCE * 5}", ChunkSettings(size=len(text), overlap=0))
    assert first == text


def test_a_row_that_is_longer_than_a_chunk_is_cut_by_sentences_below_the_header():
    table = markdown_table([HEADER, ("TH-01", SENTENCE * 6)])
    parts = list(split_text(table, ChunkSettings(size=80, overlap=0)))
    assert all(len(part) <= 80 for part in parts)
    assert all(part.startswith("| 型号 | 质保（月） |") for part in parts)
    assert "".join(parts).count(SENTENCE) == 6


def test_a_header_that_takes_half_of_a_chunk_is_not_repeated():
    table = markdown_table([("很长的表头" * 4, "另一个" * 4), *ROWS])
    parts = list(split_text(table, ChunkSettings(size=70, overlap=0)))
    assert sum("很长的表头" in part for part in parts) == 1


def test_a_page_is_that_of_the_rows_of_a_part():
    pages = [Section(markdown_table([HEADER, *ROWS]), page, ("表",)) for page in (1, 2)]
    found = cut("headings", *pages, size=70, overlap=0)
    assert [draft.page for draft in found] == [1, 1, 1, 2, 2, 2]


def test_lines_with_bars_that_are_no_table_are_text():
    text = "\n".join(f"| a {number} |" for number in range(30))
    assert all(not header for _place, _piece, header, _top in cut_text(text, ChunkSettings(size=50, overlap=0)))


def test_a_header_whose_first_row_does_not_fit_below_it_is_no_chunk_of_its_own():
    table = markdown_table([HEADER, ("TH-01", SENTENCE * 3), ROWS[1]])
    parts = list(split_text(table, ChunkSettings(size=60, overlap=0)))
    assert "\n".join(table.split("\n")[:2]) not in [part.strip() for part in parts]
    assert sum(part.count("TH-") for part in parts) == 2


OTHER = markdown_table([("甲", "乙"), ("丙", "丁")])


@given(
    st.lists(st.sampled_from([SENTENCE, "Two words. ", "\n\n", TABLE, OTHER, "| x |", "|", "\n"]), max_size=12),
    st.integers(20, 120),
)
def test_no_piece_is_longer_than_it_may_be_and_no_letter_is_lost(parts, size):
    text = "\n".join(parts)
    pieces = list(cut_text(text, ChunkSettings(size=size, overlap=0)))
    assert all(len(header + piece) <= size for _, piece, header, _ in pieces)
    assert all(text.startswith(piece, place) for place, piece, _, _ in pieces)
    assert all(text.startswith(header, top) for _, _, header, top in pieces)

    def rows(whole):
        """Without headers, which may stand before rows only."""
        for header in (TABLE, OTHER):
            whole = whole.replace("".join("".join(header.split("\n")[:2]).split()), "")
        return whole

    assert rows("".join("".join(piece for _, piece, _, _ in pieces).split())) == rows("".join(text.split()))
