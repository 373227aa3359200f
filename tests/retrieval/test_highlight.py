import pytest
from hypothesis import given, strategies as st

from retrieval.highlight import ELLIPSIS, Segment, excerpt, highlight
from retrieval.tokenize import JiebaTokenizer, TokenizerOptions

tokenizer = JiebaTokenizer()
WIDE = "\uff26\uff35\uff2c\uff2c"


def matches(text, *terms):
    return [segment.text for segment in highlight(text, terms, tokenizer) if segment.is_match]


def joined(segments):
    return "".join(segment.text for segment in segments)


def test_segments_come_in_order_and_join_to_the_text():
    assert highlight("an index of notes", ["index"], tokenizer) == [
        Segment("an ", is_match=False),
        Segment("index", is_match=True),
        Segment(" of notes", is_match=False),
    ]


def test_a_word_matches_by_its_stem():
    assert matches("Policies: a policy, policing", "polici") == ["Policies", "policy"]


def test_case_and_full_width_do_not_matter():
    assert matches(f"{WIDE} Full full fulfil", "full") == [WIDE, "Full", "full"]


def test_a_ligature_and_a_decomposed_accent_are_marked_as_they_stand_in_the_text():
    assert matches("eﬃcient cafe\u0301 x", *tokenizer("efficient café")) == ["eﬃcient", "cafe\u0301"]


def test_a_word_with_a_soft_hyphen_is_marked_whole():
    assert matches("hand\u00adbook x", "handbook") == ["hand\u00adbook"]


def test_a_syllable_that_an_invisible_character_parts_is_marked_whole():
    assert matches("\u1100\u200b\u1161 x", *tokenizer("가")) == ["\u1100\u200b\u1161"]


def test_chinese_words_are_marked():
    assert matches("差旅报销标准，按标准执行。", "报销", "标准") == ["报销", "标准", "标准"]


def test_a_word_inside_a_word_is_marked_alone():
    assert matches("中华人民共和国成立了", "共和国") == ["共和国"]


def test_overlapping_tokens_make_one_match():
    assert matches("中华人民共和国成立了", "人民", "华人", "中华人民共和国") == ["中华人民共和国"]
    assert matches("中华人民共和国成立了", "华人", "人民") == ["华人民"]


def test_neighbouring_words_stay_apart():
    assert matches("差旅报销", "差旅", "报销") == ["差旅", "报销"]


def test_a_character_within_another_word_is_no_match():
    assert matches("的确是这样的", "的") == ["的"]
    assert highlight("的确是这样的", ["的"], tokenizer)[-1] == Segment("的", is_match=True)


def test_function_words_are_marked_only_where_nothing_else_is_sought():
    assert matches("违约的加盟商，什么条件", "加盟", "的", "什么") == ["加盟"]
    assert matches("什么条件", "什么") == ["什么"]


def test_a_repeated_inner_word_is_marked_where_each_stands():
    text = "哈哈哈，哈哈"

    assert joined(highlight(text, ["哈哈"], tokenizer)) == text
    assert matches(text, "哈哈")[-1] == "哈哈"


def test_punctuation_in_a_chinese_run_is_stepped_over():
    assert matches("《报销》。【标准】", "报销", "标准") == ["报销", "标准"]


def test_a_code_is_marked_whole_when_the_code_was_sought_and_by_part_otherwise():
    assert matches("model TH-01 here", *tokenizer("TH-01")) == ["TH-01"]
    assert matches("model TH-01 here", "th") == ["TH"]
    assert matches("weighs 500kg", "kg") == ["500kg"]


def test_a_code_is_marked_whole_when_only_the_whole_has_the_term():
    assert matches("see A-B", "a") == ["A-B"]


def test_a_stop_word_is_a_match_only_where_it_is_a_name():
    assert matches("买A股和B股 a", "a") == ["A"]
    assert matches("ETF基金", "etf") == ["ETF"]


def test_markup_is_text():
    assert highlight("<b>x</b>", ["x"], tokenizer)[0].text == "<b>"


@pytest.mark.parametrize(("text", "terms"), [("", ["a"]), ("some text", []), ("some text", ["other"])])
def test_nothing_matches_without_text_or_terms(text, terms):
    segments = highlight(text, terms, tokenizer)

    assert joined(segments) == text
    assert not any(segment.is_match for segment in segments)


