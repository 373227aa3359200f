import datetime
import io

import openpyxl
import pytest

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats import xlsx
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section, SectionKind
from tests.kb.ingest.parser.documents import make_xlsx, make_zip, read_part, replace_part, save

SHEET = "xl/worksheets/sheet1.xml"


def read(data):
    return parse(data, "a.xlsx")


def texts(data):
    return [section.text for section in read(data).sections]


def failure(data):
    with pytest.raises(ParseError) as caught:
        read(data)
    return caught.value


def test_rows_are_records_with_their_header_under_the_name_of_their_sheet():
    data = make_xlsx(["商品", "期限"], ["手机", "7天"], 保修=[["部件", "年"], ["电池", 2]])
    assert read(data).sections == (
        Section("商品: 手机\n期限: 7天", None, ("Sheet",), SectionKind.RECORD),
        Section("部件: 电池\n年: 2", None, ("保修",), SectionKind.RECORD),
    )


def test_numbers_percentages_and_dates_read_as_the_sheet_shows_them():
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.append(["整数", "小数", "比例", "日期", "时刻", "是否"])
    moment = datetime.datetime(2024, 5, 1, 9, 30)  # noqa: DTZ001 - Excel knows no zones
    sheet.append([3.0, 0.1 + 0.2, 0.155, datetime.date(2024, 5, 1), moment, True])
    sheet["C2"].number_format = "0.0%"
    assert texts(save(workbook)) == [
        "整数: 3\n小数: 0.3\n比例: 15.5%\n日期: 2024-05-01\n时刻: 2024-05-01 09:30\n是否: TRUE"
    ]


def test_a_hidden_sheet_is_left_out_and_told():
    workbook = openpyxl.load_workbook(io.BytesIO(make_xlsx(["名", "值"], ["甲", 1], 底稿=[["名"], ["乙"]])))
    workbook["底稿"].sheet_state = "hidden"
    document = read(save(workbook))
    assert [section.text for section in document.sections] == ["名: 甲\n值: 1"]
    assert document.remarks == (Remark(RemarkCode.HIDDEN_LEFT_OUT, {"names": "底稿"}),)


def test_columns_of_questions_and_answers_give_pairs():
    data = make_xlsx(["问题", "答案", "相似问题"], ["怎么退款？", "七天内申请。", "如何退货？\n能退吗？"])
    expected = Section.pair(
        "怎么退款？", "七天内申请。", alternatives=("如何退货？", "能退吗？"), heading_path=("Sheet",)
    )
    assert read(data).sections == (expected,)


def test_cells_far_right_and_far_down_cost_nothing():
    workbook = openpyxl.Workbook()
    workbook.active["A1"], workbook.active["XFD1048576"] = "左上", "右下"
    assert texts(save(workbook)) == ["左上", "右下"]


def test_a_row_numbered_beyond_what_a_sheet_holds_is_damage():
    data = make_xlsx(["名"], ["甲"])
    sheet = read_part(data, SHEET).replace(b'r="2"', b'r="4000000000"').replace(b'"A2"', b'"A4000000000"')
    assert failure(replace_part(data, SHEET, sheet)).code == "damaged_file"


def test_the_dimension_that_a_sheet_declares_is_not_believed():
    data = make_xlsx(["名", "值"], ["甲", "乙"])
    for declared in (b"A1:XFD1048576", b"A1"):
        sheet = read_part(data, SHEET).replace(b"A1:B2", declared)
        assert texts(replace_part(data, SHEET, sheet)) == ["名: 甲\n值: 乙"]


def test_a_workbook_without_values_is_empty():
    assert failure(make_xlsx()).code == "empty_file"


def test_a_workbook_whose_styles_are_none_is_read():
    assert texts(replace_part(make_xlsx(["名", "值"], ["甲", "乙"]), "xl/styles.xml", b"<a/>")) == ["名: 甲\n值: 乙"]


@pytest.mark.parametrize("part", [SHEET, "xl/workbook.xml", "[Content_Types].xml"])
@pytest.mark.parametrize("content", [b"", b"<a", b"<a/>"])
def test_a_broken_part_gives_damage_or_nothing_and_no_other_error(part, content):
    with pytest.raises(ParseError) as caught:
        read(replace_part(make_xlsx(["名"], ["甲"]), part, content))
    assert caught.value.code in ("damaged_file", "empty_file")


def test_a_package_that_only_looks_like_a_workbook_is_damage():
    assert failure(make_zip(**{"[Content_Types].xml": "<Types/>", "xl/x.xml": "<x/>"})).code == "damaged_file"


def test_rows_are_bounded_by_excels_own_limit(monkeypatch):
    monkeypatch.setattr(xlsx, "_MAX_ROWS", 2)
    assert failure(make_xlsx(["名"], ["甲"], ["乙"])).code == "damaged_file"
