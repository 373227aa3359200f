import pytest
from hypothesis import given, strategies as st

from kb.ingest.formats.text import decode, is_binary
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section

CHINESE = "机器学习是人工智能的一个分支，研究计算机怎样模拟人类的学习行为。\n第二行：GB18030 与 UTF-8。"


def test_plain_text_is_one_section_with_its_lines_as_they_are():
    text = "第一行\n\n    第三行，有缩进"
    assert parse(text.encode(), "笔记.txt") == ParsedDocument("笔记", (Section(text, None, ()),), mime="text/plain")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030", "gbk", "gb2312"])
def test_chinese_text_is_read_in_every_supported_encoding(encoding):
    assert parse(CHINESE.encode(encoding), "a.txt").sections[0].text == CHINESE


@pytest.mark.parametrize(("mark", "encoding"), [(b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")])
def test_utf_16_is_read_in_both_byte_orders(mark, encoding):
    assert decode(mark + CHINESE.encode(encoding)) == CHINESE


def test_traditional_and_rare_characters_in_gb18030_are_read():
    text = "機器學習與龘𠮷"
    assert decode(text.encode("gb18030")) == text


def test_one_chinese_character_among_latin_words_is_read():
    assert decode("Grade A 级".encode("gb18030")) == "Grade A 级"


@pytest.mark.parametrize("text", ["caf\xe9", "na\xefve words, \xe0 la carte", "stra\xdfe und gr\xfcn"])
def test_western_encodings_are_refused_rather_than_read_as_rare_chinese(text):
    with pytest.raises(ParseError) as caught:
        decode(text.encode("latin-1"))
    assert caught.value.code == "undecodable"
    assert "UTF-8" in str(caught.value)


def test_utf_8_with_a_broken_byte_is_refused_rather_than_read_as_gb18030():
    data = CHINESE.encode()
    with pytest.raises(ParseError) as caught:
        decode(data[:9] + data[10:])
    assert caught.value.code == "undecodable"


def test_utf_16_with_half_a_character_is_refused():
    with pytest.raises(ParseError) as caught:
        decode(b"\xff\xfe\x2d")
    assert caught.value.code == "undecodable"


def test_a_declared_encoding_is_honoured():
    assert decode("naïve café".encode("cp1252"), declared="iso-8859-1") == "naïve café"


def test_a_declared_encoding_does_not_overrule_valid_utf_8():
    assert decode("正文".encode(), declared="gbk") == "正文"


@pytest.mark.parametrize("declared", ["rot13", "zlib", "unicode_escape", "utf-7", "no-such-codec", "a\0b", ""])
def test_a_declaration_that_names_no_text_encoding_is_ignored(declared):
    assert decode("正文内容".encode("gb18030"), declared=declared) == "正文内容"


def test_bytes_that_do_not_fit_the_declared_encoding_are_refused():
    with pytest.raises(ParseError) as caught:
        decode(b"\xff\xff\xff", declared="shift_jis")
    assert caught.value.code == "undecodable"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_utf_8_round_trips(text):
    assert decode(text.encode()) == text.removeprefix("\ufeff")


@given(st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5), min_size=20))
def test_chinese_text_is_never_binary(text):
    assert not is_binary(text.encode("gb18030"))
