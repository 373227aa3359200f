import pytest

from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section
from tests.kb.ingest.parser.documents import make_epub, make_zip, replace_part

PACKAGE = "OEBPS/content.opf"
ENCRYPTION = """<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container"
xmlns:enc="http://www.w3.org/2001/04/xmlenc#"><enc:EncryptedData><enc:EncryptionMethod Algorithm="{}"/>
</enc:EncryptedData></encryption>"""


def read(data):
    return parse(data, "a.epub")


def failure(data):
    with pytest.raises(ParseError) as caught:
        read(data)
    return caught.value


def test_chapters_come_in_reading_order_under_their_headings():
    document = read(make_epub({"第一章": "春天。<h2>小节</h2><p>夏天。</p>", "第二章": "秋天。"}, title="四季"))
    assert (document.title, document.mime) == ("四季", "application/epub+zip")
    assert document.sections == (
        Section("第一章\n\n春天。", None, ("第一章",)),
        Section("小节\n\n夏天。", None, ("第一章", "小节")),
        Section("第二章\n\n秋天。", None, ("第二章",)),
    )


@pytest.mark.parametrize("version", [2, 3])
def test_a_chapter_without_a_heading_is_under_the_one_of_the_contents(version):
    data = make_epub({"": "春天。"}, contents={1: "第一章"}, version=version)
    assert read(data).sections == (Section("春天。", None, ("第一章",)),)


def test_a_chapter_that_the_order_names_twice_is_read_once():
    data = make_epub({"甲": "春天。"})
    package = '<itemref idref="c1"/>'
    with_more = replace_part(data, PACKAGE, _part(data).replace(package, package * 1000))
    assert len(read(with_more).sections) == 1


def test_a_protected_book_is_told_and_scrambled_fonts_are_no_protection():
    aes = ENCRYPTION.format("http://www.w3.org/2001/04/xmlenc#aes128-cbc")
    fonts = ENCRYPTION.format("http://www.idpf.org/2008/embedding")
    assert failure(make_epub({"甲": "乙"}, **{"META-INF/encryption.xml": aes})).code == "protected"
    assert read(make_epub({"甲": "乙"}, **{"META-INF/encryption.xml": fonts})).sections


def test_entities_are_refused_and_document_types_are_not():
    chapter = '<!DOCTYPE html [<!ENTITY a SYSTEM "file:///etc/passwd">]><html><body>&a;</body></html>'
    assert failure(make_epub({"甲": "乙"}, **{"OEBPS/x.xhtml": chapter})).code == "unsafe_xml"


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("META-INF/container.xml", "<container/>"),
        ("META-INF/container.xml", "<"),
        (PACKAGE, ""),
        ("OEBPS/nav.xhtml", "no markup"),
    ],
)
def test_a_broken_part_is_damage(part, content):
    assert failure(replace_part(make_epub({"甲": "乙"}), part, content)).code == "damaged_file"


def test_a_chapter_that_is_missing_or_lies_outside_is_damage():
    data = make_epub({"甲": "乙"})
    package = _part(data).replace("chapter%201.xhtml", "../../../../etc/passwd")
    assert failure(replace_part(data, PACKAGE, package)).code == "damaged_file"


def test_a_book_without_text_is_empty():
    assert failure(make_epub({"": ""})).code == "empty_file"


def test_a_container_alone_is_damage():
    assert failure(make_zip(mimetype="application/epub+zip")).code == "damaged_file"


def _part(data):
    from tests.kb.ingest.parser.documents import read_part

    return read_part(data, PACKAGE).decode()
