"""What a PDF only shows: headings that are larger, bold or numbered, tables, and what every page repeats at its edge."""

import io
import random

import pypdfium2
import pytest
from hypothesis import given, strategies as st
from reportlab.lib import colors
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen import canvas
from reportlab.platypus import SimpleDocTemplate, Spacer, Table

from kb.ingest.formats.pdf.grids import Rule, grids
from kb.ingest.parser.parse import parse
from kb.ingest.parser.sandbox import parse_file
from tests.kb.ingest.parser.documents import make_pdf

TEXT = "The thermostat measures the temperature of the room and sends it to the gateway."
SIZE, STEP, LEFT, TOP = 10, 15, 72, 760
GRID = ("GRID", (0, 0), (-1, -1), 1, colors.black)


def make(*pages, header="", footer=""):
    """Each page is a list of lines: a text, or (text, size, is bold), with a gap before all but texts of the usual size."""
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream)
    for number, lines in enumerate(pages, start=1):
        y = TOP
        for line in lines:
            text, size, is_bold = line if isinstance(line, tuple) else (line, SIZE, False)
            y -= STEP + (size > SIZE or is_bold) * STEP
            sheet.setFont("Helvetica-Bold" if is_bold else "Helvetica", size)
            sheet.drawString(LEFT, y, text)
        sheet.setFont("Helvetica", 8)
        sheet.drawString(LEFT, 820, header.format(page=number))
        sheet.drawString(LEFT, 20, footer.format(page=number))
        sheet.showPage()
    sheet.save()
    return stream.getvalue()


def tables(*rows_and_styles, repeat=0):
    stream = io.BytesIO()
    made = [Table(rows, style=[GRID, *style], repeatRows=repeat) for rows, style in rows_and_styles]
    SimpleDocTemplate(stream).build([part for table in made for part in (table, Spacer(1, 20))])
    return stream.getvalue()


def paths(data):
    return [section.heading_path for section in parse(data, "a.pdf").sections]


def text(data):
    return "\n\n".join(section.text for section in parse(data, "a.pdf").sections)


def test_larger_lines_are_headings_by_their_sizes():
    data = make([("Manual", 20, False), TEXT, ("Wiring", 14, False), TEXT, TEXT, ("Care", 14, False), TEXT])
    assert paths(data) == [("Manual",), ("Manual", "Wiring"), ("Manual", "Care")]
    assert text(data).startswith("Manual\n\nThe thermostat")


def test_bold_lines_by_themselves_are_headings_and_the_first_is_the_title():
    data = make([("Manual", SIZE, True), TEXT, ("Wiring", SIZE, True), TEXT, ("Care", SIZE, True), TEXT])
    assert paths(data) == [("Manual",), ("Manual", "Wiring"), ("Manual", "Care")]


def test_where_all_is_bold_nothing_is_a_heading_for_it():
    assert paths(make([("Manual", SIZE, True), (TEXT, SIZE, True), ("Wiring", SIZE, True), (TEXT, SIZE, True)])) == [()]


def test_a_bold_sentence_is_none():
    assert paths(make([TEXT, ("Never open it.", SIZE, True), TEXT])) == [()]


def test_numbered_lines_are_headings_by_their_numbers():
    data = make(["Manual", TEXT, "1. Wiring", TEXT, "1.1 Tools", TEXT, TEXT, "1.2 Steps", TEXT, "2. Care", TEXT])
    assert paths(data) == [
        ("Manual",),
        ("Manual", "1. Wiring"),
        ("Manual", "1. Wiring", "1.1 Tools"),
        ("Manual", "1. Wiring", "1.2 Steps"),
        ("Manual", "2. Care"),
    ]


def test_a_numbered_list_is_none():
    assert paths(make([TEXT, "1. Open the box", "2. Take it out", "3. Mount it", TEXT])) == [()]


def test_a_heading_at_the_end_of_a_page_belongs_to_the_text_of_the_next_one():
    [_first, second] = parse(make([TEXT, TEXT, ("Care", 14, False)], [TEXT]), "a.pdf").sections
    assert (second.page, second.heading_path, second.text.split("\n")[0]) == (2, ("Care",), "Care")


def test_what_every_page_repeats_at_its_edge_is_left_out():
    data = make([TEXT], [TEXT], [TEXT], header="Qinghe Ltd. - internal", footer="Page {page} of 3")
    assert text(data) == "\n\n".join([TEXT] * 3)


def test_of_a_single_page_a_bare_number_is_left_out_and_small_print_stays():
    data = make(
        [("Manual", 24, False), *[TEXT] * 44, ("Prices are net.", 8, False)], header="Qinghe Ltd.", footer="- 7 -"
    )
    assert "Prices are net." in text(data)
    assert "- 7 -" not in text(data)
    assert "Qinghe Ltd." in text(data)  # nothing says that it is no text


