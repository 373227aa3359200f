import json

import pytest

from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section, SectionKind


def read(*values):
    return parse("\n".join(json.dumps(value, ensure_ascii=False) for value in values).encode(), "a.jsonl")


def failure(text):
    with pytest.raises(ParseError) as caught:
        parse(text.encode(), "a.jsonl")
    return caught.value


def test_each_line_is_a_pair():
    document = read({"question": "怎么退款？", "answer": "七天内申请。"}, {"question": "Why?", "answer": "Because."})
    assert document.mime == "application/jsonl"
    assert document.sections == (Section.pair("怎么退款？", "七天内申请。"), Section.pair("Why?", "Because."))


def test_a_pair_holds_its_text_for_readers_that_know_no_pairs():
    [section] = read({"question": "问", "answer": "答"}).sections
    assert (section.text, section.kind) == ("问\n答", SectionKind.QA)


@pytest.mark.parametrize(
    ("question", "answer"),
    [("q", "a"), ("Question", "Answer"), ("问题", "答案"), ("prompt", "completion"), ("instruction", "output")],
)
def test_usual_names_of_the_fields_are_known(question, answer):
    assert read({question: "问", answer: "答", "id": 7}).sections == (Section.pair("问", "答"),)


def test_other_wordings_are_alternatives():
    expected = (Section.pair("问", "答", alternatives=("另一问", "又一问")),)
    assert read({"questions": ["问", "另一问", "又一问"], "answer": "答"}).sections == expected
    assert read({"question": "问", "answer": "答", "相似问题": ["另一问", "又一问"]}).sections == expected


def test_an_input_belongs_to_the_instruction():
    assert read({"instruction": "翻译", "input": "猫", "output": "cat"}).sections[0].question == "翻译\n猫"


def test_blank_lines_and_line_ends_within_a_string_part_no_pair():
    text = '\ufeff{"question": "一\u2028二", "answer": "答"}\r\n\n'
    assert parse(text.encode(), "a.jsonl").sections[0].question == "一\n二"


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "5",
        '"text"',
        "{}",
        '{"question": "问"}',
        '{"question": "", "answer": "答"}',
        '{"question": 5, "answer": "答"}',
        '{"question": "问", "answer": {"text": "答"}}',
        '{"question": "问", "answer": "答"',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_pair_is_named(line):
    error = failure('{"question": "问", "answer": "答"}\n' + line)
    assert error.code == "not_a_pair"
    assert str(error).startswith("Line 2 ")
    assert '{"question": "…", "answer": "…"}' in str(error)
