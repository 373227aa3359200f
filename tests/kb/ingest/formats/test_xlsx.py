import datetime
import io

import openpyxl
import pytest
from hypothesis import given, strategies as st

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats import xlsx
from kb.ingest.formats.number_formats import shown
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
        "整数: 3\n小数: 0.3\n比例: 15.5%\n日期: 2024-05-01\n时刻: 2024-05-01 9:30:00\n是否: TRUE"
    ]


def test_a_hidden_sheet_is_left_out_and_told():
    workbook = openpyxl.load_workbook(io.BytesIO(make_xlsx(["名", "值"], ["甲", 1], 底稿=[["名"], ["乙"]])))
    workbook["底稿"].sheet_state = "hidden"
    document = read(save(workbook))
    assert [section.text for section in document.sections] == ["名: 甲\n值: 1"]
    assert document.remarks == (Remark(RemarkCode.HIDDEN_LEFT_OUT, {"names": "底稿"}),)


def save_of(fill, *rows):
    """A workbook whose sheet has the rows, and what `fill` does to it."""
    workbook = openpyxl.load_workbook(io.BytesIO(make_xlsx(*rows)))
    fill(workbook.active)
    return save(workbook)


def made(fill, *rows):
    return read(save_of(fill, *rows))


def merging(*ranges):
    def fill(sheet):
        for each in ranges:
            sheet.merge_cells(each)

    return fill


@pytest.mark.parametrize(
    ("value", "number_format", "text"),
    [
        (1299, "¥#,##0.00", "¥1,299.00"),
        (1299.5, '[$¥-804]#,##0.00;[Red]-"¥"#,##0.00', "¥1,299.50"),
        (-5, '[$¥-804]#,##0.00;[Red]-"¥"#,##0.00', "-¥5.00"),
        (-5, "#,##0;(#,##0)", "(5)"),
        (12, '0"kg"', "12kg"),
        (12.5, 'General" kg"', "12.5 kg"),
        (0, '_ * #,##0.00_ ;_ * -#,##0.00_ ;_ * "-"??_ ;_ @_ ', "-"),
        (1_234_567, '#,##0,"K"', "1,235K"),
        (5, "00000", "00005"),
        (0.005, "0.00", "0.01"),
        (-0.001, "0.00", "0.00"),
        (7, '[>5]"many";0', "7"),
        (12_345, "0.00E+00", "12345"),
        (0.5, "# ?/?", "0.5"),
        (1e300, "0.00", "1e+300"),
        (1, '"是";"否"', "是"),
        (datetime.date(2024, 5, 1), 'yyyy"年"m"月"d"日"', "2024年5月1日"),
        (datetime.date(2024, 5, 1), "dd.mm.yyyy", "01.05.2024"),
        (datetime.date(2024, 5, 1), "[$-409]d-mmm-yyyy;@", "1-May-2024"),
        (datetime.date(2024, 5, 1), "mm-dd-yy", "2024-05-01"),
        (datetime.time(14, 5), "h:mm AM/PM", "2:05 PM"),
        (datetime.timedelta(hours=26, minutes=5), "[h]:mm", "26:05:00"),
    ],
)
def test_a_value_reads_as_its_number_format_shows_it(value, number_format, text):
    def fill(sheet):
        sheet["B2"].value, sheet["B2"].number_format = value, number_format

    assert made(fill, ["名", "值"], ["甲", ""]).sections[0].text == f"名: 甲\n值: {text}"


@given(
    st.one_of(st.integers(), st.floats(), st.dates(), st.datetimes(), st.times(), st.booleans()),
    st.text(alphabet='0#?.,%;"\\[]$¥-<>=_*@ EmdyhsGeneral/年kg', max_size=40),
)
def test_no_number_format_breaks_a_value(value, number_format):
    assert isinstance(shown(value, number_format), str)


def test_errors_are_left_out():
    data = make_xlsx(["名", "值", "价"], ["甲", "#N/A", 1])
    assert texts(data) == ["名: 甲\n价: 1"]


def test_a_title_above_a_table_is_a_heading_of_its_records():
    document = made(merging("A1:C1"), ["销售报表"], ["单位：元"], ["型号", "单价", "质保"], ["TH-01", 399, 24])
    assert document.sections == (
        Section("单位：元", None, ("Sheet", "销售报表")),
        Section("型号: TH-01\n单价: 399\n质保: 24", None, ("Sheet", "销售报表"), SectionKind.RECORD),
    )


def test_a_header_of_two_rows_joins_the_headings_over_the_columns():
    rows = ["地区", 2024, "", 2025, ""], ["", "Q1", "Q2", "Q1", "Q2"], ["华北", 1, 2, 3, 4], ["华南", 5, 6, 7, 8]
    document = made(merging("A1:A2", "B1:C1", "D1:E1"), *rows)
    assert [section.text for section in document.sections] == [
        "地区: 华北\n2024 / Q1: 1\n2024 / Q2: 2\n2025 / Q1: 3\n2025 / Q2: 4",
        "地区: 华南\n2024 / Q1: 5\n2024 / Q2: 6\n2025 / Q1: 7\n2025 / Q2: 8",
    ]


