import struct
from pathlib import PurePath

import pytest

from kb.ingest.parser.parse import detect, detect_readable, parse
from kb.ingest.parser.parsed import OFFICE_FORMATS, ParseError
from tests.kb.ingest.parser.documents import make_docx, make_epub, make_pdf, make_pptx, make_xlsx, make_zip
from tests.kb.ingest.parser.office_files import make_ole, make_open_document, make_text

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(40)
EXE = b"MZ\x90\x00\x03\x00\x00\x00\x04\x00\x00\x00\xff\xff\x00\x00" + bytes(64)
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
EXCEL = struct.pack("<HHHH", 0x0809, 0, 0x000A, 0)  # the beginning and the end of a workbook's records
POWERPOINT_MACROS = bytes.fromhex("02000004 0c000000 00000000 01000000")


def refusal(data, name):
    with pytest.raises(ParseError) as caught:
        parse(data, name)
    return caught.value


@pytest.mark.parametrize(
    ("data", "name", "mime"),
    [
        (make_docx("正文"), "report.pdf", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        (
            make_xlsx(["名", "值"], ["甲", "乙"]),
            "report.docx",
            "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        ),
        (
            make_pptx(("题", "正文")),
            "notes.txt",
            "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        ),
        (make_pdf(["正文"]), "report.docx", "application/pdf"),
        (make_pdf(["正文"]), "report.html", "application/pdf"),
        (make_pdf(["正文"]), "no extension", "application/pdf"),
        (make_epub({"甲": "正文"}), "book.zip", "application/epub+zip"),
        (b"<!DOCTYPE html><title>x</title><p>y", "notes.txt", "text/html"),
        (b"<!DOCTYPE html><table><tr><td>y</table>", "export.csv", "text/html"),
        (b"plain words", "report.pdf", "text/plain"),
        (b"plain words", "script.py", "text/plain"),
        (b'{"question": "q", "answer": "a"}\n', "pairs.txt", "application/jsonl"),
    ],
)
def test_a_file_is_read_as_what_its_bytes_are_whatever_its_name_says(data, name, mime):
    assert parse(data, name).mime == mime


@pytest.mark.parametrize(
    ("name", "mime"),
    [("a.md", "text/markdown"), ("a.csv", "text/csv"), ("a.txt", "text/plain"), ("a.html", "text/html")],
)
def test_the_name_chooses_between_kinds_of_plain_text(name, mime):
    assert parse(b"# one, two\n", name).mime == mime


@pytest.mark.parametrize(
    ("data", "name", "detected"),
    [
        (PNG, "report.pdf", "PNG (image/png)"),
        (EXE, "notes.txt", "EXE (application/x-msdownload)"),
        (EXE, "notes.md", "EXE (application/x-msdownload)"),
        (
            make_zip(mimetype="application/vnd.oasis.opendocument.graphics"),
            "a.odg",
            "application/vnd.oasis.opendocument.graphics",
        ),
        (
            make_zip(**{"[Content_Types].xml": "x", "xl/workbook.bin": "x"}),
            "a.xlsb",
            "XLSB (application/vnd.ms-excel.sheet.binary.macroEnabled.12)",
        ),
    ],
)
def test_a_type_without_a_reader_is_named_with_those_that_are_read(data, name, detected):
    error = refusal(data, name)
    assert error.code == "unsupported_type"
    assert f"of the type {detected} cannot be read" in str(error)
    assert ".docx" in str(error)


@pytest.mark.parametrize("name", ["a.zip", "a.pdf", "a"])
def test_an_archive_is_no_document(name):
    assert refusal(make_zip(**{"a.txt": "x"}), name).code == "archive"


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx", "a.pptx", "a.epub"])
def test_an_archive_named_as_a_document_is_a_damaged_one(name):
    error = refusal(make_zip(**{"[Content_Types].xml": "x", "other/part": "x"}), name)
    assert error.code == "damaged_file"
    assert name[2:].upper() in str(error)


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html", "a.csv", "a.jsonl"])
@pytest.mark.parametrize("data", [b"text\x00text", b"\x01\x02\x03abc" * 9], ids=["NUL", "control characters"])
def test_text_with_binary_content_is_refused(data, name):
    assert refusal(data, name).code == "binary_content"


@pytest.mark.parametrize("words", ["BM25 ranks", "MZ is a country code", "GIF89a is a format", "PK is a surname"])
def test_text_that_begins_like_a_magic_number_is_text(words):
    assert parse(words.encode(), "notes.txt").sections[0].text == words


def test_a_few_control_characters_are_dropped_and_the_text_read():
    assert parse(b"page one\x07" + b" and more" * 40, "a.txt").sections[0].text.startswith("page one and")


@pytest.mark.parametrize(
    "start",
    [
        "<html>",
        "\ufeff<!doctype HTML>",
        '<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">',
        "<!-- saved -->\n<!-- twice --> <html lang=zh>",
    ],
)
def test_the_beginning_of_a_page_is_recognised(start):
    assert detect(start.encode()) == "html"


def test_a_page_in_utf_16_is_recognised():
    assert detect("\ufeff<html><body>正文".encode("utf-16-le")) == "html"


def test_markdown_that_begins_with_a_fragment_is_text():
    assert detect(b"<div align=center>logo</div>\n\n# Title") == "text"


def test_a_fragment_named_html_is_read():
    assert parse("<p>只有一段。</p>".encode(), "a.html").sections[0].text == "只有一段。"


def test_bytes_of_no_known_type_are_called_binary():
    assert detect(b"\x00\x01" * 30) == "binary"


def test_a_pdf_header_may_follow_some_bytes():
    assert detect(b"\x00junk\n" + make_pdf(["x"])) == "pdf"


def test_text_about_pdf_headers_is_text():
    assert detect(b"The header is %PDF-1.7") == "text"


def test_an_office_document_behind_a_password_is_told_apart_from_others():
    assert refusal(make_ole(EncryptedPackage=b"x"), "a.docx").code == "protected"
    assert refusal(OLE, "a.docx").code == "damaged_file"
    assert refusal(make_ole(Unknown=b"x"), "a.docx").code == "unsupported_type"


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (make_ole(WordDocument=bytes(32)), "notes.txt", ".doc"),
        (make_ole(Workbook=EXCEL), "a.doc", ".xls"),
        (make_ole(Book=EXCEL), "a", ".xls"),
        (make_ole(PowerPoint_Document=bytes(32)), "a.ppt", ".ppt"),
        (make_text("x"), "a.docx", ".odt"),
        (make_open_document("spreadsheet", "x"), "a.zip", ".ods"),
        (make_open_document("presentation", "x"), "a", ".odp"),
        (rb"{\rtf1 words}", "a.doc", ".rtf"),
    ],
)
def test_what_libreoffice_reads_is_told_by_its_bytes(data, name, kind):
    assert detect_readable(data, PurePath(name).suffix) == kind
    error = refusal(data, name)
    assert error.code == "office_missing"
    assert f"{kind[1:].upper()} format" in str(error)
    assert f"Save the file as {OFFICE_FORMATS[kind].target} " in str(error)
    assert "apt-get install" in str(error)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (make_ole(WordDocument=bytes(10) + b"\x00\x01" + bytes(20)), "a.doc"),
        (make_ole(Workbook=struct.pack("<HHHH", 0x0809, 0, 0x002F, 0) + EXCEL), "a.xls"),
        (make_ole(PowerPoint_Document=b"x", Current_User=bytes(12) + struct.pack("<I", 0xF3D1C4DF)), "a.ppt"),
        (make_text("x", manifest="<manifest:encryption-data/>"), "a.odt"),
    ],
)
def test_a_file_for_libreoffice_behind_a_password_is_protected(data, name):
    error = refusal(data, name)
    assert error.code == "protected"
    assert name[2:].upper() in str(error)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (make_ole(WordDocument=bytes(32), storages=("Macros",)), "a.doc"),
        (make_ole(Workbook=EXCEL, storages=("_VBA_PROJECT_CUR",)), "a.xls"),
        (make_ole(PowerPoint_Document=POWERPOINT_MACROS), "a.ppt"),
        (make_text("x", **{"Basic/Standard/Module1.xml": "x"}), "a.odt"),
        (make_text("x", **{"Scripts/python/run.py": "x"}), "a.odt"),
    ],
)
def test_a_file_for_libreoffice_with_macros_is_refused(data, name):
    assert refusal(data, name).code == "macros"


