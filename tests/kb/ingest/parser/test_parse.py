import contextlib
import dataclasses
import re
import string
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from kb.base import findings
from kb.base.findings import REMARKS, RemarkCode
from kb.ingest.parser import parsed
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import (
    MESSAGES,
    SUPPORTED_EXTENSIONS,
    ParseError,
    Region,
    Section,
    clean,
    moved_regions,
)


def test_the_title_is_the_file_name_without_its_extension_when_the_file_names_none():
    assert parse("正文".encode(), "退款政策.v2.txt").title == "退款政策.v2"


def test_a_path_in_the_name_is_not_part_of_the_title():
    assert parse(b"text", "folder/notes.txt").title == "notes"


def test_the_extension_may_be_in_capitals():
    assert parse(b"text", "NOTES.TXT").mime == "text/plain"


@pytest.mark.parametrize("name", [f"a{extension}" for extension in SUPPORTED_EXTENSIONS])
@pytest.mark.parametrize("data", [b"", b" \n\t\r\n"], ids=["no bytes", "white space"])
def test_an_empty_file_is_reported_as_empty(name, data):
    with pytest.raises(ParseError) as caught:
        parse(data, name)
    assert caught.value.code == "empty_file"


@pytest.mark.parametrize("data", ["\ufeff\n".encode(), "\ufeff \u3000".encode("utf-16-le")])
def test_a_byte_order_mark_and_wide_spaces_are_no_text(data):
    with pytest.raises(ParseError) as caught:
        parse(data, "a.txt")
    assert caught.value.code == "empty_file"


def raised_codes():
    """The codes of parse errors that the code names."""
    root = Path(parsed.__file__).parents[2]
    sources = (path.read_text() for folder in ("ingest", "sources") for path in root.glob(f"{folder}/**/*.py"))
    return {code for source in sources for code in re.findall(r'(?:ParseError|office_error)\(\s*"(\w+)"', source)}


def test_every_code_has_a_message_that_makemessages_can_extract():
    source = "".join(Path(each.__file__).read_text(encoding="utf-8") for each in (parsed, findings))
    assert set(MESSAGES) == raised_codes() | {
        "legacy_office",
        "program",
    }  # of documents that an earlier version refused
    assert set(REMARKS) == set(RemarkCode)
    assert source.count("gettext_noop(") == len(MESSAGES) + len(RemarkCode) + 1


@pytest.mark.parametrize("code", [code for code in MESSAGES if code != "no_such_page"])  # of a page that is looked at
def test_every_message_says_what_to_upload_instead(code):
    assert "pload" in MESSAGES[code]
    assert MESSAGES[code].endswith(".")


def test_a_translated_template_takes_the_errors_parameters():
    error = ParseError("unsupported_type", supported=".pdf", detected="PNG (image/png)")
    assert "文件是 {detected}，请用 {supported}".format(**error.params) == "文件是 PNG (image/png)，请用 .pdf"


def test_clean_unifies_line_ends_and_drops_what_a_database_cannot_hold():
    assert clean("a\r\nb\rc\x00\ud800\ufeff  \n\n\n\nd\u2028e") == "a\nb\nc\n\nd\ne"


@given(st.text())
def test_cleaning_keeps_every_visible_character(text):
    invisible = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ufeff\ufffe\uffff\ud800-\udfff]")
    assert invisible.sub("", clean(text)) == invisible.sub("", text)


@given(st.text(alphabet=string.printable + "中文，。\u3000\u2028\x85"))
def test_cleaning_twice_changes_nothing_more(text):
    assert clean(clean(text)) == clean(text)


@given(
    st.text(alphabet="ab中。 \t\r\n\x00\x0b\x1f\u3000\u2028\x85\ufeff"),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
)
def test_regions_begin_with_the_same_letters_after_cleaning(text, starts):
    regions = tuple(Region(min(start, len(text))) for start in sorted(starts))
    cleaned = clean(text)
    moved = moved_regions(regions, text, cleaned)
    assert [clean(text[each.start :]).split() for each in regions] == [cleaned[each.start :].split() for each in moved]


@given(st.binary(max_size=400), st.sampled_from(SUPPORTED_EXTENSIONS))
def test_arbitrary_bytes_give_a_document_or_a_parse_error(data, extension):
    with contextlib.suppress(ParseError):
        assert all(section.text.strip() for section in parse(data, f"file{extension}").sections)


def test_sections_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Section("text").text = "other"
