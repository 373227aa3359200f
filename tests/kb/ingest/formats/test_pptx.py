import io

import pptx
import pytest
from pptx.util import Inches

from kb.base.findings import Remark, RemarkCode
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError
from tests.kb.ingest.parser.documents import make_pptx, make_zip, replace_part, save


def read(presentation):
    return parse(presentation if isinstance(presentation, bytes) else save(presentation), "a.pptx")


def failure(data):
    with pytest.raises(ParseError) as caught:
        read(data)
    return caught.value


def blank(presentation):
    return presentation.slides.add_slide(presentation.slide_layouts[6])


BOX = (Inches(1), Inches(1), Inches(3), Inches(1))


def test_a_slide_is_a_page_under_its_title():
    sections = read(make_pptx(("开场", "欢迎\n大家"), ("退款", "七天内"))).sections
    assert [(section.text, section.page, section.heading_path) for section in sections] == [
        ("开场\n\n欢迎\n大家", 1, ("开场",)),
        ("退款\n\n七天内", 2, ("退款",)),
    ]


def test_the_notes_of_the_speaker_belong_to_their_slide():
    assert read(make_pptx(("开场", "欢迎", "先介绍自己"))).sections[0].text == "开场\n\n欢迎\n\n先介绍自己"


def test_tables_and_groups_are_text():
    presentation = pptx.Presentation()
    slide = blank(presentation)
    table = slide.shapes.add_table(2, 2, *BOX).table
    for index, text in enumerate(["商品", "期限", "手机", "7天"]):
        table.cell(index // 2, index % 2).text = text
    group = slide.shapes.add_group_shape().shapes.add_group_shape()
    group.shapes.add_textbox(*BOX).text_frame.text = "组内"
    [section] = read(presentation).sections
    assert section.text == "| 商品 | 期限 |\n| --- | --- |\n| 手机 | 7天 |\n\n组内"


def test_each_shape_has_its_place_on_the_slide_and_notes_have_none():
    presentation = pptx.Presentation()
    presentation.slide_width, presentation.slide_height = Inches(10), Inches(5)
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    title = slide.shapes.title
    title.left, title.top, title.width, title.height = Inches(0), Inches(0), Inches(10), Inches(1)
    title.text_frame.text = "标题"
    slide.shapes.add_textbox(Inches(1), Inches(2), Inches(3), Inches(1)).text_frame.text = "左边"
    slide.shapes.add_textbox(Inches(9), Inches(2), Inches(3), Inches(1)).text_frame.text = "伸出"
    slide.notes_slide.notes_text_frame.text = "备注"
    [section] = read(presentation).sections
    placed = [(section.text[each.start :].split("\n")[0], each.page, each.box) for each in section.regions]
    assert placed == [
        ("标题", 1, (0, 0, 1, 0.2)),
        ("左边", 1, pytest.approx((0.1, 0.4, 0.4, 0.6))),
        ("伸出", 1, pytest.approx((0.9, 0.4, 1, 0.6))),
        ("备注", 1, None),
    ]


def test_a_shape_in_a_group_that_was_moved_and_made_smaller_is_where_it_is_seen():
    presentation = pptx.Presentation()
    presentation.slide_width = presentation.slide_height = Inches(10)
    outer = blank(presentation).shapes.add_group_shape()
    inner = outer.shapes.add_group_shape()
    inner.shapes.add_textbox(Inches(2), Inches(2), Inches(2), Inches(2)).text_frame.text = "组内"
    inner.left, inner.top, inner.width, inner.height = Inches(4), Inches(4), Inches(4), Inches(4)  # twice as large
    outer.left, outer.top, outer.width, outer.height = Inches(1), Inches(6), Inches(1), Inches(1)
    outer._element.grpSpPr.xfrm.chOff.x = outer._element.grpSpPr.xfrm.chOff.y = Inches(2)
    outer._element.grpSpPr.xfrm.chExt.cx = outer._element.grpSpPr.xfrm.chExt.cy = Inches(8)
    [section] = read(presentation).sections
    # From (4, 4), 4 wide, of the outer one, which shows (2, 2) to (10, 10) on an inch from (1, 6)
    assert [each.box for each in section.regions] == [pytest.approx((0.125, 0.625, 0.175, 0.675))]


def test_a_merged_cell_of_a_table_stands_in_each_place_that_it_covers():
    presentation = pptx.Presentation()
    table = blank(presentation).shapes.add_table(3, 2, *BOX).table
    for index, text in enumerate(["商品", "期限", "手机", "7天", "", "9天"]):
        table.cell(index // 2, index % 2).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    assert read(presentation).sections[0].text == "| 商品 | 期限 |\n| --- | --- |\n| 手机 | 7天 |\n| 手机 | 9天 |"


def test_a_hidden_slide_is_left_out_and_told_and_the_others_keep_their_numbers():
    presentation = pptx.Presentation(io.BytesIO(make_pptx(("一", "甲"), ("二", "乙"), ("三", "丙"))))
    presentation.slides[1].element.set("show", "0")
    document = read(presentation)
    assert [section.page for section in document.sections] == [1, 3]
    assert document.remarks == (Remark(RemarkCode.HIDDEN_LEFT_OUT, {"names": "2"}),)


def test_the_title_is_the_property_or_the_first_slides():
    presentation = pptx.Presentation(io.BytesIO(make_pptx(("开场", "欢迎"))))
    assert read(presentation).title == "开场"
    presentation.core_properties.title = "年度计划"
    assert read(presentation).title == "年度计划"


def test_slides_without_text_are_empty():
    presentation = pptx.Presentation()
    blank(presentation)
    assert failure(save(presentation)).code == "empty_file"


@pytest.mark.parametrize("part", ["ppt/slides/slide1.xml", "ppt/presentation.xml", "[Content_Types].xml"])
@pytest.mark.parametrize("content", [b"", b"<a", b"<a/>"])
def test_a_broken_part_is_damage(part, content):
    assert failure(replace_part(make_pptx(("题", "文")), part, content)).code == "damaged_file"


def test_a_package_that_only_looks_like_a_presentation_is_damage():
    assert failure(make_zip(**{"[Content_Types].xml": "<Types/>", "ppt/x.xml": "<x/>"})).code == "damaged_file"
