import pytest

from kb.ingest.parser.parse import detect, parse
from kb.ingest.parser.parsed import ParseError
from tests.kb.ingest.parser.documents import make_docx, make_epub, make_pdf, make_pptx, make_xlsx, make_zip

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(40)
EXE = b"MZ\x90\x00\x03\x00\x00\x00\x04\x00\x00\x00\xff\xff\x00\x00" + bytes(64)
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)


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
        (rb"{\rtf1 words}", "notes.txt", "RTF (application/rtf)"),
        (
            make_zip(mimetype="application/vnd.oasis.opendocument.text"),
            "a.odt",
            "application/vnd.oasis.opendocument.text",
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
    assert f"is {detected}, which" in str(error)
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


def test_an_office_document_behind_a_password_is_told_apart_from_a_legacy_one():
    encrypted = OLE + "EncryptedPackage".encode("utf-16-le")
    assert refusal(encrypted, "a.docx").code == "protected"
    assert refusal(OLE, "a.docx").code == "binary_content"


@pytest.mark.parametrize(
    ("stream", "wanted"), [("WordDocument", ".docx"), ("Workbook", ".xlsx"), ("PowerPoint Document", ".pptx")]
)
def test_a_legacy_document_is_told_what_to_save_it_as(stream, wanted):
    error = refusal(OLE + stream.encode("utf-16-le"), "a.doc")
    assert error.code == "legacy_office"
    assert f"save it as {wanted}" in str(error)


@pytest.mark.parametrize(("name", "wanted"), [("旧版.doc", ".docx"), ("a.XLS", ".xlsx"), ("a.ppt", ".pptx")])
@pytest.mark.parametrize("data", [OLE, OLE + b"\xff\xfe\x00words" * 9, b"\xff\xff\x81\x20words" * 9])
def test_a_file_named_as_a_legacy_one_is_told_what_to_save_it_as(data, name, wanted):
    error = refusal(data, name)
    assert error.code == "legacy_office"
    assert f"save it as {wanted}" in str(error)


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
