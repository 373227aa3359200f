from hypothesis import given, strategies as st

from kb.ingest.formats.outline import (
    Cell,
    Line,
    Outline,
    flow,
    join_lines,
    markdown_table,
    paragraph,
    paragraphs,
)
from kb.ingest.parser.parsed import Region, Section

FULL = 400


def lines(*specifications, step=18):
    """Lines down a page, each (text) or (text, changes to a full line)."""
    made = []
    for number, (text, changes) in enumerate(
        specification if isinstance(specification, tuple) else (specification, {}) for specification in specifications
    ):
        values = {"left": 72, "right": 72 + FULL, "baseline": 800 - step * number, "height": 12} | changes
        made.append(Line(text, **values))
    return made


def texts(made):
    return [block.text for block in paragraphs(made)]


def test_chinese_lines_meet_without_a_space():
    assert join_lines(["机器学习是人工", "智能的分支，", "也是学科。"]) == "机器学习是人工智能的分支，也是学科。"


def test_english_lines_meet_with_a_space():
    assert join_lines(["the retrieval", " library "]) == "the retrieval library"


def test_a_chinese_and_an_english_line_meet_without_a_space():
    assert join_lines(["使用", "BM25"]) == "使用BM25"


def test_hyphenation_before_a_small_letter_is_undone():
    assert join_lines(["a hyphen-", "ated word"]) == "a hyphenated word"


def test_a_hyphen_before_a_capital_or_a_digit_stays():
    assert join_lines(["COVID-", "19 and", "Anglo-", "Saxon"]) == "COVID-19 and Anglo-Saxon"


def test_a_dash_after_a_space_is_no_hyphenation():
    assert join_lines(["pages 3 -", "seven"]) == "pages 3 - seven"


def test_flow_drops_a_line_end_between_chinese_characters_only():
    assert flow("中文\n  换行 空格\nand  english\nwords") == "中文换行 空格 and english words"


def test_no_lines_give_no_texts():
    assert texts([]) == []


def test_full_lines_are_one_paragraph():
    assert texts(lines("第一行没有完", "第二行也没有", "第三行。")) == ["第一行没有完第二行也没有第三行。"]


def test_a_short_line_that_ends_a_sentence_ends_the_paragraph():
    short = {"right": 72 + 0.9 * FULL}
    assert texts(lines("第一行没有完", ("到此为止。", short), "新的一段")) == [
        "第一行没有完到此为止。",
        "新的一段",
    ]


def test_a_line_almost_full_that_ends_no_sentence_goes_on():
    short = {"right": 72 + 0.9 * FULL}
    assert texts(lines("one line", ("and one", short), "more")) == ["one line and one more"]


def test_a_very_short_line_stands_alone_like_a_heading():
    assert texts(lines(("第一部分", {"right": 130}), "正文很长", "还有正文")) == ["第一部分", "正文很长还有正文"]


def test_an_indent_begins_a_paragraph():
    assert texts(lines("没有句号的一行", ("缩进的一行", {"left": 96}), "接着")) == [
        "没有句号的一行",
        "缩进的一行接着",
    ]


def test_a_wide_gap_between_lines_begins_a_paragraph():
    made = lines("line one", "line two", "line three")
    made.append(Line("below a gap", 72, 472, made[-1].baseline - 30, 12))
    assert texts(made) == ["line one line two line three", "below a gap"]


def test_a_change_of_size_begins_a_paragraph():
    assert texts(lines(("A heading", {"height": 20}), "the body")) == ["A heading", "the body"]


def test_list_marks_begin_a_paragraph():
    made = lines("包括：", "• 苹果", "1. first", "（二）其次", "三、再次", "第十二条 规定", "3.5 percent")
    assert texts(made) == ["包括：", "• 苹果", "1. first", "（二）其次", "三、再次", "第十二条 规定3.5 percent"]


def row(*cells):
    """A line of cells, each a text and where it begins; a letter is ten points wide."""
    made = tuple(Cell(text, left, left + 10 * len(text)) for text, left in cells)
    return " | ".join(text for text, _ in cells), {"left": made[0].left, "right": made[-1].right, "cells": made}


def test_rows_of_cells_are_a_table_by_their_columns():
    made = lines(row(("名", 72), ("价", 200)), row(("甲", 72), ("10", 205)), row(("乙", 72), ("20", 195)), "正文")
    assert texts(made) == ["| 名 | 价 |\n| --- | --- |\n| 甲 | 10 |\n| 乙 | 20 |", "正文"]


def test_a_cell_that_is_missing_leaves_its_column_empty():
    made = lines(row(("名", 72), ("价", 200), ("注", 300)), row(("甲", 72), ("见下", 300)))
    assert texts(made) == ["| 名 | 价 | 注 |\n| --- | --- | --- |\n| 甲 |  | 见下 |"]


def test_a_line_below_a_cell_goes_on_with_it():
    made = lines(
        row(("名", 72), ("说明", 200)),
        row(("甲", 72), ("第一行没", 200)),
        ("有完", {"left": 200, "right": 220}),
        "正文",
    )
    assert texts(made) == ["| 名 | 说明 |\n| --- | --- |\n| 甲 | 第一行没有完 |", "正文"]


def test_a_row_without_its_first_cell_is_a_row():
    made = lines(*(row(*cells) for cells in ([("North", 72), ("Q1", 200), ("10", 300)], [("Q2", 200), ("20", 300)])))
    assert texts(made) == ["| North | Q1 | 10 |\n| --- | --- | --- |\n|  | Q2 | 20 |"]


