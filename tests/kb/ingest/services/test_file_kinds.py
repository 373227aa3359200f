"""Files that are refused by names and first bytes; what the browser is told is what the server does."""

import json

import pytest
from django.utils import translation

from kb.base.errors import Rejected
from kb.ingest.parser import office
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, unsupported_name
from kb.ingest.services.file_kinds import check_kind, kinds_for_browser
from tests.kb.ingest.parser.documents import make_docx, make_zip
from tests.kb.ingest.parser.office_files import make_ole

OLE = make_ole(WordDocument=b"x")
ENCRYPTED = b"PK\x03\x04\x14\x00\x01\x00" + bytes(40)


@pytest.fixture(autouse=True)
def _english():
    with translation.override("en"):
        yield


def refusal(name, head):
    try:
        check_kind(name, head)
    except Rejected as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["x.exe", "X.EXE", "setup.msi", "run.bat", "a.jar"])
def test_a_program_is_refused_by_its_name_whatever_it_holds(name):
    assert refusal(name, b"plain words") == f"“{name}” is a program, which is not read: upload the document itself."


@pytest.mark.parametrize("head", [b"MZ\x90\x00" + bytes(60), b"\x7fELF\x02\x01\x01" + bytes(60)])
def test_a_program_is_refused_by_its_bytes_whatever_its_name(head):
    assert "is a program" in refusal("manual.pdf", head)


def test_text_that_begins_with_the_same_letters_is_text():
    assert refusal("a.txt", b"MZ is the mark of a program.") == ""


def test_an_encrypted_archive_is_refused():
    assert "protected by a password" in refusal("all.zip", ENCRYPTED)
    assert refusal("all.zip", make_zip(**{"a.txt": "x"})) == ""
    assert refusal("a.docx", make_docx("x")) == ""


@pytest.mark.parametrize("name", ["broken.docx", "broken.xlsx", "broken.epub", "broken.zip"])
def test_what_only_begins_like_an_archive_is_not_called_protected(name):
    head = b"PK\x03\x04 this is no archive at all"
    assert refusal(name, head[:6] + b"\xff\xff" + head[8:]) == ""  # its reader says what is wrong with it


@pytest.mark.parametrize("name", ["broken.docx", "broken.xlsx", "broken.epub"])
def test_what_only_begins_like_a_document_is_damaged(name):
    with pytest.raises(ParseError) as caught:
        parse(b"PK\x03\x04\xff\xff\xff\xffno document", name)
    assert caught.value.code == "damaged_file"
    assert name.rpartition(".")[2].upper() in str(caught.value)


def test_a_file_that_is_not_read_for_its_name_is_refused_by_its_name():
    """What it holds was never looked at."""
    assert str(unsupported_name("server.log")).startswith("Files of the type .log cannot be read.")


def test_an_old_document_is_refused_only_where_libreoffice_is_missing(monkeypatch):
    monkeypatch.setattr(office, "missing_parts", lambda: ["writer"])
    assert ".docx" in refusal("old.doc", OLE)
    assert refusal("old.doc", b"<html>saved as a page</html>") == ""
    assert refusal("old.xls", OLE) == ""
    monkeypatch.setattr(office, "missing_parts", list)
    assert refusal("old.doc", OLE) == ""


def test_the_browser_is_told_the_same_in_the_reader_s_language(monkeypatch):
    monkeypatch.setattr(office, "missing_parts", lambda: ["writer", "calc", "impress"])
    with translation.override("zh-hans"):
        assert kinds_for_browser()["empty"] == "文件中没有文本。请上传有内容的文件。"
    told = json.loads(json.dumps(kinds_for_browser()))
    programs, by_bytes, encrypted, *old = told["kinds"]
    assert ".exe" in programs["extensions"]
    assert programs["message"].startswith("“{name}” is a program")
    assert by_bytes["binary"]
    assert [0x4D, 0x5A] in by_bytes["beginnings"]
    assert encrypted["bit"] == [6, 1]
    assert {extension for kind in old for extension in kind["extensions"]} == {
        ".doc", ".xls", ".ppt", ".odt", ".ods", ".odp", ".rtf"
    }  # fmt: skip
    assert told["empty"].startswith("The file holds no text")
