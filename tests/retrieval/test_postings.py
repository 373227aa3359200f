import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from retrieval.errors import RetrievalError
from retrieval.postings import Postings, count_postings, hash_terms, term_hash

# A property is not timed: the machine may be busy.
untimed = settings(deadline=None)


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


@untimed
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
