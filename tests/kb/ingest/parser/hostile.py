"""Files made to harm a parser, each with the codes that it may end with."""

import io
import json
import zipfile

import openpyxl

from tests.kb.ingest.formats.outlook import make_msg
from tests.kb.ingest.parser.documents import (
    make_docx,
    make_epub,
    make_pdf,
    make_pptx,
    make_scan,
    make_xlsx,
    make_zip,
    read_part,
    replace_part,
)
from tests.kb.ingest.parser.office_files import make_ole

MIB = 1024**2
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(40)
DOCX, XLSX, PPTX = make_docx("正文"), make_xlsx(["名", "值"], ["甲", "乙"]), make_pptx(("题", "正文"))
EPUB, PDF = make_epub({"章": "正文"}), make_pdf(["正文"], ["又一页"])
SHEET, STRINGS, SLIDE = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml", "ppt/slides/slide1.xml"

LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9)
)
BILLION_LAUGHS = f'<?xml version="1.0"?>{LAUGHS}]><x>&j;</x>'
XXE = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;</x>'
OVER_NETWORK = '<?xml version="1.0"?><!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd"><x/>'


def deep(tag, depth):
    return f"<{tag}>" * depth + "x" + f"</{tag}>" * depth


def bomb(package, part, size=200 * MIB):
    """A part of zeros, packed to a thousandth."""
    stream = io.BytesIO(package)
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as target, target.open(part, "w") as entry:
        for _ in range(size // MIB):
            entry.write(bytes(MIB))
    return stream.getvalue()


def encrypted_zip(data):
    changed = bytearray(data)
    changed[changed.index(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


def cyclic_pdf():
    """A tree of pages whose root is its own child."""
    start = PDF.index(b"/Kids [") + len(b"/Kids [")
    end = PDF.index(b"]", start)
    number = PDF[: PDF.rindex(b" 0 obj", 0, start)].rpartition(b"\n")[2]
    return PDF[:start] + (number + b" 0 R").ljust(end - start) + PDF[end:]


def distant_row():
    sheet = read_part(XLSX, SHEET).replace(b'r="2"', b'r="4000000000"').replace(b'"A2"', b'"A4000000000"')
    return replace_part(XLSX, SHEET, sheet)


def wide_sheet():
    workbook = openpyxl.Workbook(write_only=True)
    sheet = workbook.create_sheet()
    for _ in range(3):
        sheet.append(["x"] * 16_384)
    stream = io.BytesIO()
    workbook.save(stream)
    return stream.getvalue()


def deep_part(package, part):
    return replace_part(package, part, deep("a", 100_000))


HOSTILE = {
    # empty and truncated
    "no bytes": ("a.txt", lambda: b"", {"empty_file"}),
    "white space": ("a.md", lambda: b" \n\t" * 1000, {"empty_file"}),
    "empty document": ("a.docx", lambda: make_docx(""), {"empty_file"}),
    "empty workbook": ("a.xlsx", make_xlsx, {"empty_file"}),
    "truncated PDF": ("a.pdf", lambda: PDF[: len(PDF) // 2], {"damaged_file"}),
    "truncated DOCX": ("a.docx", lambda: DOCX[: len(DOCX) // 2], {"damaged_file"}),
    "truncated XLSX": ("a.xlsx", lambda: XLSX[:-10], {"damaged_file"}),
    "truncated PPTX": ("a.pptx", lambda: PPTX[: len(PPTX) // 3], {"damaged_file"}),
    "truncated EPUB": ("a.epub", lambda: EPUB[: len(EPUB) // 2], {"damaged_file"}),
    # protected
    "encrypted PDF": ("a.pdf", lambda: make_pdf(["秘密"], password="secret"), {"protected"}),
    "encrypted Office": ("a.xlsx", lambda: make_ole(EncryptedPackage=b"x"), {"protected"}),
    "encrypted part": ("a.docx", lambda: encrypted_zip(DOCX), {"protected"}),
    # of another type
    "picture as PDF": ("a.pdf", lambda: PNG, {"unsupported_type"}),
    "program as text": ("a.txt", lambda: b"MZ\x90\x00" + bytes(500), {"unsupported_type"}),
    "legacy Word": ("a.docx", lambda: OLE + "WordDocument".encode("utf-16-le"), {"damaged_file"}),
    "archive as text": ("a.txt", lambda: make_zip(**{"a.txt": "x"}), {"archive"}),
    "archive as DOCX": ("a.docx", lambda: make_zip(**{"a.txt": "x"}), {"damaged_file"}),
    "scan": ("a.pdf", lambda: make_scan(3), {"no_text_layer"}),
    # bombs
    "bomb in DOCX": ("a.docx", lambda: bomb(DOCX, "word/media/x.bin"), {"zip_bomb"}),
    "bomb in XLSX": ("a.xlsx", lambda: bomb(XLSX, "xl/worksheets/sheet9.xml"), {"zip_bomb"}),
    "bomb in PPTX": ("a.pptx", lambda: bomb(PPTX, "ppt/slides/slide9.xml"), {"zip_bomb"}),
    "bomb in EPUB": ("a.epub", lambda: bomb(EPUB, "OEBPS/x.xhtml"), {"zip_bomb"}),
    "ten thousand parts": (
        "a.docx",
        lambda: make_zip(**{"[Content_Types].xml": "", **{f"word/{n}": "" for n in range(10_001)}}),
        {"zip_bomb"},
    ),
    "zeros as text": ("a.txt", lambda: bytes(20 * MIB), {"binary_content"}),
    # entities
    "billion laughs in DOCX": (
        "a.docx",
        lambda: replace_part(DOCX, "word/document.xml", BILLION_LAUGHS),
        {"unsafe_xml"},
    ),
    "billion laughs in XLSX": ("a.xlsx", lambda: replace_part(XLSX, STRINGS, BILLION_LAUGHS), {"unsafe_xml"}),
    "billion laughs in PPTX": ("a.pptx", lambda: replace_part(PPTX, SLIDE, BILLION_LAUGHS), {"unsafe_xml"}),
    "billion laughs in EPUB": (
        "a.epub",
        lambda: replace_part(EPUB, "OEBPS/content.opf", BILLION_LAUGHS),
        {"unsafe_xml"},
    ),
    "external entity": ("a.xlsx", lambda: replace_part(XLSX, SHEET, XXE.encode("utf-16")), {"unsafe_xml"}),
    "document type over the network": (
        "a.pptx",
        lambda: replace_part(PPTX, SLIDE, OVER_NETWORK),
        {"unsafe_xml"},
    ),
    # programs
    "macros in Word": ("a.docx", lambda: replace_part(DOCX, "word/vbaProject.bin", b"x"), {"macros"}),
    "macros in Excel": ("a.xlsx", lambda: replace_part(XLSX, "xl/vbaProject.bin", b"x"), {"macros"}),
    # nesting
    "deep HTML": ("a.html", lambda: deep("div", 100_000).encode(), {"nested_too_deeply"}),
    "deep chapter": ("a.epub", lambda: make_epub({"章": deep("div", 100_000)}), {"nested_too_deeply"}),
    "deep Word": ("a.docx", lambda: deep_part(DOCX, "word/document.xml"), {"damaged_file"}),
    "deep slide": ("a.pptx", lambda: deep_part(PPTX, SLIDE), {"damaged_file"}),
    "deep JSON": ("a.jsonl", lambda: b"[" * MIB, {"not_a_pair"}),
    # sizes that are claimed
    "row number four billion": ("a.xlsx", distant_row, {"damaged_file"}),
    "a sheet of all columns": ("a.xlsx", wide_sheet, {"too_many_columns"}),
    "a million columns": ("a.csv", lambda: b"a," * 1_000_000 + b"a\n", {"too_many_columns"}),
    "a quotation without end": ("a.csv", lambda: b'a,b\n"' + b"x" * 2 * MIB, {"damaged_file"}),
    # contents
    "pages in a circle": ("a.pdf", cyclic_pdf, {"damaged_file", "no_text_layer"}),
    "mails nested a thousand deep": (
        "a.eml",
        lambda: b"Subject: m\nContent-Type: message/rfc822\n\n" * 1_000 + b"Subject: x\n\nx",
        {"nested_too_deeply"},
    ),
    "parts nested a thousand deep": (
        "a.eml",
        lambda: b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(1_000)),
        {"nested_too_deeply"},
    ),
    "deep HTML in a mail": (
        "a.eml",
        lambda: b"Subject: x\nContent-Type: text/html\n\n" + deep("div", 100_000).encode(),
        {"nested_too_deeply"},
    ),
    "an encrypted mail": (
        "a.eml",
        lambda: b"Content-Type: application/pkcs7-mime; smime-type=enveloped-data\n\nMIIB",
        {"encrypted_mail"},
    ),
    "half a mail of Outlook": (
        "a.msg",
        lambda: make_msg("x", "正文" * 5_000)[:9_000],
        {"binary_content", "damaged_file", "unsupported_type"},
    ),
    "a PDF of noise": ("a.pdf", lambda: b"%PDF-1.7\n" + bytes(range(256)) * 4000, {"damaged_file"}),
    "broken encoding": ("a.txt", lambda: ("中文" * 100).encode() + b"\xff\xfe\xfd", {"undecodable"}),
    "half a UTF-16 character": ("a.md", lambda: "中文".encode("utf-16")[:-1], {"undecodable"}),
    "lines of other objects": ("a.jsonl", lambda: json.dumps({"id": 1}).encode(), {"not_a_pair"}),
    "a book with a chapter outside": (
        "a.epub",
        lambda: replace_part(
            EPUB,
            "OEBPS/content.opf",
            read_part(EPUB, "OEBPS/content.opf").replace(b"chapter%201.xhtml", b"../../../etc/passwd"),
        ),
        {"damaged_file"},
    ),
}
