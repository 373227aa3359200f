import io
import zipfile

import docx
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

from kb.ingest.formats import package
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import DEFAULT_READING, ParseError, Reading, Section, WordPart
from tests.kb.ingest.parser.documents import make_docx, make_zip, read_part, replace_part, save

DOCUMENT = "word/document.xml"


def read(document, *parts):
    reading = Reading(parts) if parts else DEFAULT_READING
    return parse(document if isinstance(document, bytes) else save(document), "a.docx", reading)


def failure(data):
    with pytest.raises(ParseError) as caught:
        parse(data, "a.docx")
    return caught.value


def insert(document, xml):
    """Adds an element at the end of the body, before its section properties."""
    document.element.body.insert(len(document.element.body) - 1, parse_xml(xml))


def test_headings_paragraphs_and_tables_come_in_document_order():
    document = docx.Document()
    document.add_heading("手册", 1)
    document.add_paragraph("前言。")
    document.add_heading("退款", 2)
    table = document.add_table(rows=2, cols=2)
    for cell, text in zip(table._cells, ["商品", "期限", "手机", "7天"], strict=True):
        cell.text = text
    document.add_paragraph("说明。")
    assert read(document).sections == (
        Section("手册\n\n前言。", None, ("手册",)),
        Section("退款\n\n| 商品 | 期限 |\n| --- | --- |\n| 手机 | 7天 |\n\n说明。", None, ("手册", "退款")),
    )


def test_merged_cells_stand_in_each_place_that_they_cover_and_rows_that_begin_later_there():
    document = docx.Document()
    table = document.add_table(rows=4, cols=3)
    for number, row in enumerate([("型号", "价格", ""), ("", "元", "美元"), ("甲", "1", "2"), ("", "3", "4")]):
        for column, text in enumerate(row):
            table.cell(number, column).text = text
    table.cell(0, 1).merge(table.cell(0, 2)).text = "价格"
    table.cell(0, 0).merge(table.cell(1, 0)).text = "型号"
    last = table.rows[3]._tr
    last.remove(last.tc_lst[0])
    last.insert(0, parse_xml(f'<w:trPr {nsdecls("w")}><w:gridBefore w:val="1"/></w:trPr>'))
    [section] = read(document).sections
    assert section.text == (
        "| 型号 | 价格 | 价格 |\n| --- | --- | --- |\n| 型号 | 元 | 美元 |\n| 甲 | 1 | 2 |\n|  | 3 | 4 |"
    )


def test_a_table_that_lays_out_a_page_is_text():
    document = docx.Document()
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "简历", "很长的一段经历。" * 80
    assert read(document).sections[0].text == "简历\n\n" + "很长的一段经历。" * 80


