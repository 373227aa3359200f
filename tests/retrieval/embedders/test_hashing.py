import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.embedders.hashing import DIMENSION, HashingEmbedder

embedder = HashingEmbedder()

REFERENCE_TEXT = "知识库支持 Hybrid retrieval，版本2"
MASK = (1 << 64) - 1
MULTIPLIER = 0x9E3779B97F4A7C15


def _mix(value):
    value = (value + MULTIPLIER) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _polynomial(values):
    return sum(value * pow(MULTIPLIER, place, 1 << 64) for place, value in enumerate(values)) & MASK


def _expected(features):
    """A vector from (hash, weight) pairs that each occur once."""
    vector = np.zeros(DIMENSION)
    for value, weight in features:
        vector[value >> 54] += weight * (1 - 2 * (value & 1))
    return vector / np.linalg.norm(vector)


def test_the_vectors_of_documents_have_one_row_a_text():
    vectors = embedder.embed_documents(["知识库", "search engine", ""])

    assert vectors.shape == (3, DIMENSION)
    assert vectors.dtype == np.float32


def test_no_documents_give_no_rows():
    assert embedder.embed_documents([]).shape == (0, DIMENSION)


def test_a_query_and_a_document_with_the_same_text_have_the_same_vector():
    assert np.array_equal(embedder.embed_query("检索 search"), embedder.embed_documents(["检索 search"])[0])


def test_cjk_features_follow_the_documented_polynomial():
    first, second = _mix(ord("检")), _mix(ord("索"))
    features = [
        (_mix(first + 0x11 & MASK), 1.0),
        (_mix(second + 0x11 & MASK), 1.0),
        (_mix(_polynomial([first, second]) + 0x12 & MASK), 1.0),
    ]

    assert embedder.embed_query("检索") == pytest.approx(_expected(features), abs=1e-6)


def test_word_features_follow_the_documented_polynomial():
    letters = [_mix(ord(letter)) for letter in "ab"]
    bounded = [0, *letters, 0]
    features = [
        (_mix(_polynomial(letters) + 0x20 & MASK), 0.5),
        (_mix(_polynomial(bounded[:3]) + 0x33 & MASK), 1.0),
        (_mix(_polynomial(bounded[1:]) + 0x33 & MASK), 1.0),
        (_mix(_polynomial(bounded) + 0x34 & MASK), 1.0),
    ]

    assert embedder.embed_query("  AB.") == pytest.approx(_expected(features), abs=1e-6)


def test_another_process_makes_the_same_vector():
    code = (
        "from retrieval.embedders.hashing import HashingEmbedder;"
        f"print(HashingEmbedder().embed_query({REFERENCE_TEXT!r}).tobytes().hex())"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    ).stdout

    assert output.strip() == embedder.embed_query(REFERENCE_TEXT).tobytes().hex()


@pytest.mark.parametrize("text", ["", "   ", "。！？", "---"])
def test_a_text_without_features_gives_a_unit_vector(text):
    assert np.linalg.norm(embedder.embed_query(text)) == pytest.approx(1.0)


@given(st.text(alphabet=st.characters(codec=None), max_size=60))
def test_every_text_gives_a_finite_unit_vector(text):
    vector = embedder.embed_query(text)

    assert vector.shape == (DIMENSION,)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_a_lone_surrogate_is_accepted():
    assert np.linalg.norm(embedder.embed_query("坏\ud800字")) == pytest.approx(1.0)


def test_case_and_width_do_not_matter():
    assert np.array_equal(embedder.embed_query("ＧＰＴ ４"), embedder.embed_query("gpt 4"))  # noqa: RUF001


def test_a_word_inside_chinese_text_is_the_same_word():
    alone = embedder.embed_query("redis")
    inside, without = embedder.embed_documents(["使用redis作为缓存", "使用mysql作为缓存"])

    assert alone @ inside > alone @ without + 0.2


@pytest.mark.parametrize(
    ("query", "near", "far"),
    [
        ("公司的年假有几天？", "员工每年享有十天年假。", "打印机位于三楼走廊。"),
        ("vector databases", "A database that stores vectors", "The printer is on the third floor"),
        ("검색 엔진", "검색 엔진의 구조", "오늘 날씨가 좋다"),
    ],
)
def test_shared_characters_bring_texts_together(query, near, far):
    vectors = embedder.embed_documents([near, far])

    assert vectors[0] @ embedder.embed_query(query) > vectors[1] @ embedder.embed_query(query) + 0.1


def test_repeating_a_word_counts_less_than_linearly():
    once, often = embedder.embed_documents(["alpha beta", "alpha alpha alpha alpha alpha alpha alpha alpha beta"])

    # 8 linear repetitions would leave beta a cosine near 1/8.
    assert often @ embedder.embed_query("beta") > 0.25
    assert often @ embedder.embed_query("alpha") > once @ embedder.embed_query("alpha")


def test_tokens_are_estimated():
    assert embedder.count_tokens("知识库 test") == 3 + 2