def test_headings_at_the_top_of_pages_that_differ_by_their_numbers_stay():
    pages = [[(f"Question {number}", 16, True), TEXT, TEXT] for number in (1, 2, 3)]
    assert paths(make(*pages)) == [("Question 1",), ("Question 2",), ("Question 3",)]


def test_the_head_of_a_chapter_is_left_out_on_its_pages():
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream)
    for chapter in ("Alpha", "Beta", "Gamma", "Delta"):
        for _ in range(4):
            sheet.setFont("Helvetica-Bold", SIZE)
            sheet.drawString(LEFT, 810, f"Chapter {chapter}")
            sheet.setFont("Helvetica", SIZE)
            for line in range(20):
                sheet.drawString(LEFT, 720 - STEP * line, TEXT)
            sheet.showPage()
    sheet.save()
    assert "Chapter" not in text(stream.getvalue())


def test_a_table_at_the_top_of_every_page_is_left_out():
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream)
    for number in range(1, 5):
        sheet.grid([72, 200, 400], [790, 810, 830])
        for x, y, words in ((80, 815, "Document"), (210, 815, "SOP-17"), (80, 795, "Page"), (210, 795, str(number))):
            sheet.drawString(x, y, words)
        sheet.drawString(LEFT, 700, f"{TEXT} {number}")
        sheet.drawString(LEFT, 685, TEXT)
        sheet.showPage()
    sheet.save()
    assert "SOP-17" not in text(stream.getvalue())


def turned(data, rotation, box=None):
    """The pages turned, with their content turned against it, so that they look the same; or cut to a box."""
    stream = io.BytesIO()
    with pypdfium2.PdfDocument(data) as document:
        for page in document:
            page.set_rotation(rotation)
            if box:
                page.set_cropbox(*box)
        document.save(stream)
    return stream.getvalue()


def test_a_turned_page_reads_as_it_is_seen():
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream, pagesize=(842, 595))
    sheet.translate(842, 0)
    sheet.rotate(90)
    sheet.grid([72, 200, 300], [440, 460, 480, 500])
    for row, cells in enumerate([("Part", "Price"), ("bolt", "1"), ("nut", "2")]):
        for x, cell in zip((80, 210), cells, strict=True):
            sheet.drawString(x, 485 - 20 * row, cell)
    sheet.drawString(72, 400, "The quick brown fox jumps over")
    sheet.drawString(72, 385, "the lazy dog.")
    sheet.save()
    assert text(turned(stream.getvalue(), 90)) == (
        "| Part | Price |\n| --- | --- |\n| bolt | 1 |\n| nut | 2 |\n\nThe quick brown fox jumps over the lazy dog."
    )


def test_a_page_that_is_cut_to_a_box_loses_nothing_within_it():
    data = make([TEXT, TEXT, TEXT, ("Small print in the middle.", 8, False)])
    assert "Small print" in text(turned(data, 0, (0, 600, 595, 842)))


def test_a_table_in_the_left_column_stands_before_the_right_column():
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream)
    for number in range(10):
        sheet.drawString(60, 700 - 15 * number, f"left line {number} with some more words")
    sheet.grid([60, 150, 250], [400, 420, 440])
    for x, y, words in ((65, 425, "Part"), (155, 425, "Price"), (65, 405, "bolt"), (155, 405, "1")):
        sheet.drawString(x, y, words)
    for number in range(10):
        sheet.drawString(320, 700 - 15 * number, f"right line {number} with some more words")
    sheet.save()
    found = text(stream.getvalue())
    assert found.index("left line 9") < found.index("| Part |") < found.index("right line 0")


@pytest.mark.parametrize(
    "line",
    [
        "4.2 The tenant shall pay the rent in advance of each month and send it to the landlord",
        "12 March 2026",
        "10 Downing Street",
        "2 No person shall be held in slavery",
    ],
)
def test_a_sentence_or_a_date_that_begins_with_a_number_is_no_heading(line):
    assert paths(make([TEXT, TEXT, line, TEXT])) == [()]


def test_a_capital_letter_that_opens_a_text_is_no_heading():
    assert paths(make([("T", 30, False), "he thermostat measures the temperature.", TEXT, TEXT])) == [()]


def test_bookmarks_lead_to_their_headings_whatever_their_numbers():
    page = ["The end of an earlier section.", "2 Methods", TEXT, "3 Results", TEXT]
    data = make_pdf(page, bookmarks=((1, 0, "2 Methods"), (1, 0, "Results")))
    assert paths(data) == [(), ("2 Methods",), ("Results",)]


