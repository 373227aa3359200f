import io

import pptx
import pytest
from pptx.util import Inches

from kb.base.findings import Remark, RemarkCode
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section
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
    assert read(make_pptx(("开场", "欢迎\n大家"), ("退款", "七天内"))).sections == (
        Section("开场\n\n欢迎\n大家", 1, ("开场",)),
        Section("退款\n\n七天内", 2, ("退款",)),
    )


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
    assert read(presentation).sections == (Section("| 商品 | 期限 |\n| --- | --- |\n| 手机 | 7天 |\n\n组内", 1, ()),)


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
