import pytest

from kb.ingest.formats.records import MAX_COLUMNS
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section, SectionKind


def sections(text):
    return parse(text.encode(), "a.csv").sections


def texts(text):
    return [section.text for section in sections(text)]


def failure(text):
    with pytest.raises(ParseError) as caught:
        parse(text.encode(), "a.csv")
    return caught.value


def test_a_row_is_a_record_with_the_names_of_the_header():
    assert sections("商品,期限\n手机,7天\n电脑,9天\n") == (
        Section("商品: 手机\n期限: 7天", kind=SectionKind.RECORD),
        Section("商品: 电脑\n期限: 9天", kind=SectionKind.RECORD),
    )


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_from_the_rows(delimiter):
    rows = [["name", "note"], ["phone", "one, two; three"]]
    quoted = "\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in rows)
    assert texts(quoted) == ["name: phone\nnote: one, two; three"]


def test_a_table_in_the_encoding_of_chinese_excel_is_read():
    assert parse("商品,期限\n手机,七天\n".encode("gb18030"), "a.csv").sections[0].text == "商品: 手机\n期限: 七天"


def test_a_title_above_the_header_is_text():
    assert texts("价目表,,\n,,\n商品,价格,期限\n手机,10,7天") == ["价目表", "商品: 手机\n价格: 10\n期限: 7天"]


@pytest.mark.parametrize("first", ["1,2", "甲,甲", "2024-05-01,2024-05-02"])
def test_a_first_row_that_reads_like_no_names_is_a_record(first):
    assert texts(f"{first}\n3,4") == [first.replace(",", " | "), "3 | 4"]


def test_values_beyond_the_header_and_without_a_name_are_kept():
    assert texts("甲,,丙\n1,2,3,4") == ["甲: 1\n2\n丙: 3\n4"]


def test_an_empty_value_and_an_empty_row_are_left_out():
    assert texts("甲,乙\n1,\n,\n,2") == ["甲: 1", "乙: 2"]


def test_blank_lines_in_a_value_do_not_part_the_record():
    assert texts('甲,乙\n"一\n\n二",3') == ["甲: 一\n二\n乙: 3"]


def test_columns_of_questions_and_answers_give_pairs():
    assert sections("Question,Answer\nWhy?,Because.\n") == (Section.pair("Why?", "Because."),)


def test_a_question_without_an_answer_stays_a_record():
    assert sections("question,answer\nWhy?,\n") == (Section("question: Why?", kind=SectionKind.RECORD),)


def test_a_single_column_is_a_list_without_a_header():
    assert texts("甲\n乙\n丙") == ["甲", "乙", "丙"]


def test_a_single_row_is_a_record():
    assert texts("甲,乙") == ["甲 | 乙"]


def test_more_columns_than_a_table_for_people_has_are_refused():
    error = failure(",".join(map(str, range(MAX_COLUMNS + 1))))
    assert error.code == "too_many_columns"
    assert str(MAX_COLUMNS) in str(error)


def test_a_quotation_mark_that_is_never_closed_is_damage():
    assert failure('甲,乙\n"' + "x" * 1_100_000).code == "damaged_file"
