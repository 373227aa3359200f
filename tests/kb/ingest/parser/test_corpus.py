"""One real file a format through the whole ingestion: a known passage is found in the right chunk."""

import io

import docx
import pytest
from django.core.files.base import ContentFile

from kb.ingest.parser.parsed import OFFICE_FORMATS, SUPPORTED_EXTENSIONS
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk
from tests.factories import make_kb
from tests.kb.ingest.formats.outlook import make_msg
from tests.kb.ingest.parser.documents import make_docx, make_epub, make_pdf, make_pptx, make_xlsx, save

PASSAGE = "退货须在七天之内提出"
OTHER = "运费由卖家承担"
FILLER = "这一段文字讲的是别的事情，只为让文件长一些。" * 40


def word():
    document = docx.Document(io.BytesIO(make_docx("前言。")))
    document.add_heading("总则", 1)
    document.add_paragraph(FILLER)
    document.add_heading("退货", 2)
    document.add_paragraph(f"{PASSAGE}。")
    return save(document)


MARKDOWN = f"# 总则\n\n{FILLER}\n\n## 退货\n\n{PASSAGE}。\n\n## 运费\n\n{OTHER}。\n"
HTML = f"<html><body><h1>总则</h1><p>{FILLER}</p><h2>退货</h2><p>{PASSAGE}。</p></body></html>"
PAIRS = (
    f'{{"question": "何时可以退货？", "answer": "{PASSAGE}。"}}\n{{"question": "谁付运费？", "answer": "{OTHER}。"}}'
)
PDF = make_pdf(["总则", "前言。"], ["退货", f"{PASSAGE}。"], bookmarks=((1, 0, "总则"), (2, 1, "退货")))
JSON = f'{{"版本": "1", "退货": [{{"事项": "退货", "规定": "{PASSAGE}"}}, {{"事项": "运费", "规定": "{OTHER}"}}]}}'
XML = f"<规则><条><事项>退货</事项><规定>{PASSAGE}</规定></条><条><事项>运费</事项><规定>{OTHER}</规定></条></规则>"
TABLE = f"事项,规定\n退货,{PASSAGE}\n运费,{OTHER}\n"

SRT = (
    f"1\n00:00:01,000 --> 00:00:04,000\n{FILLER}\n\n"
    f"2\n00:12:34,000 --> 00:12:38,000\n{PASSAGE}。\n\n3\n00:12:38,000 --> 00:12:40,000\n{OTHER}。\n"
)
VTT = "WEBVTT\n\n" + SRT.replace(",000", ".000").replace(f"{PASSAGE}", f"<v 张三>{PASSAGE}")
MAIL = (
    "Subject: 退货\r\nContent-Type: text/plain; charset=gb2312\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
    f"{FILLER}\r\n\r\n{PASSAGE}。\r\n"
)

# name, bytes, page and headings of the chunk that holds the passage
CORPUS = [
    ("规则.txt", f"{FILLER}\n\n{PASSAGE}。".encode("gb18030"), None, []),
    ("规则.md", MARKDOWN.encode(), None, ["总则", "退货"]),
    ("规则.markdown", b"\xef\xbb\xbf" + MARKDOWN.encode(), None, ["总则", "退货"]),
    ("规则.html", HTML.encode(), None, ["总则", "退货"]),
    ("规则.htm", HTML.encode("utf-16"), None, ["总则", "退货"]),
    ("规则.pdf", PDF, 2, ["总则", "退货"]),
    ("规则.docx", word(), None, ["总则", "退货"]),
    ("规则.pptx", make_pptx(("总则", FILLER), ("退货", PASSAGE)), 2, ["退货"]),
    ("规则.xlsx", make_xlsx(["甲", "乙"], [1, 2], 退货=[["事项", "规定"], ["退货", PASSAGE]]), None, ["退货"]),
    ("规则.csv", TABLE.encode("gb18030"), None, []),
    ("规则.tsv", TABLE.replace(",", "\t").encode(), None, []),
    ("规则.epub", make_epub({"总则": FILLER, "退货": f"{PASSAGE}。"}), None, ["退货"]),
    ("规则.jsonl", PAIRS.encode(), None, []),
    ("规则.json", JSON.encode(), None, ["退货"]),
    ("规则.xml", XML.encode(), None, []),
    ("规则.eml", MAIL.encode("gbk"), None, ["退货"]),
    ("规则.msg", make_msg("退货", f"{FILLER}\n\n{PASSAGE}。"), None, ["退货"]),
    ("规则.srt", SRT.encode("gb18030"), None, []),
    ("规则.vtt", VTT.encode(), None, []),
]


def test_the_corpus_has_a_file_of_each_supported_type():
    assert [name.removeprefix("规则") for name, *_ in CORPUS] == [
        each for each in SUPPORTED_EXTENSIONS if each not in OFFICE_FORMATS
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(("name", "data", "page", "headings"), CORPUS, ids=[entry[0] for entry in CORPUS])
def test_a_known_passage_is_in_the_right_chunk(name, data, page, headings):
    kb = make_kb()
    document = document_add(knowledge_base=kb, file=ContentFile(data), name=name, user=kb.owner)
    index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, document.error) == ("ready", "")
    [chunk] = Chunk.objects.filter(document=document, text__contains=PASSAGE)
    assert (chunk.page, chunk.heading_path) == (page, headings)
    assert chunk.seconds == (754 if name.endswith((".srt", ".vtt")) else None)


@pytest.mark.django_db
def test_what_a_reader_left_out_is_kept_with_the_document():
    kb = make_kb()
    file = ContentFile(make_pdf(["第一页的文字。"], None))
    document = document_add(knowledge_base=kb, file=file, name="a.pdf", user=kb.owner)
    index_document(document.pk)
    document.refresh_from_db()
    assert document.status == "ready"
    assert document.remarks == [{"code": "pages_without_text", "params": {"pages": "2"}}]
