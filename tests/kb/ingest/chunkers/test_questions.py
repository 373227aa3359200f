import pytest

from kb.ingest.parser.parsed import Section
from tests.kb.ingest.chunkers.cutting import cut, texts


def pairs(*sections, **settings):
    return [(draft.text, draft.questions) for draft in cut("questions", *sections, **settings)]


def test_a_pair_of_the_format_is_a_chunk_with_its_question():
    assert pairs(Section.pair("多久退款？", "七天。", alternatives=("退款要几天？",))) == [
        ("多久退款？\n七天。", ("多久退款？", "退款要几天？"))
    ]


@pytest.mark.parametrize(
    "text",
    [
        "问：多久退款？\n答：七天。\n问：在哪里？\n答：门店。",
        "问题：多久退款？\n回答：七天。\n\n问题：在哪里？\n回答：门店。",
        "Q: 多久退款？\nA: 七天。\n\nQ2: 在哪里？\nA2: 门店。",
        "**Q：** 多久退款？\n**A：** 七天。\n\n**Q：** 在哪里？\n**A：** 门店。",
        "Question 1: 多久退款？\nAnswer: 七天。\nQuestion 2: 在哪里？\nAnswer: 门店。",
    ],
)
def test_pairs_that_are_marked_in_the_text_are_recognised(text):
    assert pairs(text) == [("多久退款？\n七天。", ("多久退款？",)), ("在哪里？\n门店。", ("在哪里？",))]


def test_an_answer_goes_on_to_the_next_question_over_paragraphs_and_pages():
    sections = [Section("问：甲？\n答：第一段。", 1), Section("第二段。\n问：乙？\n答：丙。", 2)]
    drafts = cut("questions", *sections)
    assert [(draft.text, draft.page) for draft in drafts] == [("甲？\n第一段。\n\n第二段。", 1), ("乙？\n丙。", 2)]


def test_text_before_the_first_question_is_cut_as_any_other():
    assert pairs("说明在这里。\n\nQ: a?\nA: b.") == [("说明在这里。", ()), ("a?\nb.", ("a?",))]


def test_a_document_without_pairs_is_cut_by_paragraphs_and_sentences():
    sections = [Section("一句话。" * 20, 1), Section("Two words. " * 20, 2)]
    plain, fallen_back = (cut(strategy, *sections, size=30, overlap=0) for strategy in ("recursive", "questions"))
    assert [(d.text, d.page) for d in fallen_back] == [(d.text, d.page) for d in plain]


def test_a_question_without_an_answer_is_no_pair():
    assert pairs("问：甲？\n\n问：乙？\n答：丙。") == [("问：甲？", ()), ("乙？\n丙。", ("乙？",))]


def test_a_word_that_only_begins_like_a_mark_is_none():
    assert pairs("问：甲？\n答：A plan: 丙。\nQuality: high") == [("甲？\nA plan: 丙。\nQuality: high", ("甲？",))]


def test_a_long_answer_repeats_its_question_in_every_piece():
    drafts = cut("questions", Section.pair("多久退款？", "这是一句十个字的话。" * 6), size=40, overlap=0)
    assert len(drafts) > 1
    assert all(draft.text.startswith("多久退款？\n") and len(draft.text) <= 40 for draft in drafts)
    assert {draft.questions for draft in drafts} == {("多久退款？",)}


def test_a_question_that_leaves_no_room_stands_once():
    drafts = cut("questions", Section.pair("问" * 30, "答" * 30), size=40, overlap=0)
    assert "".join(texts(drafts)) == "问" * 30 + "答" * 30
    assert all(len(draft.text) <= 40 for draft in drafts)


@pytest.mark.parametrize("text", ["- " * 50_000, "-" * 50_000, "Q " + " " * 50_000 + "x", "问：a\n" * 3_000])
def test_what_only_looks_like_marks_is_read_in_linear_time(text):
    assert pairs(text, size=8_000) != []
