import dataclasses

import pytest
from hypothesis import given, strategies as st

from kb.base.text import hash_content
from kb.ingest.chunkers.strategies import ChunkSettings, approximate_token_ends, approximate_tokens

MIXED = "机器学习是人工智能。The end. “对话。”她说！表 1：a, b；\n\n\t 第条—…🙂é\u3000"


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"size": 19}, "set it to 20 or more"),
        ({"overlap": -1}, "set it between 0 and 499"),
        ({"size": 100, "overlap": 100}, "set it between 0 and 99"),
        ({"unit": "words"}, "use one of characters, tokens"),
        ({"strategy": "random"}, "use one of recursive, headings"),
        ({"strategy": "parent_child", "parent_size": 500}, "set it to more than 500"),
    ],
)
def test_settings_that_cannot_work_name_the_remedy(values, remedy):
    with pytest.raises(ValueError, match=remedy):
        ChunkSettings(**values)


def test_the_smallest_settings_are_accepted():
    assert dataclasses.asdict(ChunkSettings(size=20, overlap=19))["overlap"] == 19


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (" \n", 0),
        ("中文", 2),
        ("中文。", 3),
        ("word", 1),
        ("words", 2),
        ("BM25 检索", 3),
        ("a, b", 3),
        ("слово", 2),
        ("か한", 2),
    ],
)
def test_tokens_are_approximated_by_script(text, count):
    assert approximate_tokens(text) == count


@given(st.text(alphabet=MIXED), st.text(alphabet=MIXED))
def test_a_text_never_counts_more_tokens_than_its_parts(first, second):
    assert approximate_tokens(first + second) <= approximate_tokens(first) + approximate_tokens(second)


def test_texts_that_read_the_same_have_one_hash():
    assert hash_content("caf\u00e9  au\nlait ") == hash_content("cafe\u0301 au lait")


def test_texts_that_differ_have_different_hashes():
    assert hash_content("退款") != hash_content("退货")


def test_the_hash_is_sha256_in_hexadecimal():
    assert hash_content("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@given(st.text(alphabet=MIXED))
def test_every_approximated_token_has_an_end(text):
    ends = approximate_token_ends(text)
    assert len(ends) == approximate_tokens(text)
    assert ends == sorted(ends)
    assert not text[ends[-1] if ends else 0 :].strip()


def test_settings_that_cut_alike_have_one_fingerprint():
    one = ChunkSettings(parent_size=900).fingerprint("a")
    assert one == ChunkSettings(parent_size=1_000).fingerprint("b")


@pytest.mark.parametrize(
    "changed", [{"size": 400}, {"overlap": 10}, {"unit": "tokens"}, {"strategy": "headings"}, {"strategy": "tokens"}]
)
def test_settings_that_cut_otherwise_have_another_fingerprint(changed):
    assert ChunkSettings(**changed).fingerprint("a") != ChunkSettings().fingerprint("a")


def test_another_model_cuts_otherwise_where_its_tokens_are_counted():
    by_tokens = ChunkSettings(unit="tokens")
    assert by_tokens.fingerprint("a") != by_tokens.fingerprint("b")


def test_the_size_of_parents_counts_where_there_are_parents():
    one, other = (ChunkSettings(strategy="parent_child", parent_size=size) for size in (900, 1_000))
    assert one.fingerprint("a") != other.fingerprint("a")