def test_a_value_merged_over_rows_is_one_of_each():
    document = made(merging("A2:A3"), ["地区", "店"], ["华北", "一店"], ["", "二店"], ["华南", "三店"])
    assert [section.text for section in document.sections] == [
        "地区: 华北\n店: 一店", "地区: 华北\n店: 二店", "地区: 华南\n店: 三店",
    ]  # fmt: skip


def test_tables_apart_by_an_empty_row_have_headers_of_their_own():
    rows = ["型号", "价"], ["TH-01", 399], [], ["部门", "人", "电话"], ["客服", "张三", "123"]
    assert texts(make_xlsx(*rows)) == ["型号: TH-01\n价: 399", "部门: 客服\n人: 张三\n电话: 123"]


def test_titles_that_stand_alone_belong_to_the_table_below():
    rows = ["价目"], [], ["型号", "价"], ["TH-01", 399], [], ["库存"], ["型号", "价"], ["TH-02", 5]
    assert [(each.heading_path, each.text) for each in read(make_xlsx(*rows)).sections] == [
        (("Sheet", "价目"), "型号: TH-01\n价: 399"),
        (("Sheet", "库存"), "型号: TH-02\n价: 5"),
    ]


def test_an_empty_row_within_a_table_does_not_end_it():
    rows = ["型号", "价"], ["TH-01", 399], [], ["TH-02", 499], [], ["TH-03"], ["TH-04", 1]
    assert texts(make_xlsx(*rows)) == [
        "型号: TH-01\n价: 399",
        "型号: TH-02\n价: 499",
        "型号: TH-03",
        "型号: TH-04\n价: 1",
    ]


def test_tables_beside_each_other_are_read_one_after_the_other():
    rows = ["型号", "价", "", "部门", "电话"], ["TH-01", 399, "", "客服", "123"], ["TH-02", 499, "", "仓库", "456"]
    assert texts(make_xlsx(*rows)) == [
        "型号: TH-01\n价: 399", "型号: TH-02\n价: 499", "部门: 客服\n电话: 123", "部门: 仓库\n电话: 456",
    ]  # fmt: skip


def test_an_empty_column_within_a_table_keeps_nothing_apart():
    rows = ["型号", "价", "", "质保"], ["TH-01", 399, "", 24]
    assert texts(make_xlsx(*rows)) == ["型号: TH-01\n价: 399\n质保: 24"]


def test_addresses_of_links_stand_beside_their_text():
    def fill(sheet):
        sheet["A2"].hyperlink = "https://example.org/th-01"
        sheet["B2"] = '=HYPERLINK("https://example.org/m","手册")'

    data = made(fill, ["型号", "手册"], ["TH-01", ""])
    assert data.sections[0].text == "型号: TH-01 (https://example.org/th-01)"


def test_hidden_rows_and_columns_are_left_out_and_told():
    def fill(sheet):
        sheet.row_dimensions[3].hidden = sheet.column_dimensions["B"].hidden = True

    document = made(fill, ["名", "密", "值"], ["甲", "x", 1], ["乙", "y", 2], ["丙", "z", 3])
    assert [section.text for section in document.sections] == ["名: 甲\n值: 1", "名: 丙\n值: 3"]
    assert document.remarks == (Remark(RemarkCode.HIDDEN_LEFT_OUT, {"names": "Sheet!B:B, Sheet!3:3"}),)


def test_formulas_give_their_stored_values_and_others_are_told():
    def fill(sheet):
        sheet["B3"], sheet["B4"] = "=B2*2", "=B2*3"

    data = save_of(fill, ["名", "值"], ["甲", 1], ["乙", ""], ["丙", ""])
    stored = read_part(data, SHEET).replace(b"<f>B2*2</f><v></v>", b"<f>B2*2</f><v>2</v>")
    document = read(replace_part(data, SHEET, stored))
    assert [section.text for section in document.sections] == ["名: 甲\n值: 1", "名: 乙\n值: 2", "名: 丙"]
    assert document.remarks == (Remark(RemarkCode.FORMULAS_WITHOUT_VALUE, {"names": "Sheet!B4"}),)


def test_merged_cells_that_overlap_without_end_are_bounded():
    data = make_xlsx(["名", "值"], *[["甲", 1]] * 50)
    merged = b"<mergeCells>" + b'<mergeCell ref="A1:XFD1048576"/>' * 100_000 + b"</mergeCells></worksheet>"
    document = read(replace_part(data, SHEET, read_part(data, SHEET).replace(b"</worksheet>", merged)))
    assert len(document.sections) == 50


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
