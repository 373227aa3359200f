"""Answers of Docling Serve, made with Docling's own types, as documents."""

import io
import json

import msgspec
import pytest
from docling_core.types.doc import CoordOrigin, DocItemLabel
from hypothesis import given, strategies as st

from kb.base.findings import Remark, RemarkCode
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Region
from kb.ingest.remote_parsers.docling.document import convert_job
from tests.docling_server import cell, handbook, new_document, prov, result, table


def read(answer, name="手册.pdf", kind="pdf"):
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return msgspec.convert(convert_job(io.BytesIO(data), name, kind), ParsedDocument)


def of(document):
    return read(result(document)).sections


def failure(answer):
    with pytest.raises(ParseError) as caught:
        read(answer)
    return caught.value.code


def test_a_document_has_headings_pages_tables_and_no_furniture():
    document = read(result(handbook()))
    assert (document.title, document.mime) == ("手册", "application/pdf")
    assert [(each.page, each.heading_path, each.text) for each in document.sections] == [
        (1, ("保修",), "保修\n\n整机保修两年。"),
        (2, ("保修",), "表 1 保修期\n\n| 型号 | 质保（月） |\n| --- | --- |\n| TH-02 | 36 |"),
    ]


def test_each_part_has_its_place_as_shares_of_the_page():
    [first, second] = of(handbook())
    assert first.regions == (
        Region(0, 1, (0.1, 0.125, 0.5, 0.15)),
        Region(first.text.index("整机"), 1, (0.1, 0.25, 0.5, 0.3)),
    )
    assert second.regions[1] == Region(second.text.index("| 型号"), 2, (0.1, 0.5, 0.5, 0.75))


@pytest.mark.parametrize(
    ("place", "box"),
    [
        (prov(60, 700, 300, 600, origin=CoordOrigin.BOTTOMLEFT), (0.1, 0.125, 0.5, 0.25)),
        (prov(-50, -50, 300, 900), (0.0, 0.0, 0.5, 1.0)),
        (prov(700, 100, 900, 120), None),
        (prov(300, 100, 60, 120), None),
        (prov(60, 100, 300, 120, page=9), None),
    ],
    ids=["from below", "over the edge", "outside", "inside out", "no such page"],
)
def test_a_box_is_within_its_page_or_is_none(place, box):
    document = new_document()
    document.add_text(DocItemLabel.TEXT, "正文", prov=place)
    assert of(document)[0].regions == (Region(0, place.page_no, box),)


def test_levels_of_headings_make_a_path():
    document = new_document()
    document.add_title("手册")
    document.add_heading("保修", level=1)
    document.add_heading("范围", level=2)
    document.add_text(DocItemLabel.TEXT, "整机。")
    document.add_heading("退货", level=1)
    document.add_text(DocItemLabel.TEXT, "七天。")
    assert [(each.heading_path, each.text) for each in of(document)] == [
        (("手册", "保修", "范围"), "手册\n\n保修\n\n范围\n\n整机。"),
        (("手册", "退货"), "退货\n\n七天。"),
    ]
    assert read(result(document)).title == "手册"


def test_lists_code_footnotes_and_captions_read_as_text():
    document = new_document()
    group = document.add_list_group()
    document.add_list_item("断电", enumerated=True, marker="1.", parent=group)
    item = document.add_list_item("接线", enumerated=True, marker="2.", parent=group)
    inner = document.add_list_group(parent=item)
    document.add_list_item("红线", parent=inner)
    document.add_code("reset()")
    document.add_picture(caption=document.add_text(DocItemLabel.CAPTION, "图 1 接线"))
    document.add_text(DocItemLabel.FOOTNOTE, "注：须由电工操作。")
    inline = document.add_inline_group()
    document.add_text(DocItemLabel.TEXT, "整机", parent=inline)
    document.add_text(DocItemLabel.TEXT, "两年", parent=inline)
    assert of(document)[0].text == (
        "1. 断电\n2. 接线\n  - 红线\n\n```\nreset()\n```\n\n图 1 接线\n\n注：须由电工操作。\n\n整机两年"
    )


def test_merged_cells_stand_in_each_place_and_headings_over_columns_are_joined():
    document = new_document()
    cells = [
        cell("地区", 0, 0, rows=2, header=True), cell("2025", 0, 1, columns=2, header=True),
        cell("Q1", 1, 1, header=True), cell("Q2", 1, 2, header=True),
        cell("华北", 2, 0, rows=2), cell("1", 2, 1), cell("2", 2, 2), cell("3", 3, 1), cell("4", 3, 2),
    ]  # fmt: skip
    document.add_table(table(*cells))
    assert of(document)[0].text == (
        "| 地区 | 2025 / Q1 | 2025 / Q2 |\n| --- | --- | --- |\n| 华北 | 1 | 2 |\n| 华北 | 3 | 4 |"
    )


def test_a_document_that_was_read_in_part_says_so():
    document = read(result(handbook(), status="partial_success"))
    assert document.remarks == (Remark(RemarkCode.READ_IN_PART, {"parser": "Docling Serve"}),)


def changed(change):
    content = handbook().export_to_dict()
    change(content)
    return result(content)


def test_references_in_a_circle_are_followed_once():
    def circle(content):
        content["texts"][2]["children"] = [{"$ref": "#/body"}, {"$ref": "#/texts/2"}, {"$ref": "#/texts/1"}]
        content["body"]["children"] += [{"$ref": "#/texts/99"}, {"$ref": "#/nothing/0"}, {"$ref": ""}]

    assert [each.text for each in read(changed(circle)).sections] == [each.text for each in of(handbook())]


def test_a_table_without_end_is_refused():
    def spread(content):
        content["tables"][0]["data"]["num_rows"] = content["tables"][0]["data"]["num_cols"] = 10**9
        content["tables"][0]["data"]["table_cells"][0] |= {"end_row_offset_idx": 10**9, "end_col_offset_idx": 10**9}

    def overlap(content):
        data = content["tables"][0]["data"]
        data["num_rows"] = data["num_cols"] = 1_000
        data["table_cells"] *= 500
        for each in data["table_cells"]:
            each |= {"start_row_offset_idx": 0, "end_row_offset_idx": 1_000, "end_col_offset_idx": 1_000}

    assert failure(changed(spread)) == failure(changed(overlap)) == "parser_crashed"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", "parser_crashed"),
        (b"<html>", "parser_crashed"),
        (b"[" * 100_000, "parser_crashed"),
        (b"\xff\xfe", "parser_crashed"),
        ({"document": {"json_content": {"body": 5}}, "status": "success"}, "parser_crashed"),
        ({"failure": {"kind": "timeout"}}, "empty_file"),
        (result(None), "empty_file"),
        (result(new_document()), "empty_file"),
        (result(handbook(), status="failure"), "empty_file"),
    ],
)
def test_an_answer_of_another_shape_is_refused(answer, code):
    assert failure(answer) == code


@given(st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["body", "children", "$ref", "label", "texts", "prov"]), inner)))  # fmt: skip
def test_no_answer_raises_anything_else(content):
    with pytest.raises(ParseError):
        read(result(content if isinstance(content, dict) else None))
