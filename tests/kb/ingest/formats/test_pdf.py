import pytest

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats.pdf.reader import ranges
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError
from tests.kb.ingest.parser.documents import make_pdf, make_scan, make_table_pdf

LINE = "机器学习是人工智能的一个分支，研究计算机怎样模拟"


def texts(data):
    return [section.text for section in parse(data, "a.pdf").sections]


def failure(data):
    with pytest.raises(ParseError) as caught:
        parse(data, "a.pdf")
    return caught.value


def test_chinese_text_is_read_page_by_page():
    document = parse(make_pdf(["第一页的文字。"], ["第二页的文字。"]), "a.pdf")
    read = [(section.text, section.page, section.heading_path) for section in document.sections]
    assert read == [("第一页的文字。", 1, ()), ("第二页的文字。", 2, ())]
    assert document.mime == "application/pdf"


def test_chinese_lines_join_without_a_space_and_paragraphs_stay_apart():
    page = [LINE, "或实现人类的学习行为。", (96, "第二段从这里开始，并且说明什么是监督学习，"), "还有无监督学习。"]
    assert texts(make_pdf(page)) == [
        f"{LINE}或实现人类的学习行为。\n\n第二段从这里开始，并且说明什么是监督学习，还有无监督学习。"
    ]


def test_english_lines_join_with_a_space_and_hyphenation_is_undone():
    page = ["The library joins the lines of a para-", "graph and undoes hyphenation at the", "ends of lines on a page."]
    assert texts(make_pdf(page)) == [
        "The library joins the lines of a paragraph and undoes hyphenation at the ends of lines on a page."
    ]


def test_a_gap_between_lines_separates_paragraphs():
    assert texts(make_pdf([LINE, LINE, "", LINE])) == [f"{LINE}{LINE}\n\n{LINE}"]


def test_lines_with_wide_gaps_are_rows_of_a_table():
    page = ["商品名称", "", LINE, LINE]
    document = make_pdf([*page, "手机名称" + " " * 20 + "七天", "电脑名称" + " " * 20 + "九天"])
    assert texts(document)[0].split("\n\n")[-1] == "| 手机名称 | 七天 |\n| --- | --- |\n| 电脑名称 | 九天 |"


def test_a_page_without_text_is_left_out_and_the_others_keep_their_numbers():
    assert [section.page for section in parse(make_pdf(["一"], [], ["三"]), "a.pdf").sections] == [1, 3]


def test_a_line_of_control_characters_is_no_line():
    assert texts(make_pdf(["第一行没有完", "\x1f\x1f", "第二行。"])) == ["第一行没有完第二行。"]


def test_the_title_comes_from_the_metadata():
    assert parse(make_pdf(["正文"], title="机器学习入门"), "a.pdf").title == "机器学习入门"


@pytest.mark.parametrize("title", ["untitled", "about:blank", "Microsoft Word - draft 3.doc", "scan0001.pdf"])
def test_a_title_that_a_program_made_up_gives_way_to_the_file_name(title):
    assert parse(make_pdf(["正文"], title=title), "手册.pdf").title == "手册"


def test_a_real_title_that_names_a_program_is_kept():
    assert parse(make_pdf(["x"], title="Untitled dreams"), "a.pdf").title == "Untitled dreams"


def test_an_encrypted_pdf_asks_to_remove_the_password():
    error = failure(make_pdf(["秘密"], password="secret"))
    assert error.code == "protected"
    assert "Remove the protection" in str(error)


def test_a_scan_is_reported_as_such_with_its_number_of_pages():
    error = failure(make_scan(3))
    assert error.code == "no_text_layer"
    assert "3 pages" in str(error)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_pdf_is_damaged(share):
    data = make_pdf(["第一页的文字。"], ["第二页的文字。"])
    error = failure(data[: int(len(data) * share)])
    assert error.code == "damaged_file"
    assert "PDF" in str(error)


def test_a_pdf_with_a_header_only_is_damaged():
    assert failure(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + b"garbage " * 50).code == "damaged_file"


def test_a_pdf_without_pages_is_damaged():
    data = make_pdf(["x"]).replace(b"/Count 1", b"/Count 0")
    start = data.index(b"/Kids [") + len(b"/Kids [")
    end = data.index(b"]", start)
    assert failure(data[:start] + b" " * (end - start) + data[end:]).code == "damaged_file"


def test_a_page_that_cannot_be_loaded_is_damage_and_not_a_missing_page():
    data = make_pdf(["第一页"], ["第二页"])
    assert failure(data.replace(b"/Type /Page\n", b"/Type /Pogo\n", 1)).code == "damaged_file"


def test_a_ruled_table_is_one_in_markdown():
    rows = [["商品", "期限", "价格"], ["手机", "七天", "3000"], ["电脑", "九天", "5000"]]
    [section] = parse(make_table_pdf(rows), "a.pdf").sections
    assert section.text == "| 商品 | 期限 | 价格 |\n| --- | --- | --- |\n| 手机 | 七天 | 3000 |\n| 电脑 | 九天 | 5000 |"


def test_bookmarks_are_the_headings_of_what_follows_them():
    pages = (["前言。"], ["第一章 退款", "七天内。", "", "第二章 换货", "十天内。"], ["又一页。"])
    bookmarks = ((2, 0, "第一章 退款"), (2, 1, "第二章 换货"))
    read = parse(make_pdf(*pages, bookmarks=bookmarks), "a.pdf").sections
    assert [(section.text, section.page, section.heading_path) for section in read] == [
        ("前言。", 1, ()),
        ("第一章 退款\n\n七天内。", 2, ("第一章 退款",)),
        ("第二章 换货\n\n十天内。", 2, ("第一章 退款", "第二章 换货")),
        ("又一页。", 3, ("第一章 退款", "第二章 换货")),
    ]


def test_a_bookmark_whose_words_are_not_on_its_page_begins_with_the_page():
    document = parse(make_pdf(["前言。"], ["正文。"], bookmarks=((2, 0, "题外"),)), "a.pdf")
    assert [section.heading_path for section in document.sections] == [(), ("题外",)]


def test_scanned_pages_among_others_are_told_by_their_numbers():
    document = parse(make_pdf(["一"], None, None, ["四"], None), "a.pdf")
    assert [section.page for section in document.sections] == [1, 4]
    assert document.remarks == (Remark(RemarkCode.PAGES_WITHOUT_TEXT, {"pages": "2–3, 5"}),)
    assert "2–3, 5" in document.remarks[0].message


def test_a_blank_page_is_no_scan():
    assert parse(make_pdf(["一"], []), "a.pdf").remarks == ()


@pytest.mark.parametrize(("numbers", "text"), [([1], "1"), ([1, 2], "1–2"), ([1, 3, 4, 5, 9], "1, 3–5, 9"), ([], "")])
def test_page_numbers_are_written_as_ranges(numbers, text):
    assert ranges(numbers) == text


def test_a_tree_of_pages_that_contains_itself_ends():
    data = make_pdf(["正文"])
    start = data.index(b"/Kids [") + len(b"/Kids [")
    number = data.rindex(b" 0 obj", 0, start)
    number = data[data.rindex(b"\n", 0, number) + 1 : number]
    end = data.index(b"]", start)
    cyclic = data[:start] + f" {number.decode()} 0 R".encode().ljust(end - start) + data[end:]
    assert failure(cyclic).code in ("damaged_file", "no_text_layer")