def test_a_style_based_on_a_heading_is_a_heading():
    document = docx.Document()
    style = document.styles.add_style("章节", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    style.base_style = document.styles["Heading 2"]
    document.add_paragraph("自定义标题", style=style)
    document.add_paragraph("正文")
    assert read(document).sections[0].heading_path == ("自定义标题",)


def test_an_outline_level_makes_a_heading():
    document = docx.Document()
    insert(document, f'<w:p {nsdecls("w")}><w:pPr><w:outlineLvl w:val="0"/></w:pPr><w:r><w:t>一级</w:t></w:r></w:p>')
    insert(document, f'<w:p {nsdecls("w")}><w:pPr><w:outlineLvl w:val="9"/></w:pPr><w:r><w:t>正文</w:t></w:r></w:p>')
    assert read(document).sections == (Section("一级\n\n正文", None, ("一级",)),)


def test_a_style_that_is_based_on_itself_is_no_endless_loop():
    document = docx.Document()
    style = document.styles.add_style("圈", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    style.base_style = style
    document.add_paragraph("正文", style=style)
    assert read(document).sections[0].text == "正文"


def test_text_in_content_controls_links_and_insertions_is_kept_and_deleted_text_is_not():
    document = docx.Document()
    ns = nsdecls("w")
    insert(document, f"<w:sdt {ns}><w:sdtContent><w:p><w:r><w:t>控件</w:t></w:r></w:p></w:sdtContent></w:sdt>")
    insert(
        document,
        f"<w:p {ns}><w:ins><w:r><w:t>新增</w:t></w:r></w:ins><w:del><w:r><w:delText>删除</w:delText></w:r></w:del>"
        "<w:hyperlink><w:r><w:t>链接</w:t></w:r></w:hyperlink><w:moveFrom><w:r><w:t>移走</w:t></w:r></w:moveFrom></w:p>",
    )
    assert read(document).sections[0].text == "控件\n\n新增链接"


def test_tabs_breaks_and_hyphens_inside_a_paragraph_are_kept():
    document = docx.Document()
    insert(
        document,
        f'<w:p {nsdecls("w")}><w:pPr><w:tabs><w:tab w:val="left" w:pos="9"/></w:tabs></w:pPr>'
        "<w:r><w:t>一</w:t><w:tab/><w:t>二</w:t><w:br/><w:t>三</w:t><w:noBreakHyphen/><w:t>四</w:t></w:r></w:p>",
    )
    assert read(document).sections[0].text == "一\t二\n三-四"


def test_a_nested_table_is_text_of_its_cell_once():
    document = docx.Document()
    outer = document.add_table(rows=1, cols=2)
    outer.cell(0, 0).text = "外"
    outer.cell(0, 1).add_table(rows=1, cols=1).cell(0, 0).text = "内"
    assert read(document).sections[0].text.split() == ["外", "|", "内"]


def test_an_empty_table_row_is_left_out():
    document = docx.Document()
    document.add_table(rows=2, cols=1).cell(1, 0).text = "有字"
    assert read(document).sections[0].text == "有字"


def test_the_title_is_the_title_paragraph_then_the_property_then_the_first_heading():
    document = docx.Document()
    document.core_properties.title = "属性标题"
    document.add_paragraph("正文")
    assert read(document).title == "属性标题"
    document.add_paragraph("文中标题", style="Title")
    assert read(document).title == "文中标题"
    untitled = docx.Document()
    untitled.add_heading("第一章", 1)
    assert read(untitled).title == "第一章"


def test_a_document_without_text_is_empty():
    assert failure(make_docx("", "  ")).code == "empty_file"


@pytest.mark.parametrize("xml", [b"", b"<w:document", b"<a/>"])
def test_a_broken_main_part_is_damage(xml):
    assert failure(replace_part(make_docx("正文"), DOCUMENT, xml)).code == "damaged_file"


def test_a_package_without_a_main_part_is_damage():
    assert failure(make_zip(**{"[Content_Types].xml": "<Types/>", "word/x.xml": "<x/>"})).code == "damaged_file"


def test_a_part_whose_bytes_are_changed_is_damage():
    data = bytearray(make_docx("正文"))
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        entry = archive.getinfo(DOCUMENT)
    start = entry.header_offset + 30 + len(DOCUMENT)
    data[start + 20 : start + 60] = bytes(40)
    assert failure(bytes(data)).code == "damaged_file"


@pytest.mark.parametrize(
    "declaration",
    [
        '<!DOCTYPE w:document [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>',
        '<!DOCTYPE w:document [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE w:document SYSTEM "http://example.org/x.dtd">',
    ],
    ids=["expansion", "file", "network"],
)
def test_declared_entities_are_refused_before_the_xml_is_parsed(declaration):
    original = make_docx("正文")
    xml = read_part(original, DOCUMENT).decode().replace("<w:document", f"{declaration}<w:document", 1)
    assert failure(replace_part(original, DOCUMENT, xml.encode())).code == "unsafe_xml"


def test_declared_entities_in_utf_16_are_refused():
    original = make_docx("正文")
    xml = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'
    assert failure(replace_part(original, DOCUMENT, xml.encode("utf-16"))).code == "unsafe_xml"


def test_a_part_that_unpacks_to_far_more_than_it_packs_is_a_bomb():
    data = replace_part(make_docx("正文"), "word/media/image1.png", bytes(17 * 1024**2))
    error = failure(data)
    assert error.code == "zip_bomb"
    assert "unpacks" in str(error)


@pytest.mark.parametrize("name", ["_MAX_ENTRIES", "_MAX_UNPACKED", "_MAX_XML"])
def test_each_limit_of_the_archive_is_checked(name, monkeypatch):
    monkeypatch.setattr(package, name, 5)
    assert failure(make_docx("正文")).code == "zip_bomb"


def test_a_blank_picture_is_no_bomb():
    assert read(replace_part(make_docx("正文"), "word/media/image1.bmp", bytes(4 * 1024**2))).sections[0].text == "正文"


def test_a_long_repetitive_document_is_no_bomb():
    assert len(read(make_docx(*["同样的一段话。"] * 3000)).sections[0].text) > 3000


NOTES_TYPE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/{}s"


def add_notes(document, kind, **texts):
    """Notes by id, as Word stores them: in a part of their own."""
    notes = "".join(
        f'<w:{kind} w:id="{key[1:]}"><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:{kind}>' for key, text in texts.items()
    )
    xml = f"<w:{kind}s {nsdecls('w')}>{notes}</w:{kind}s>"
    name = docx.opc.packuri.PackURI(f"/word/{kind}s.xml")
    part = docx.opc.part.Part(name, f"application/vnd.x.{kind}s+xml", xml.encode(), document.part.package)
    document.part.relate_to(part, NOTES_TYPE.format(kind))


@pytest.mark.parametrize("kind", ["footnote", "endnote"])
def test_a_note_follows_the_paragraph_that_refers_to_it(kind):
    document = docx.Document()
    reference = f'<w:r><w:{kind}Reference w:id="2"/></w:r>'
    insert(document, f"<w:p {nsdecls('w')}><w:r><w:t>正文</w:t></w:r>{reference}</w:p>")
    document.add_paragraph("下一段")
    add_notes(document, kind, _1="没有引用", _2="注释内容")
    assert read(document).sections[0].text == "正文\n注释内容\n\n下一段"


def test_headers_and_footers_are_read_once_and_page_numbers_are_not():
    document = docx.Document()
    document.add_heading("章", 1)
    first = document.sections[0]
    first.header.paragraphs[0].text = "内部资料"
    first.footer.paragraphs[0].text = "3"
    document.add_section().header.is_linked_to_previous = True
    assert read(document, WordPart.MARGINS).sections == (Section("内部资料"), Section("章", None, ("章",)))
    assert read(document).sections == (Section("章", None, ("章",)),)


def test_comments_are_read_by_choice_and_follow_the_paragraph_that_they_are_on():
    document = docx.Document()
    first = document.add_paragraph("期限是七天。")
    document.add_paragraph("下一段")
    document.add_comment(first.runs, "与合同不符", author="李四")
    document.add_comment(first.runs, "Check this", author="")
    assert read(document).sections[0].text == "期限是七天。\n\n下一段"
    assert read(document, WordPart.COMMENTS).sections[0].text == (
        "期限是七天。\n批注（李四）：与合同不符\nComment: Check this\n\n下一段"
    )


def test_notes_are_left_out_by_choice():
    document = docx.Document()
    insert(document, f'<w:p {nsdecls("w")}><w:r><w:t>正文</w:t><w:footnoteReference w:id="2"/></w:r></w:p>')
    add_notes(document, "footnote", _2="注释内容")
    assert read(document).sections[0].text == "正文\n注释内容"
    assert read(document, WordPart.COMMENTS).sections[0].text == "正文"


def test_of_tracked_changes_what_was_inserted_is_read_with_its_notes_and_what_was_deleted_is_not():
    document = docx.Document()
    ns = nsdecls("w")
    kept, gone = (f'<w:r><w:footnoteReference w:id="{number}"/></w:r>' for number in (2, 3))
    deleted = f"<w:del><w:r><w:delText>五天</w:delText></w:r>{gone}</w:del>"
    insert(document, f"<w:p {ns}><w:ins><w:r><w:t>七天</w:t></w:r>{kept}</w:ins>{deleted}</w:p>")
    add_notes(document, "footnote", _2="自签收之日起", _3="自下单之日起")
    assert read(document).sections[0].text == "七天\n自签收之日起"


def test_a_hundred_thousand_comments_are_read():
    document = docx.Document()
    count = 100_000
    marks = "".join(f'<w:r><w:commentReference w:id="{number}"/></w:r>' for number in range(count))
    insert(document, f"<w:p {nsdecls('w')}><w:r><w:t>正文</w:t></w:r>{marks}</w:p>")
    add_notes(document, "comment", **{f"_{number}": f"批注{number}" for number in range(count)})
    text = read(document, WordPart.COMMENTS).sections[0].text
    assert text.count("\n") == count
    assert text.endswith(f"批注{count - 1}")


def test_a_document_with_macros_is_refused():
    error = failure(replace_part(make_docx("正文"), "word/vbaProject.bin", b"program"))
    assert error.code == "macros"
