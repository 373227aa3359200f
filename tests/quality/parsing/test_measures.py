import pytest

from tests.quality.parsing.cases import cases
from tests.quality.parsing.documents import Document, Heading, Paragraph, Table
from tests.quality.parsing.measures import Reading, cell_f1, heading_f1, left_in, measure, similarity
from tests.quality.parsing.readers import of_markdown

ROWS = (("型号", "单价", "质保"), ("TH-01", "399", "24"), ("TH-02", "599", "36"))
DOCUMENT = Document(
    "zh",
    (Heading(1, "手册"), Paragraph("温控器用于地暖。"), Table(ROWS, caption="表 1 价格"), Heading(2, "安装")),
    header="内部资料",
    footer="第 {page} 页",
)
MARKDOWN = """# 手册

温控器用于地暖。

表 1 价格

| 型号 | 单价 | 质保 |
| --- | --- | --- |
| TH-01 | 399 | 24 |
| TH-02 | 599 | 36 |

## 安装
"""


def test_the_truth_itself_is_read_without_a_fault():
    one = measure(DOCUMENT, of_markdown(MARKDOWN), 3)
    assert (one.text, one.tables, one.headings, one.boilerplate) == (1.0, 1.0, 1.0, 0.0)


def test_what_a_document_lacks_is_not_measured():
    one = measure(Document("zh", (Paragraph("温控器"),)), Reading("温控器"), 1)
    assert (one.text, one.tables, one.headings, one.boilerplate) == (1.0, None, None, None)


@pytest.mark.parametrize(
    ("found", "expected"),
    [("abcd", 1.0), ("ab cd\n", 1.0), ("**ab** | cd |", 1.0), ("abc", 6 / 7), ("abdc", 0.75), ("", 0.0), ("ABCD", 1.0)],
)
def test_similarity_counts_edits_of_what_a_reader_would_compare(found, expected):
    assert similarity("abcd", found) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ROWS, 1.0),
        ((ROWS[0], *ROWS[2:]), 2 * 6 / 15),  # a row is lost
        (ROWS[1:], 0.0),  # the header is lost, so no value is read with its meaning
        ((ROWS[0], ("TH-01", "24", "399"), ROWS[2]), 14 / 18),  # two values have changed places
        ((("型号单价质保",), *ROWS[1:]), 0.0),
        ((*ROWS, ("", "", "")), 1.0),
    ],
)
def test_a_cell_counts_with_its_header_and_the_first_cell_of_its_row(found, expected):
    assert cell_f1([ROWS], [found]) == pytest.approx(expected)


def test_each_table_is_compared_with_the_one_that_it_shares_most_with():
    other = (("城市", "网点"), ("北京", "12"))
    assert cell_f1([ROWS, other], [other, ROWS]) == 1.0
    assert cell_f1([ROWS], [ROWS, other]) == pytest.approx(18 / 22)  # one that is none costs
    assert cell_f1([ROWS], []) == 0.0


def test_a_heading_counts_with_its_level():
    assert heading_f1([(1, "手册"), (2, "安装")], [(1, "手册"), (3, "安装")]) == 0.5
    assert heading_f1([(1, "手册")], [(1, " 手 册 "), (1, "其他")]) == pytest.approx(2 / 3)


def test_what_is_left_of_headers_and_footers_is_counted_by_page():
    text = "内部资料\n温控器\n第 1 页\n内部资料\n第 12 页"
    assert left_in(text, ["内部资料", "第 {page} 页"], 4) == 0.5
    with_edges = Reading(f"内部资料\n{DOCUMENT.text}\n第 1 页")
    assert measure(DOCUMENT, with_edges, 1).boilerplate == 1.0
    assert measure(DOCUMENT, with_edges, 1).text == 1.0  # which counts by itself


def test_the_bed_has_enough_of_every_kind():
    made = cases()
    assert len(made) >= 60
    assert len({case.name for case in made}) == len(made)
    for language in ("zh", "en", "mixed"):
        assert any(case.document.language == language for case in made)
    assert {case.program for case in made} == {"chromium", "docx", "odt", "pptx", "xlsx"}
    assert {case.scan for case in made} == {"", "clean", "noisy", "layered"}


def test_all_rows_of_a_table_are_of_one_length():
    for case in cases():
        for table in case.document.tables:
            assert len({len(row) for row in table.rows}) == 1
            for (row, column), (height, width) in table.merged.items():
                covered = {table.rows[row + down][column + across] for down in range(height) for across in range(width)}
                assert covered == {table.rows[row][column]}