@pytest.mark.parametrize("name", ["旧版.doc", "a.XLS", "a.ppt", "a.odt", "a.rtf"])
@pytest.mark.parametrize(
    "data", [OLE, OLE + b"\xff\xfe\x00words" * 9, b"\xff\xff\x81\x20words" * 9, make_ole(Unknown=b"x")]
)
def test_a_file_named_for_libreoffice_that_holds_no_such_document_is_damaged(data, name):
    assert refusal(data, name).code == "damaged_file"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    ("data", "name"), [(make_ole(WordDocument=bytes(9_000)), "a.doc"), (make_text("x" * 9_000), "a.odt")]
)
def test_a_file_for_libreoffice_that_is_cut_off_is_damaged(data, name, share):
    assert refusal(data[: int(len(data) * share)], name).code == "damaged_file"


def test_a_page_that_an_office_program_has_saved_is_read():
    assert "words" in parse(b"<html><body><p>words</p></body></html>", "a.doc").sections[0].text


@pytest.mark.parametrize("name", ["x.exe", "X.EXE", "x.dll", "x.bat", "x.msi"])
def test_a_program_is_refused_by_its_name_whatever_it_holds(name):
    error = refusal(b"plain words", name)
    assert error.code == "unsupported_type"
    assert ".docx" in str(error)


def test_a_docx_cut_off_in_the_middle_is_damaged():
    data = make_docx("正文")
    error = refusal(data[: len(data) // 2], "a.docx")
    assert error.code == "damaged_file"
    assert "DOCX" in str(error)
