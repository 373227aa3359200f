import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.errors import RetrievalError
from retrieval.postings import Postings, Segment, count_postings, hash_terms, term_hash
from retrieval.tokenize import JiebaTokenizer


def test_a_term_hash_is_the_same_everywhere():
    assert term_hash("知识库") == 5963610120159321573
    assert term_hash("\ud800") != term_hash("\ud801")


def test_hashes_keep_order_and_repeats():
    hashes = hash_terms(["b", "a", "b"])

    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [term_hash("b"), term_hash("a"), term_hash("b")]


def test_postings_are_sorted_unique_and_counted():
    postings = count_postings(["b", "a", "b"])

    assert postings.terms.tolist() == sorted([term_hash("a"), term_hash("b")])
    assert dict(zip(postings.terms.tolist(), postings.frequencies.tolist(), strict=True)) == {
        term_hash("a"): 1,
        term_hash("b"): 2,
    }
    assert postings.length == 3


@given(tokens=st.lists(st.text(max_size=4), max_size=20))
def test_postings_survive_their_bytes(tokens):
    postings = count_postings(tokens)

    read = Postings.from_bytes(postings.terms_bytes, postings.frequencies_bytes, postings.length)

    assert len(postings.terms_bytes) == 2 * len(postings.frequencies_bytes)
    np.testing.assert_array_equal(read.terms, postings.terms)
    np.testing.assert_array_equal(read.frequencies, postings.frequencies)
    assert read.length == len(tokens)


@pytest.mark.parametrize(("terms", "frequencies"), [(b"12345678", b""), (b"1234567", b"1234"), (b"1234", b"12")])
def test_postings_that_do_not_belong_together_are_refused(terms, frequencies):
    with pytest.raises(RetrievalError, match="index the document again"):
        Postings.from_bytes(terms, frequencies, 1)


# Hashes that share all their leading bits, and such that do not.
terms = st.integers(0, 30) | st.integers(0, 2**64 - 1)
counts = st.integers(1, 5) | st.integers(1, 2**32 - 1)
chunks = st.tuples(st.dictionaries(terms, counts, max_size=8), st.integers(0, 2**32 - 1))
corpora = st.dictionaries(st.integers(-(2**40), 2**40), chunks, max_size=15)


def columns(corpus):
    postings = [(term, count) for frequencies, _ in corpus.values() for term, count in frequencies.items()]
    return (
        np.array(list(corpus), dtype=np.int64),
        np.array([len(frequencies) for frequencies, _ in corpus.values()], dtype=np.int64),
        np.array([length for _, length in corpus.values()], dtype=np.uint32),
        np.array([term for term, _ in postings], dtype="<u8").tobytes(),
        np.array([count for _, count in postings], dtype="<u4").tobytes(),
    )


def rows(corpus):
    for chunk_id, (frequencies, length) in corpus.items():
        hashes, found = list(frequencies), list(frequencies.values())
        yield chunk_id, np.array(hashes, dtype="<u8").tobytes(), np.array(found, dtype="<u4").tobytes(), length


def read(segment):
    """What the segment says, as the corpus it was built from."""
    corpus = {
        chunk_id: ({}, length)
        for chunk_id, length in zip(segment.chunk_ids.tolist(), segment.lengths.tolist(), strict=True)
    }
    columns_of = np.repeat(segment.terms, np.diff(segment.indptr)).tolist()
    for term, ordinal, impact in zip(columns_of, segment.ordinals.tolist(), segment.impacts.tolist(), strict=True):
        frequencies, length = corpus[segment.chunk_ids[ordinal]]
        frequencies[term] = int(segment.impact_frequencies[impact])
        assert segment.impact_lengths[impact] == length
    return corpus


@given(corpus=corpora)
def test_rows_and_columns_hold_the_corpus_in_any_order(corpus):
    assert read(Segment.from_columns(*columns(corpus))) == corpus
    assert read(Segment.from_rows(rows(corpus))) == corpus


@given(corpus=corpora)
def test_everything_is_ascending(corpus):
    segment = Segment.from_columns(*columns(corpus))

    for values in (segment.chunk_ids, segment.terms):
        assert values.tolist() == sorted(set(values.tolist()))
    for start, stop in zip(segment.indptr[:-1], segment.indptr[1:], strict=True):
        ordinals = segment.ordinals[start:stop].tolist()
        assert ordinals == sorted(set(ordinals)) != []


@given(corpus=corpora)
def test_a_segment_survives_its_state(corpus):
    assert read(Segment.from_state(Segment.from_columns(*columns(corpus)).state())) == corpus


def test_many_postings_have_few_impacts():
    corpus = {chunk_id: ({1: 1, 2: 1 + chunk_id % 3, 5: 7}, 9 + chunk_id % 2) for chunk_id in range(50)}

    segment = Segment.from_columns(*columns(corpus))

    assert read(segment) == corpus
    assert segment.impacts.dtype == np.uint16
    assert segment.impact_frequencies.size == 8


def test_a_corpus_of_many_impacts_keeps_them_apart():
    corpus = {chunk_id: ({1: 1 + chunk_id}, 2 * chunk_id) for chunk_id in range(70_000)}

    segment = Segment.from_columns(*columns(corpus))

    assert segment.impacts.dtype == np.uint32
    assert segment.impact_frequencies[segment.impacts].tolist() == list(range(1, 70_001))


def test_every_posting_of_a_term_stands_once():
    corpus = {chunk_id: (dict.fromkeys(range(chunk_id % 7), 1), 7) for chunk_id in range(100)}

    segment = Segment.from_columns(*columns(corpus))

    expected = Counter(term for frequencies, _ in corpus.values() for term in frequencies)
    assert dict(zip(segment.terms.tolist(), np.diff(segment.indptr).tolist(), strict=True)) == expected


def test_arrays_cannot_be_changed():
    chunk_ids, *others = columns({3: ({1: 1}, 1), 5: ({1: 2}, 2)})

    segment = Segment.from_columns(chunk_ids, *others)

    assert not any(array.flags.writeable for array in segment.arrays)
    assert chunk_ids.flags.writeable


@pytest.mark.parametrize("damage", [{3: b""}, {4: b""}, {3: b"1234567", 4: b"123"}])
def test_columns_that_do_not_belong_together_are_refused(damage):
    stored = columns({3: ({1: 1}, 1), 5: ({1: 2}, 2)})

    with pytest.raises(RetrievalError, match="index the knowledge base's documents again"):
        Segment.from_columns(*(damage.get(place, column) for place, column in enumerate(stored)))


@pytest.mark.parametrize("damage", [(b"", b"1234"), (b"12345678", b""), (b"12345678x", b"1234"), (b"1234", b"12")])
def test_rows_that_do_not_belong_together_are_refused_by_their_chunk(damage):
    with pytest.raises(RetrievalError, match="chunk 5 are damaged: index its document again"):
        Segment.from_rows([(3, b"12345678", b"1234", 1), (5, *damage, 1)])


def test_a_chunk_with_two_rows_is_refused():
    _, *others = columns({3: ({1: 1}, 1), 5: ({1: 2}, 2)})

    with pytest.raises(ValueError, match="one a chunk"):
        Segment.from_columns(np.array([5, 5]), *others)


def test_no_cache_keeps_words_that_are_longer_than_words_are():
    words = [f"{number:04d}" + "ab" * 4_000 for number in range(100)]
    tokenizer = JiebaTokenizer()
    tokenizer("its own tables")
    tracemalloc.start()
    try:
        hash_terms(words)
        tokenizer(" ".join(words))
        kept, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < len(words[0]) * len(words) / 4
