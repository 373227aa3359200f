import pytest
from markdown_it.parser_inline import ParserInline

from kb.ingest.formats.markdown import parser
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParsedDocument, Section


def read(text):
    return parse(text.encode(), "a.md")


def only_text(text):
    (section,) = read(text).sections
    return section.text


def test_headings_become_paths():
    document = read("# 手册\n\n前言。\n\n## 退款\n\n七天内退款。\n\n# 附录\n\n表格。\n")
    assert document == ParsedDocument(
        "手册",
        (
            Section("手册\n\n前言。", None, ("手册",)),
            Section("退款\n\n七天内退款。", None, ("手册", "退款")),
            Section("附录\n\n表格。", None, ("附录",)),
        ),
        mime="text/markdown",
    )


def test_underlined_headings_count():
    assert read("标题\n===\n\n正文").sections[0].heading_path == ("标题",)


def test_marks_of_emphasis_links_and_images_go_and_their_words_stay():
    text = "**重要** *提示*：见 [文档](http://example.org) 和 ![示意图](a.png)，`code`。"
    assert only_text(text) == "重要 提示：见 文档 和 示意图，code。"


def test_code_keeps_its_lines_and_indents():
    assert only_text("Run:\n\n```py\ndef f():\n    return 1\n```") == "Run:\n\ndef f():\n    return 1"


def test_a_hash_in_code_is_no_heading():
    assert read("```sh\n# comment\n```").sections[0].heading_path == ()


def test_table_rows_keep_their_cells():
    assert (
        only_text("| 商品 | 期限 |\n|--|--|\n| 手机 | `7` 天 |\n\n下文")
        == "| 商品 | 期限 |\n| --- | --- |\n| 手机 | 7 天 |\n\n下文"
    )


def test_lists_keep_their_marks():
    assert only_text("步骤：\n\n1. 打开\n2. 关闭\n   - 断电") == "步骤：\n\n1. 打开\n2. 关闭\n- 断电"


def test_text_after_a_list_is_a_new_paragraph():
    assert only_text("- a\n- b\n\nafter") == "- a\n- b\n\nafter"


def test_soft_line_ends_join_chinese_without_a_space():
    assert only_text("第一行\n第二行\nand\nmore") == "第一行第二行 and more"


@pytest.mark.parametrize("text", ["一  \n二", "一<br>二", "一<br/>二"])
def test_hard_line_ends_stay(text):
    assert only_text(text) == "一\n二"


def test_html_blocks_give_their_text():
    assert only_text("<details>\n<summary>问</summary>\n<p>答</p>\n</details>") == "问\n\n答"


def test_inline_html_tags_go():
    assert only_text("按 <kbd>Ctrl</kbd> 键") == "按 Ctrl 键"


def test_an_html_comment_alone_is_no_text():
    assert only_text("<!-- note -->\n\n正文") == "正文"


def test_quotes_keep_their_text():
    assert only_text("> 引文\n> 续") == "引文续"


@pytest.mark.parametrize("fence", ["---", "..."])
def test_front_matter_gives_the_title_and_is_no_text(fence):
    document = read(f'---\ntitle: "售后 手册"\ntags: [a, b]\n{fence}\n# 第一章\n\n正文')
    assert document.title == "售后 手册"
    assert document.sections == (Section("第一章\n\n正文", None, ("第一章",)),)


def test_front_matter_without_a_title_leaves_it_to_the_first_heading():
    assert read("---\nlayout: page\n---\n# 第一章").title == "第一章"


def test_a_rule_at_the_beginning_is_no_front_matter():
    assert "重要的话" in read("---\n重要的话\n\n---\n正文").sections[0].text


def test_front_matter_that_never_closes_is_text():
    assert "title" in read("---\ntitle: x\n\n正文").sections[0].text


def test_a_document_without_headings_is_named_after_its_file():
    assert read("正文").title == "a"


def test_deeply_nested_quotes_keep_their_text():
    assert only_text(">" * 60 + " 深处") == "深处"


LARGE = 250_000
OPENINGS = (
    "![",
    "![a ",
    "[",
    "[![",
    "[a](",
    "![a](<",
    "[a][",
    "`",
    "` `` ",
    "*",
    "**a _b ",
    "<",
    "<a b='",
    "<!-- a ",
    "&a",
    "\\[",
)


@pytest.mark.parametrize("closing", ["", "]", "](x)"])
@pytest.mark.parametrize("opening", OPENINGS)
def test_what_is_opened_again_and_again_is_read_a_bounded_number_of_times(opening, closing, monkeypatch):
    looked_at = 0
    skip = ParserInline.skipToken

    def counted(inline, state):
        nonlocal looked_at
        looked_at += 1
        skip(inline, state)

    monkeypatch.setattr(ParserInline, "skipToken", counted)
    text = opening * (20_000 // len(opening)) + closing
    parser().parse(text)
    assert looked_at <= 12 * len(text)


def test_a_large_file_of_opened_pictures_is_text():
    text = "![" * (LARGE // 2)
    assert only_text(text) == text
