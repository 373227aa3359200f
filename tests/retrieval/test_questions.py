"""Questions as texts of their own: a chunk counts as the best of its questions."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.bm25 import OkapiIndex
from retrieval.postings import count_postings, hash_terms
from retrieval.questions import KEPT_CHARACTERS, QuestionIndex, _kept_key, question_key

words = st.lists(st.sampled_from("abcdefg"), max_size=6)
corpora = st.dictionaries(st.integers(1, 2**40), st.lists(words, min_size=1, max_size=4), max_size=6)


def packed(corpus):
    return [(chunk_id, [count_postings(each).packed for each in questions]) for chunk_id, questions in corpus.items()]


def okapi(corpus):
    """An index of all questions by themselves, and the chunk of each."""
    of = [chunk_id for chunk_id, questions in sorted(corpus.items()) for _ in questions]
    counted = [count_postings(each) for _, questions in sorted(corpus.items()) for each in questions]
    rows = [(row, each.terms_bytes, each.frequencies_bytes, each.length) for row, each in enumerate(counted)]
    return OkapiIndex.build(rows), of


@given(corpora, words, st.integers(1, 5))
def test_a_search_gives_the_best_chunks_by_their_best_question(corpus, query, k):
    index, of = okapi(corpus)
    best = {}
    terms = hash_terms(query)
    for row, score in zip(*(each.tolist() for each in index.search(terms, 1_000)), strict=True):
        best.setdefault(of[row], score)
    expected = sorted(best.items(), key=lambda each: (-each[1], each[0]))[:k]

    found, scores = QuestionIndex.build(packed(corpus)).search(terms, k)

    assert list(zip(found.tolist(), scores.tolist(), strict=True)) == expected


@given(corpora, words)
def test_exact_scores_are_those_of_a_search_and_none_without_questions(corpus, query):
    index = QuestionIndex.build(packed(corpus))
    terms = hash_terms(query)
    found = dict(zip(*(each.tolist() for each in index.search(terms, 1_000)), strict=True))
    wanted = np.array([*corpus, 3**20, -7], dtype=np.int64)
    *scores, unknown, elsewhere = index.score(terms, wanted).tolist()
    assert np.isnan([unknown, elsewhere]).all()
    assert scores == pytest.approx([found.get(chunk_id, 0.0) for chunk_id in corpus], rel=1e-5)


@given(corpora, corpora, words)
def test_changes_over_a_base_give_what_a_build_gives(before, after, query):
    changed = np.array(sorted({*before, *after}), dtype=np.int64)
    base = QuestionIndex.build(packed(before))
    updated = base.with_changes(changed, packed(after))
    built = QuestionIndex.build(packed(after))
    terms = hash_terms(query)
    for mine, theirs in zip(updated.search(terms, 9), built.search(terms, 9), strict=True):
        assert mine.tolist() == pytest.approx(theirs.tolist())
    again = updated.with_changes(changed[:0], [])
    assert [each.tolist() for each in again.search(terms, 9)] == [each.tolist() for each in base.search(terms, 9)]


@given(corpora)
def test_a_stored_index_is_read_back(corpus):
    index = QuestionIndex.build(packed(corpus))
    read = QuestionIndex.from_state(index.state())
    terms = hash_terms("abcdefg")
    assert [each.tolist() for each in read.search(terms, 9)] == [each.tolist() for each in index.search(terms, 9)]


def array(dtype, *values):
    return (dtype, (len(values),), np.array(values, dtype).tobytes())


@pytest.mark.parametrize(
    "wrong",
    [
        {"chunk_ids": array("<i8", 2, 1)},
        {"chunk_ids": array("<i8", 1)},
        {"lengths": ("<u4", (2, 1), bytes(8))},
        {"lengths": array("<u4", 1)},
        {"terms": array("<u8", 7, 7)},
        {"indptr": array("<i8", 0, 2)},
        {"indptr": array("<i8", 0, 3, 2)},
        {"indptr": array("<i8", 0, 1, 9)},
        {"gaps": array("<i4", 0, 2)},
        {"gaps": array("<i4", 0, -1)},
        {"frequencies": array("|u1", 1)},
    ],
)
def test_a_state_whose_parts_do_not_fit_is_refused(wrong):
    good = QuestionIndex.build(packed({1: ["a"], 2: ["b"]})).state()
    QuestionIndex.from_state(good)
    with pytest.raises(ValueError, match=r"fit each other|ascending|indptr|of no chunk"):
        QuestionIndex.from_state(good | wrong)


def test_only_allowed_chunks_are_found():
    index = QuestionIndex.build(packed({1: ["a"], 2: ["a", "ab"], 3: ["a"]}))
    found, _ = index.search(hash_terms(["a"]), 5, only=np.array([2, 3]))
    assert sorted(found.tolist()) == [2, 3]


def test_counts_are_of_all_questions_of_some_chunks():
    index = QuestionIndex.build(packed({7: ["aab", "c"], 9: ["b"], 4: ["a"]}))
    rows, places, frequencies, lengths = index.counts(hash_terms(["a", "b"]), np.array([9, 5, 7]))
    assert (rows.tolist(), places.tolist(), lengths.tolist()) == ([0, 2, 2], [0, 0, 1], [1, 3, 1])
    assert frequencies.tolist() == [[0, 1], [2, 1], [0, 0]]


def test_keys_of_long_texts_are_not_kept():
    before = _kept_key.cache_info().currsize
    assert question_key("\uff21" * KEPT_CHARACTERS + "?") == "a" * KEPT_CHARACTERS
    assert _kept_key.cache_info().currsize == before
    assert _kept_key.cache_info().maxsize * KEPT_CHARACTERS < 1_000_000
