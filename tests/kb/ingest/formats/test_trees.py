import json
from contextlib import contextmanager

import pytest
from hypothesis import given, strategies as st

from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section, SectionKind
from tests.kb.ingest.parser.hostile import BILLION_LAUGHS, OVER_NETWORK, XXE

RECORD = SectionKind.RECORD


def of_json(value):
    return parse(
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode(), "a.json"
    ).sections


def of_xml(text, encoding="utf-8"):
    return parse(text.encode(encoding), "a.xml").sections


def failure(data, name):
    with pytest.raises(ParseError) as caught:
        parse(data, name)
    return caught.value.code


MODELS = [
    {"型号": "TH-01", "价": 399, "尺寸": {"宽": 8.50, "高": 9}},
    {"型号": "TH-02", "标签": ["新", "热"], "有": True},
]
EXPECTED = ("型号: TH-01\n价: 399\n尺寸.宽: 8.5\n尺寸.高: 9", "型号: TH-02\n标签: 新, 热\n有: true")


@pytest.mark.parametrize("value", [MODELS, {"items": MODELS}, {"data": [MODELS[0], MODELS[1]]}])
def test_a_list_of_objects_is_a_record_each(value):
    assert of_json(value) == tuple(Section(text, None, (), RECORD) for text in EXPECTED)


def test_other_json_reads_by_its_names():
    sections = of_json(
        {"名称": "说明", "版本": 2, "产品": MODELS[:1], "保修": {"期限": "24 个月", "范围": ["整机", "电池"]}}
    )
    assert sections == (
        Section("名称: 说明\n版本: 2"),
        Section(EXPECTED[0], None, ("产品",), RECORD),
        Section("期限: 24 个月\n范围: 整机, 电池", None, ("保修",)),
    )


def test_pairs_of_question_and_answer_are_pairs():
    assert of_json([{"question": "怎么退款？", "answer": "七天内申请。", "similar_questions": ["能退吗？"]}]) == (
        Section.pair("怎么退款？", "七天内申请。", alternatives=("能退吗？",)),
    )


def test_lists_within_a_record_have_their_place_in_its_names():
    assert of_json([{"订单": 7, "行": [{"货": "灯"}, {"货": "泵"}]}])[0].text == "订单: 7\n行.1.货: 灯\n行.2.货: 泵"


def test_a_name_that_comes_twice_keeps_both_values():
    assert of_json('[{"色": "红", "色": "蓝", "号": 1}]')[0].text == "色: 红, 蓝\n号: 1"


def test_numbers_read_as_they_are_written():
    digits = "9" * 5_000
    assert of_json(f'[{{"长": {digits}, "价": 1.10, "指": 1e400}}]')[0].text == f"长: {digits}\n价: 1.10\n指: 1e400"


@pytest.mark.parametrize("text", ["{", "[1,", '{"a" 1}', "nein"])
def test_broken_json_is_damage(text):
    assert failure(text.encode(), "a.json") == "damaged_file"


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '{"a":' * 900 + "1" + "}" * 900])
def test_json_nested_too_deeply_says_so(text):
    assert failure(text.encode(), "a.json") == "nested_values"


def test_a_million_keys_are_lines():
    [section] = of_json({f"k{number}": number for number in range(1_000_000)})
    assert section.text.startswith("k0: 0\nk1: 1\n")


def test_a_record_of_too_many_values_says_so():
    assert failure(json.dumps([{f"k{n}": n for n in range(5_000)}]).encode(), "a.json") == "too_many_values"


@contextmanager
def suppress_empty():
    try:
        yield
    except ParseError as error:
        if error.code != "empty_file":
            raise


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(JSON_VALUES)
def test_every_json_value_is_read_or_empty(value):
    with suppress_empty():
        assert all(section.text for section in of_json(json.dumps(value)))


def test_repeated_elements_are_records_with_their_attributes():
    xml = '<c><i id="1"><名>灯</名><价 币="CNY">399</价></i><i id="2"><名>泵</名></i></c>'
    assert [(each.text, each.kind) for each in of_xml(xml)] == [
        ("id: 1\n名: 灯\n价.币: CNY\n价: 399", RECORD), ("id: 2\n名: 泵", RECORD),
    ]  # fmt: skip


def test_other_xml_reads_by_its_names():
    assert of_xml("<设置><名>甲</名><网><址>10.0.0.1</址><口>80</口></网></设置>") == (
        Section("名: 甲"), Section("址: 10.0.0.1\n口: 80", None, ("网",)),
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "gb18030"])
def test_xml_is_read_in_the_encoding_that_it_declares(encoding):
    xml = f'<?xml version="1.0" encoding="{encoding}"?><c><i><名>灯</名></i><i><名>泵</名></i></c>'
    assert [each.text for each in of_xml(xml, encoding)] == ["名: 灯", "名: 泵"]


def test_docbook_reads_as_prose_under_its_titles():
    xml = (
        "<book xmlns='http://docbook.org/ns/docbook'><title>手册</title><chapter><title>安装</title>"
        "<para>先<emphasis>断电</emphasis>，再接线。</para><section><title>接线</title><para>红线接 L。</para></section>"
        "</chapter></book>"
    )
    document = parse(xml.encode(), "a.xml")
    assert document.title == "手册"
    assert [(each.heading_path[-1], each.text) for each in document.sections] == [
        ("安装", "手册\n\n安装\n\n先断电，再接线。"), ("接线", "接线\n\n红线接 L。"),
    ]  # fmt: skip


def test_entries_of_feeds_are_records_without_markup():
    rss = (
        "<rss version='2.0'><channel><title>公告</title><item><title>停电</title><link>https://example.org/1</link>"
        "<description>&lt;p&gt;周五 &lt;b&gt;停电&lt;/b&gt;&lt;/p&gt;</description></item></channel></rss>"
    )
    document = parse(rss.encode(), "a.xml")
    assert document.title == "公告"
    assert [each.text for each in document.sections] == [
        "公告", "title: 停电\nlink: https://example.org/1\ndescription: 周五 停电",
    ]  # fmt: skip


def test_xhtml_reads_as_a_page():
    xhtml = '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body><h1>章</h1><p>正文在此。</p></body></html>'
    assert parse(xhtml.encode(), "a.xml").mime == "text/html"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (BILLION_LAUGHS.encode(), "unsafe_xml"),
        (BILLION_LAUGHS.encode("utf-16"), "unsafe_xml"),
        (XXE.encode(), "unsafe_xml"),
        (OVER_NETWORK.encode(), "empty_file"),
        (b"<a><b></a>", "damaged_file"),
        (b"<a>" * 100_000 + b"</a>" * 100_000, "nested_values"),
    ],
)
def test_hostile_xml_ends_with_a_sentence(data, code):
    assert failure(data, "a.xml") == code