def test_a_table_that_goes_on_with_an_empty_column_keeps_its_columns():
    rows = [["Part", "Notes", "Price"], *([f"bolt {number}", "x" * (number < 60), str(number)] for number in range(90))]
    last = parse(tables((rows, [])), "a.pdf").sections[-1].text
    assert last.startswith("| Part | Notes | Price |\n| --- | --- | --- |\n| bolt")
    assert "| bolt 89 |  | 89 |" in last


def test_the_same_words_within_pages_stay():
    data = make(["Care", TEXT], ["Care", TEXT], ["Care", TEXT])
    assert text(data).count("Care") == 3


def test_a_merged_cell_stands_in_each_place_that_it_covers():
    rows = [["Model", "Price", ""], ["", "EUR", "USD"], ["TH-01", "59", "65"]]
    data = tables((rows, [("SPAN", (1, 0), (2, 0)), ("SPAN", (0, 0), (0, 1))]))
    assert text(data) == "| Model | Price | Price |\n| --- | --- | --- |\n| Model | EUR | USD |\n| TH-01 | 59 | 65 |"


def test_lines_of_a_cell_become_one():
    assert text(tables(([["Code", "To do"], ["E01", "Check\nthe plug"]], []))) == (
        "| Code | To do |\n| --- | --- |\n| E01 | Check the plug |"
    )


@pytest.mark.parametrize("repeat", [0, 1])
def test_a_table_over_pages_has_its_header_on_each(repeat):
    rows = [["Model", "Price"], *([f"TH-{number:03d}", str(number)] for number in range(90))]
    sections = parse(tables((rows, []), repeat=repeat), "a.pdf").sections
    assert [section.page for section in sections] == [1, 2, 3]
    assert all(section.text.startswith("| Model | Price |\n| --- | --- |\n| TH-") for section in sections)
    assert sum(section.text.count("TH-") for section in sections) == 90


def test_another_table_on_the_next_page_keeps_its_own_header():
    rows = [["Model", "Price"], *([f"TH-{number:03d}", str(number)] for number in range(30))]
    other = [["City", "Points", "People"], ["Kiel", "2", "9"]]
    found = text(tables((rows, []), ([["x" * 60]] * 20, []), (other, [])))
    assert "| City | Points | People |\n| --- | --- | --- |\n| Kiel | 2 | 9 |" in found


def test_a_frame_around_text_is_no_table():
    assert "|" not in text(tables(([["Never open the box while it is under power."]], [])))


def test_columns_without_rules_are_a_table_by_their_places():
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream)
    for number, row in enumerate(
        [("Model", "Name", "Price"), ("TH-01", "Smart thermostat", "59"), ("TH-02", "", "89")]
    ):
        for cell, x in zip(row, (72, 180, 400), strict=True):
            sheet.drawString(x + (20 - stringWidth(cell, "Helvetica", 12) if x == 400 else 0), 700 - 18 * number, cell)
    sheet.save()
    assert text(stream.getvalue()) == (
        "| Model | Name | Price |\n| --- | --- | --- |\n| TH-01 | Smart thermostat | 59 |\n| TH-02 |  | 89 |"
    )


EDGES = st.floats(0, 600, allow_nan=False)


@given(
    st.lists(st.builds(Rule, EDGES, EDGES, EDGES), max_size=30),
    st.lists(st.builds(Rule, EDGES, EDGES, EDGES), max_size=30),
)
def test_any_rules_make_grids_whose_every_place_is_theirs(across, down):
    for grid in grids(across, down):
        assert list(grid.lefts) == sorted(set(grid.lefts))
        assert list(grid.tops) == sorted(set(grid.tops), reverse=True)
        for x in grid.lefts:
            for y in grid.tops:
                row, column = grid.place(x, y)
                assert 0 <= row < len(grid.tops) - 1
                assert 0 <= column < len(grid.lefts) - 1
        assert grid.place(grid.lefts[-1] + 1, grid.tops[0]) is None


def test_more_rules_than_a_page_of_text_has_are_no_table():
    assert grids([Rule(y, 0, 600) for y in range(0, 8_000, 4)], [Rule(x, 0, 8_000) for x in range(0, 800, 4)]) == []


@pytest.mark.sandbox
def test_a_drawing_of_many_words_and_rules_is_read_in_the_child_under_the_default_limits(tmp_path):
    chance = random.Random(1)
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream)
    for number in range(10_000):
        sheet.drawString(chance.uniform(0, 550), chance.uniform(0, 800), f"w{number}")
    for _ in range(3_000):
        x, y = chance.uniform(0, 550), chance.uniform(0, 800)
        sheet.line(x, y, chance.uniform(0, 550), y)
        sheet.line(x, y, x, chance.uniform(0, 800))
    sheet.save()
    file = tmp_path / "drawing"
    file.write_bytes(stream.getvalue())
    found = "".join(section.text for section in parse_file(file, "a.pdf").sections)
    assert all(f"w{number}" in found for number in range(0, 10_000, 97))
