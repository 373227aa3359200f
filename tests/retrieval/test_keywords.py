import pytest
from hypothesis import given, strategies as st

from retrieval.keywords import MOST_KEYWORDS, extract_keywords, query_keywords
from retrieval.tokenize import JiebaTokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return JiebaTokenizer()


@pytest.fixture(scope="module")
def keywords(tokenizer):
    """The keywords of a query with its tokens."""
    return lambda query, most=MOST_KEYWORDS: query_keywords(query, tokenizer(query), most)


# Queries


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("最高额抵押权担保的债权可不可以转让？", ("最高额", "抵押权", "最高", "抵押", "担保", "债权", "转让")),
        ("How many points did the Panthers defense surrender?", ("Panthers", "surrender", "defense", "points")),
        ("请问怎么处理 ERR_404 错误？", ("ERR_404", "处理", "错误")),
        ("is IT on in 2015", ("IT", "2015")),
    ],
)
def test_words_that_tell_the_topic_are_keywords(keywords, query, expected):
    assert keywords(query) == expected


@pytest.mark.parametrize(
    "code", ["ERR_404", "v2.3.1", "iPhone15", "c++", "li.lei@example.com", "3.5", "1,000,000", "2015"]
)
def test_codes_and_numbers_stay_whole(keywords, code):
    assert code in keywords(f"什么是 {code} 的意思")


@pytest.mark.parametrize(("opening", "closing"), ["《》", "“”", "「」", '""', "『』"])
def test_a_quotation_is_one_keyword_and_the_first(keywords, opening, closing):
    assert keywords(f"谁写了关于数学的{opening}什么是 数学{closing}？")[0] == "什么是 数学"


def test_words_of_a_longer_word_are_keywords_unless_they_overlap(keywords):
    assert keywords("数据库") == ("数据库", "数据")


def test_a_word_counts_once_whatever_its_case(keywords):
    assert keywords("redis Redis REDIS cluster") == ("Redis", "cluster")


def test_single_characters_serve_where_there_is_nothing_longer(keywords):
    assert keywords("猫吃鱼吗") == ("猫", "吃", "鱼", "吗")


def test_stop_words_and_their_parts_are_no_keywords(keywords):
    assert not {"可不", "不可", "可不可以", "什么", "为什么"} & set(keywords("为什么合同可不可以什么都写"))


def test_a_query_of_function_words_has_no_keywords(keywords):
    assert keywords("what is the of and") == ()


@given(query=st.text(), most=st.integers(0, 12))
def test_keywords_are_bounded_and_distinct(tokenizer, query, most):
    found = query_keywords(query, tokenizer(query), most)

    assert len(found) <= most
    assert len({word.casefold() for word in found}) == len(found)
    assert all(found)


# Chunks

LAW = (
    "养老服务机构应当与老年人签订养老服务协议。北京市民政局指导养老服务机构的设立，"
    "《中华人民共和国老年人权益保障法》规定了老年人的权利。养老服务机构不得侵害老年人的权益。"
)
PAPER = (
    "Adipose tissue inflammation links obesity and insulin resistance. In mice, adipose tissue inflammation is "
    "driven by TNF-alpha. The effects of Metformin on insulin resistance were small."
)


def test_a_chinese_chunk_is_described_by_titles_names_and_frequent_words():
    found = extract_keywords(LAW, "zh")

    assert found[0] == "中华人民共和国老年人权益保障法"
    assert {"老年人", "北京市"} <= set(found)


def test_words_that_keep_together_make_a_phrase():
    found = extract_keywords(LAW, "zh")

    assert "养老服务机构" in found or "养老服务" in found


def test_parts_that_stand_nowhere_alone_are_left_out():
    assert "民政" not in extract_keywords("民政局很近。民政局很远。", "zh")


def test_latin_names_count_in_a_chinese_chunk():
    assert "PostgreSQL" in extract_keywords("我们用 PostgreSQL 保存向量，PostgreSQL 很稳定，检索很快。", "zh")


def test_an_english_chunk_is_described_by_phrases_without_function_words():
    found = extract_keywords(PAPER, "en")

    assert "insulin resistance" in {phrase.casefold() for phrase in found}
    assert any("TNF-alpha" in phrase for phrase in found)
    assert not any(word in {"the", "of", "is", "were"} for phrase in found for word in phrase.casefold().split())


def test_an_english_phrase_does_not_cross_punctuation():
    assert extract_keywords("red apples, green pears", "en") == ("red apples", "green pears")


def test_numbers_alone_describe_no_chunk():
    assert extract_keywords("1984 2015 11.5", "en") == ()
    assert extract_keywords("1984，2015。", "zh") == ()


@given(text=st.text(), language=st.sampled_from(["zh", "en"]), most=st.integers(0, 12))
def test_the_keywords_of_any_chunk_are_bounded_and_distinct(text, language, most):
    found = extract_keywords(text, language, most)

    assert len(found) <= most
    assert len({word.casefold() for word in found}) == len(found)
    assert all(map(str.strip, found))
