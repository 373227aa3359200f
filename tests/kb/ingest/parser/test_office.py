"""What LibreOffice converts, as it is read."""

import tempfile

import pytest

from kb.ingest.parser.parsed import OFFICE_FORMATS
from kb.ingest.parser.sandbox import parse_file
from tests.kb.ingest.parser.documents import make_docx, make_pptx, make_xlsx
from tests.kb.ingest.parser.office_files import needs_libreoffice, saved_as

ORIGINALS = {
    ".docx": make_docx("退货须在七天之内提出"),
    ".xlsx": make_xlsx(["事项", "规定"], ["退货", "退货须在七天之内提出"]),
    ".pptx": make_pptx(("退货", "退货须在七天之内提出")),
}


@needs_libreoffice
@pytest.mark.parametrize("kind", OFFICE_FORMATS)
def test_a_file_that_libreoffice_has_saved_is_read(kind, tmp_path, monkeypatch):
    original = OFFICE_FORMATS[kind].target
    file = tmp_path / f"a{kind}"
    file.write_bytes(saved_as(kind, original, ORIGINALS[original]))
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    document = parse_file(file, file.name)
    assert "退货须在七天之内提出" in "".join(section.text for section in document.sections)
    assert document.mime == OFFICE_FORMATS[kind].mime
    assert list(scratch.iterdir()) == []
