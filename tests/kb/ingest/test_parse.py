import contextlib
import dataclasses
import re
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.ingest import parse as parse_module
from kb.ingest.parse import MESSAGES, ErrorCode, ParseError, Section, clean, parse


def test_the_title_is_the_file_name_without_its_extension_when_the_file_names_none():
    assert parse("正文".encode(), "退款政策.v2.txt").title == "退款政策.v2"


def test_a_path_in_the_name_is_not_part_of_the_title():
    assert parse(b"text", "folder/notes.txt").title == "notes"


def test_the_extension_may_be_in_capitals():
    assert parse(b"text", "NOTES.TXT").mime == "text/plain"


@pytest.mark.parametrize("name", ["script.py", "old.doc", "table.xlsx"])
def test_an_unsupported_extension_is_named_with_those_that_are_supported(name):
    with pytest.raises(ParseError) as caught:
        parse(b"x", name)
    assert caught.value.code is ErrorCode.UNSUPPORTED_TYPE
    assert Path(name).suffix in caught.value.message
    assert ".docx" in caught.value.message


def test_a_name_without_extension_is_quoted():
    with pytest.raises(ParseError, match="“README”"):
        parse(b"x", "README")


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html", "a.pdf", "a.docx"])
@pytest.mark.parametrize("data", [b"", b" \n\t\r\n"], ids=["no bytes", "white space"])
def test_an_empty_file_is_reported_as_empty(name, data):
    with pytest.raises(ParseError) as caught:
        parse(data, name)
    assert caught.value.code is ErrorCode.EMPTY_FILE


@pytest.mark.parametrize("data", ["\ufeff\n".encode(), "\ufeff \u3000".encode("utf-16-le")])
def test_a_byte_order_mark_and_wide_spaces_are_no_text(data):
    with pytest.raises(ParseError) as caught:
        parse(data, "a.txt")
    assert caught.value.code is ErrorCode.EMPTY_FILE


def test_every_code_has_a_message_that_makemessages_can_extract():
    source = Path(parse_module.__file__).read_text(encoding="utf-8")
    assert set(MESSAGES) == set(ErrorCode)
    assert source.count("gettext_noop(") == len(ErrorCode) + 1


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_message_says_what_to_upload_instead(code):
    assert "pload" in MESSAGES[code]
    assert MESSAGES[code].endswith(".")


def test_a_translated_template_takes_the_errors_parameters():
    error = ParseError(ErrorCode.TYPE_MISMATCH, extension=".pdf", detected="PNG (image/png)")
    assert "文件 {extension} 实为 {detected}".format(**error.params) == "文件 .pdf 实为 PNG (image/png)"


def test_clean_unifies_line_ends_and_drops_what_a_database_cannot_hold():
    assert clean("a\r\nb\rc\x00\ud800\ufeff  \n\n\n\nd\u2028e") == "a\nb\nc\n\nd\ne"


@settings(deadline=None)
@given(st.text())
def test_cleaning_keeps_every_visible_character(text):
    invisible = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ufeff\ufffe\uffff\ud800-\udfff]")
    assert invisible.sub("", clean(text)) == invisible.sub("", text)


@settings(deadline=None)
@given(st.text(alphabet=string.printable + "中文，。\u3000\u2028\x85"))
def test_cleaning_twice_changes_nothing_more(text):
    assert clean(clean(text)) == clean(text)


@settings(deadline=None)
@given(st.binary(max_size=400), st.sampled_from([".txt", ".md", ".html", ".pdf", ".docx"]))
def test_arbitrary_bytes_give_a_document_or_a_parse_error(data, extension):
    with contextlib.suppress(ParseError):
        assert all(section.text.strip() for section in parse(data, f"file{extension}").sections)


def test_sections_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Section("text").text = "other"
