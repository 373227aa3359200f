import io

import pypdfium2
import pytest

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats.pdf import ocr
from kb.ingest.parser.parse import parse
from kb.ingest.parser.sandbox import parse_file
from tests.kb.ingest.parser.documents import make_pdf, make_picture_pdf

installed = pytest.mark.skipif(not ocr.is_installed(), reason="the extra for text recognition is not installed")


def scanned(*lines):
    """The picture of a page, without its text."""
    page = pypdfium2.PdfDocument(io.BytesIO(make_pdf(list(lines))))[0]
    return make_picture_pdf(page.render(scale=2).to_pil())


@pytest.mark.sandbox
@installed
def test_a_scan_is_read_by_its_lines_in_the_child_under_the_default_limits(tmp_path):
    path = tmp_path / "scan"
    path.write_bytes(scanned("退货须在七天之内提出。", "", "The seller pays."))
    document = parse_file(path, "a.pdf")
    [section] = document.sections
    assert section.page == 1
    assert "".join(section.text.split()) == "退货须在七天之内提出。Thesellerpays."
    assert document.remarks == (Remark(RemarkCode.PAGES_RECOGNISED, {"pages": "1"}),)


def test_pages_are_not_recognised_once_the_time_is_nearly_up(monkeypatch):
    monkeypatch.setattr(ocr, "_SHARE_OF_TIME", 0)
    monkeypatch.setattr(ocr.resource, "getrlimit", lambda _kind: (100, 100))
    document = parse(make_pdf(["第一页的文字。"], None), "a.pdf")
    assert document.remarks == (Remark(RemarkCode.PAGES_WITHOUT_TEXT, {"pages": "2"}),)


def test_without_the_extra_no_page_is_recognised(monkeypatch):
    monkeypatch.setattr(ocr.importlib.util, "find_spec", lambda _name: None)
    assert ocr.recognise(None, 1) == []
