from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings, strategies as st

from retrieval.errors import import_dependency
from retrieval.tokenize import Engine, load_segmenter

engines = pytest.mark.parametrize("engine", Engine)
# A dictionary of its own takes an engine up to 0.2 s.
few = settings(max_examples=20)
CHINESE = st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FD5), min_size=1, max_size=6)
COMMON = st.text("中国人民大学生活北京知识库检索的", min_size=1, max_size=6)


@engines
def test_a_word_of_the_dictionary_is_kept_whole(engine):
    text = "云原生知识库检索平台"

    assert text not in list(load_segmenter(engine)(text))
    assert list(load_segmenter(engine, [(text, None)])(text))[-1] == text


@engines
@few
@given(words=st.dictionaries(CHINESE | COMMON, st.none(), min_size=1, max_size=6))
def test_words_without_frequency_stay_whole_where_they_stand_alone(engine, words):
    segmenter = load_segmenter(engine, list(words.items()))

    for word in words:
        assert list(segmenter(word))[-1] == word


@engines
@few
@given(word=CHINESE | COMMON)
def test_a_frequent_word_stays_whole_where_it_stands_alone(engine, word):
    assert list(load_segmenter(engine, [(word, 10_000_000)])(word))[-1] == word


@engines
@few
@given(words=st.dictionaries(COMMON, st.none() | st.integers(1, 1000), max_size=6), data=st.data())
def test_the_order_of_words_does_not_matter(engine, words, data):
    shuffled = data.draw(st.permutations(list(words.items())))
    text = data.draw(st.text("中国人民大学生活北京知识库检索的，", max_size=40))

    assert list(load_segmenter(engine, shuffled)(text)) == list(load_segmenter(engine, list(words.items()))(text))


@engines
def test_a_frequency_decides_between_neighbours(engine):
    text = "研究生命起源"

    assert "研究生" in list(load_segmenter(engine, [("研究生", 100_000_000)])(text))
    assert "研究生" not in list(load_segmenter(engine, [("生命", 100_000_000)])(text))


def test_jieba_cuts_a_run_without_punctuation_in_pieces_of_2000_characters():
    cut = load_segmenter(Engine.JIEBA)
    run = "的" * 1999 + "中国" * 1001

    pieces = [run[:2000], run[2000:4000], run[4000:]]

    assert list(cut(run)) == [word for piece in pieces for word in cut(piece)]
    assert list(cut(run))[1999:2001] == ["中", "国"]


@engines
def test_one_dictionary_changes_no_other_segmenter(engine):
    text = "云原生知识库检索平台"
    before = list(load_segmenter(engine)(text))

    load_segmenter(engine, [(text, None)])

    assert list(load_segmenter(engine)(text)) == before
    assert list(load_segmenter(engine, [("云原生", None)])(text))[-1] != text


def test_jieba_segmenters_parse_its_dictionary_once(monkeypatch):
    load_segmenter(Engine.JIEBA)

    def refuse(self):
        raise AssertionError("parsed again")

    monkeypatch.setattr(import_dependency("jieba").Tokenizer, "get_dict_file", refuse)
    with ThreadPoolExecutor(4) as pool:
        cut = list(pool.map(lambda _: list(load_segmenter(Engine.JIEBA, [("云原生", None)])("云原生")), range(4)))

    assert cut == [["原生", "云原生"]] * 4