def test_one_row_is_no_table():
    assert texts(lines(row(("姓名", 72), ("李雯", 300)), "正文")) == ["姓名 | 李雯", "正文"]


def test_a_bar_within_a_cell_is_no_border():
    assert markdown_table([["a|b", "c\nd"], ["", " "], ["e"]]) == "| a\\|b | c d |\n| --- | --- |\n| e |  |"


def test_a_sentence_goes_on_in_the_next_column():
    made = lines("left one", "left two", "left three")
    made += [Line("right one", 300, 700, 800, 12), Line("right two", 300, 700, 782, 12)]
    assert texts(made) == ["left one left two left three right one right two"]


def test_a_finished_sentence_ends_with_its_column():
    assert texts([Line("结束了。", 72, 472, 100, 12), Line("右栏", 300, 700, 800, 12)]) == ["结束了。", "右栏"]


def test_a_hyphenated_line_never_ends_a_paragraph():
    assert texts(lines("a full line", ("hyphen-", {"right": 120}), "ated")) == ["a full line hyphenated"]


@given(st.lists(st.text(alphabet="中文。ab c.1", max_size=8), max_size=8))
def test_joining_keeps_every_visible_character_but_hyphens(texts):
    assert "".join(join_lines(texts).split()) == "".join("".join(texts).split())


@given(
    st.lists(
        st.builds(
            Line,
            text=st.text(alphabet="中文。ab.1", min_size=1, max_size=8),
            left=st.floats(0, 300),
            right=st.floats(300, 600),
            baseline=st.floats(0, 800),
            height=st.floats(1, 30),
        ),
        max_size=12,
    )
)
def test_paragraphs_keep_every_visible_character_in_order(made):
    kept = "".join("".join(texts(made)).split())
    assert kept == "".join(line.text for line in made)


def test_text_before_the_first_heading_has_no_path():
    outline = Outline()
    outline.block("preface")
    outline.heading(1, "A")
    outline.block("body")
    assert outline.sections() == (Section("preface"), Section("A\n\nbody", None, ("A",)))


def test_a_heading_replaces_those_of_its_level_and_below():
    outline = Outline()
    for level, title in [(1, "A"), (2, "B"), (3, "C"), (2, "D")]:
        outline.heading(level, title)
        outline.block(f"text of {title}")
    assert [section.heading_path for section in outline.sections()] == [("A",), ("A", "B"), ("A", "B", "C"), ("A", "D")]


def test_a_heading_without_text_is_carried_into_the_section_below_it():
    outline = Outline()
    outline.heading(1, "A")
    outline.heading(2, "B")
    outline.block("text")
    assert outline.sections() == (Section("A\n\nB\n\ntext", None, ("A", "B")),)


def test_a_heading_without_text_before_its_sibling_keeps_a_section_of_its_own():
    outline = Outline()
    outline.heading(2, "A")
    outline.heading(2, "B")
    assert outline.sections() == (Section("A", None, ("A",)), Section("B", None, ("B",)))


def test_an_empty_heading_or_block_is_ignored():
    outline = Outline()
    outline.heading(1, " \n ")
    outline.block("  ")
    assert outline.sections() == ()
    assert outline.first_heading == ""


def test_a_joined_block_follows_on_the_next_line_but_never_on_a_headings_line():
    outline = Outline()
    outline.heading(1, "A")
    outline.block("- one", joined=True)
    outline.block("- two", joined=True)
    assert outline.sections()[0].text == "A\n\n- one\n- two"


def test_a_heading_on_several_lines_is_one_line():
    outline = Outline()
    outline.heading(1, "A\n  B")
    assert outline.first_heading == "A B"


def placed(number, left, top, right, bottom):
    return Region(page=number, box=(left, top, right, bottom))


def test_a_section_knows_where_each_of_its_blocks_stands():
    outline = Outline()
    outline.turn(2)
    outline.heading(1, "标题", [placed(2, 0, 0, 1, 0.1)])
    outline.block("正文。")
    outline.block("• 甲", [placed(2, 0, 0.2, 1, 0.3)])
    outline.block("• 乙", [placed(2, 0, 0.3, 1, 0.4)], joined=True)
    [section] = outline.sections()
    assert [(section.text[each.start :].split("\n")[0], each.page, each.box) for each in section.regions] == [
        ("标题", 2, (0, 0, 1, 0.1)),
        ("正文。", 2, None),
        ("• 甲", 2, (0, 0.2, 1, 0.3)),
        ("• 乙", 2, (0, 0.3, 1, 0.4)),
    ]


def test_sections_of_blocks_without_a_place_have_no_regions():
    outline = Outline()
    outline.heading(1, "标题")
    outline.block("正文。")
    assert outline.sections()[0].regions == ()


@given(st.lists(st.sampled_from(["中文一行", "english words", "a hyphen-", "ated", "end."]), min_size=1, max_size=8))
def test_the_region_of_a_column_begins_with_its_first_line(words):
    made = [
        Line(text, 72, 472, 100 + 18 * (number % 2), 12, region=placed(1, 0, 0, 1, 1))
        for number, text in enumerate(words)
    ]
    block = paragraph(made)
    assert block.text == join_lines(words)
    assert len(block.regions) == 1 + len(words) // 2
    for region, text in zip(block.regions[1:], words[1::2], strict=True):
        assert block.text[region.start :].startswith(text.rstrip("-"))
