from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParsedDocument, Section


def test_plain_text_is_one_section_with_its_lines_as_they_are():
    text = "第一行\n\n    第三行，有缩进"
    assert parse(text.encode(), "笔记.txt") == ParsedDocument("笔记", "text/plain", (Section(text, None, ()),))
