"""What the places of recognised words tell of sizes and tables."""

import pytest
from hypothesis import given, strategies as st

from kb.ingest.formats.outline import Line, paragraphs
from kb.ingest.formats.pdf.scans import in_order, in_rows, size_by_width, with_sizes
from kb.ingest.parser.parsed import Region

TABLE = [["Model", "Price", "Warranty"], ["TH-01", "59", "24"], ["TH-02", "89", "36"]]


def line(text, left, top, *, width=None, height=14, size=10.0):
    right = left + (6 * len(text) if width is None else width)
    return Line(
        text, left, right, 800 - top, height, size=size, region=Region(page=1, box=(left / 1000, 0, right / 1000, 1))
    )


def table(rows, *, left=60, step=100, top=100):
    return [
        line(text, left + step * column, top + 20 * row + column % 2)  # a scan is never quite straight
        for row, texts in enumerate(rows)
        for column, text in enumerate(texts)
    ]


def texts(lines):
    return [block.text for block in paragraphs(in_rows(lines))]


def test_words_side_by_side_are_rows_of_a_table_in_its_place():
    above, below = line("Models and prices", 60, 60, width=100), line("Prices hold for a year.", 60, 220, width=400)
    assert texts([above, *table(TABLE), below]) == [
        "Models and prices",
        "| Model | Price | Warranty |\n| --- | --- | --- |\n| TH-01 | 59 | 24 |\n| TH-02 | 89 | 36 |",
        "Prices hold for a year.",
    ]


def test_a_second_line_in_a_cell_belongs_to_it():
    rows = table(TABLE[:2])
    wrapped = line("EUR", 160, 140)
    assert "| TH-01 | 59 EUR | 24 |" in texts([*rows, wrapped, *table(TABLE[2:], top=160)])[0]


def test_the_box_of_a_row_is_around_its_cells():
    [first, *_] = in_rows(table(TABLE))
    assert first.region.box == pytest.approx((0.06, 0, 0.308, 1))


def test_columns_of_text_are_no_table_and_are_read_one_after_the_other():
    columns = [
        line(f"{side}{row}", left + row % 2, 100 + 20 * row, width=230 - row % 3)
        for row in range(6)
        for side, left in (("a", 60), ("b", 310))
    ]
    across = line("a line over both", 60, 260, width=480)
    below = [
        line(f"{side}{row}", left, 300 + 20 * row, width=230)
        for row in range(6, 9)
        for side, left in (("a", 60), ("b", 310))
    ]
    assert all(not each.cells for each in in_rows(columns))
    assert [each.text for each in in_order([*columns, across, *below])] == [
        *(f"{side}{row}" for side in "ab" for row in range(6)),
        across.text,
        *(f"{side}{row}" for side in "ab" for row in range(6, 9)),
    ]


def test_a_table_of_long_cells_is_no_page_of_columns():
    rows = table([["E01", "Sensor open", "Check the plug, replace the sensor"]] * 8, step=90)
    assert [len(each.cells) for each in in_order(rows)] == [3] * 8


def test_two_words_beside_each_other_once_are_no_table():
    assert all(not each.cells for each in in_rows([line("left", 60, 100), line("right", 300, 100)]))


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 600)), max_size=30))
def test_every_word_is_kept_once(places):
    lines = [line(f"word{number}", left, top) for number, (left, top) in enumerate(places)]
    words = [word for each in in_order(lines) for word in each.text.split(" | ")]
    assert sorted(words) == sorted(each.text for each in lines)


@pytest.mark.parametrize("text", ["Requirements for installation", "系统安装要求", "TH-05 地暖集控面板"])
@pytest.mark.parametrize("size", [9, 11, 18])
def test_the_size_of_letters_follows_from_the_width_of_a_line(text, size):
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont

    pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))
    width = sum(pdfmetrics.stringWidth(each, "Helvetica" if each.isascii() else "STSong-Light", size) for each in text)
    assert size_by_width(text, width + 2) == pytest.approx(size, rel=0.07)


def test_a_short_text_has_no_size():
    assert size_by_width("E01", 20) == 0


def test_lines_are_of_the_size_of_text_or_of_a_kind_of_headings():
    sizes = [22.0, 11.2, 10.7, 17.8, 11.5, 16.9, 13.5, 10.9, 13.0, 0.0]
    page = [line("x" * (60 if size < 12 else 10), 60, 20 * number, size=size) for number, size in enumerate(sizes)]
    other = [line("a digital page", 60, 0, size=9.0)]
    found, untouched = with_sizes([page, other], [1])
    assert untouched == other
    assert [each.size for each in found] == [22, 11.2, 11.2, 17.8, 11.2, 17.8, 13.5, 11.2, 13.5, 11.2]