TEXTS = st.text(st.sampled_from("中华人民共和国报销标准的，。 aA-\uff26ﬁe\u0301\u200b\u1100\u1161'+#01<&"), max_size=60)


@given(TEXTS, st.lists(st.sampled_from(["人民", "共和国", "的", "a", "01", "标准", "fi", "中华人民共和国"])))
def test_any_segments_join_to_the_text_and_none_is_empty(text, terms):
    segments = highlight(text, terms, tokenizer)

    assert joined(segments) == text
    assert all(segment.text for segment in segments)


@given(TEXTS)
def test_a_text_that_has_terms_is_marked_for_each_of_them(text):
    for term in set(tokenizer(text)):
        assert matches(text, term), term


def test_a_short_text_is_shown_whole():
    segments = highlight("a short text", ["short"], tokenizer)

    assert excerpt(segments, 100) == segments


def test_a_long_text_is_cut_around_its_matches():
    text = "left " * 100 + "target and goal" + " right" * 100

    cut = excerpt(highlight(text, ["target", "goal"], tokenizer), 100)

    assert [segment.text for segment in cut if segment.is_match] == ["target", "goal"]
    assert cut[0].text == cut[-1].text == ELLIPSIS
    assert len(joined(cut)) <= 102
    assert cut[1].text.startswith("left ")


def test_the_excerpt_holds_the_most_distinct_matches():
    text = "甲乙" * 40 + "报销报销" + "，丙丁" * 40 + "报销标准" + "，戊己" * 40

    cut = excerpt(highlight(text, ["报销", "标准"], tokenizer), 60)

    assert {segment.text for segment in cut if segment.is_match} == {"报销", "标准"}


def test_the_excerpt_of_a_text_without_matches_is_its_beginning():
    cut = excerpt(highlight("word " * 100, ["other"], tokenizer), 50)

    assert cut == [Segment("word " * 10, is_match=False), Segment(ELLIPSIS, is_match=False)]


def test_the_excerpt_of_a_table_has_its_rows_and_not_the_line_below_its_header():
    table = "见下表\n\n| 型号 | 质保 |\n| --- | :---: |\n| TH-02 | 36 |\n| TH-03 | --- |"
    segments = [Segment(table[:40], is_match=False), Segment(table[40:], is_match=True)]
    assert (
        "".join(each.text for each in excerpt(segments, 100))
        == "见下表\n\n| 型号 | 质保 |\n| TH-02 | 36 |\n| TH-03 | --- |"
    )


def test_the_excerpt_reaches_the_end_of_the_text():
    cut = excerpt(highlight("word " * 100 + "end", ["end"], tokenizer), 50)

    assert cut[-1] == Segment("end", is_match=True)


def test_the_excerpt_cuts_no_match_in_two():
    text = "late flight " + "word " * 7 + "reimbursement " + "word " * 8

    cut = excerpt(highlight(text, ["late", "flight", "reimburs"], tokenizer), 50)

    assert [segment.text for segment in cut if segment.is_match] == ["late", "flight"]
    assert joined(cut) == "late flight " + "word " * 7 + ELLIPSIS


def test_equal_words_in_a_row_are_not_taken_for_the_inside_of_the_next():
    segments = highlight("华报" * 5, ["报华报"], tokenizer)

    assert [segment.text for segment in segments if segment.is_match] == ["报华报"]
    assert joined(segments) == "华报" * 5


@given(TEXTS.map(lambda text: text * 5), st.integers(5, 80))
def test_an_excerpt_is_a_part_of_the_text(text, limit):
    cut = excerpt(highlight(text, ["人民", "a", "标准"], tokenizer), limit)

    assert joined(cut).strip(ELLIPSIS) in text
    assert len(joined(cut)) <= limit + 2


def test_traditional_text_is_marked_where_the_tokenizer_reads_it_simplified():
    simplifying = JiebaTokenizer(TokenizerOptions(simplify=True))
    segments = highlight("電腦的說明書", simplifying("电脑"), simplifying)
    assert [segment.text for segment in segments if segment.is_match] == ["電腦"]


def test_a_word_beside_dropped_stop_words_is_marked():
    choosy = JiebaTokenizer(TokenizerOptions(stop_words=frozenset({"报销"})))
    segments = highlight("差旅报销标准", choosy("报销标准"), choosy)
    assert [segment.text for segment in segments if segment.is_match] == ["标准"]
