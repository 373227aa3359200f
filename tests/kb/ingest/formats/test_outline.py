from kb.ingest.formats.outline import Outline
from kb.ingest.parser.parsed import Section


def test_text_before_the_first_heading_has_no_path():
    outline = Outline()
    outline.block("preface")
    outline.heading(1, "A")
    outline.block("body")
    assert outline.sections() == (Section("preface"), Section("A\n\nbody", None, ("A",)))


def test_a_heading_replaces_those_of_its_level_and_below():
    outline = Outline()
    for level, title in [(1, "A"), (2, "B"), (3, "C"), (2, "D")]:
        outline.heading(level, title)
        outline.block(f"text of {title}")
    assert [section.heading_path for section in outline.sections()] == [("A",), ("A", "B"), ("A", "B", "C"), ("A", "D")]


def test_a_heading_without_text_is_carried_into_the_section_below_it():
    outline = Outline()
    outline.heading(1, "A")
    outline.heading(2, "B")
    outline.block("text")
    assert outline.sections() == (Section("A\n\nB\n\ntext", None, ("A", "B")),)


def test_a_heading_without_text_before_its_sibling_keeps_a_section_of_its_own():
    outline = Outline()
    outline.heading(2, "A")
    outline.heading(2, "B")
    assert outline.sections() == (Section("A", None, ("A",)), Section("B", None, ("B",)))


def test_an_empty_heading_or_block_is_ignored():
    outline = Outline()
    outline.heading(1, " \n ")
    outline.block("  ")
    assert outline.sections() == ()
    assert outline.first_heading == ""


def test_a_joined_block_follows_on_the_next_line_but_never_on_a_headings_line():
    outline = Outline()
    outline.heading(1, "A")
    outline.block("- one", joined=True)
    outline.block("- two", joined=True)
    assert outline.sections()[0].text == "A\n\n- one\n- two"


def test_a_heading_on_several_lines_is_one_line():
    outline = Outline()
    outline.heading(1, "A\n  B")
    assert outline.first_heading == "A B"
