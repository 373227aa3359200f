import numpy as np
import pytest

from retrieval.postings import hash_terms
from retrieval.rerank import OverlapReranker, coverage
from retrieval.types import Analysis, Candidate, Passage
from tests.fakes import WordTokenizer


class TableLexicon:
    """Every term has the idf given; `held` maps chunk ids to the terms they hold."""

    def __init__(self, idf, held):
        self._idf = {int(hash_terms([term])[0]): value for term, value in idf.items()}
        self._held = {chunk_id: set(hash_terms(terms).tolist()) for chunk_id, terms in held.items()}

    def idf(self, terms):
        return np.array([self._idf[int(term)] for term in terms])

    def frequencies(self, terms, chunk_ids):
        return np.array(
            [[int(int(term) in self._held[chunk_id]) for term in terms] for chunk_id in chunk_ids.tolist()],
            dtype=np.uint32,
        )


def candidate(chunk_id, kb_id=1, text=None, agreement=0.0):
    passage = None if text is None else Passage(chunk_id, 1, kb_id, "", "", None, text)
    return Candidate(chunk_id, kb_id, {}, {}, agreement, passage)


def analysis(text):
    return Analysis(text, tuple(text.split()))


def test_coverage_weighs_terms_by_idf():
    frequencies = np.array([[3, 0], [0, 1], [1, 1], [0, 0]], dtype=np.uint32)
    assert coverage(frequencies, np.array([1.0, 3.0])).tolist() == pytest.approx([0.25, 0.75, 1.0, 0.0])


def test_statistics_of_each_knowledge_base_serve_its_own_candidates():
    lexicons = {
        1: TableLexicon({"a": 1.0, "b": 3.0}, {10: ["a"]}),
        2: TableLexicon({"a": 2.0, "b": 2.0}, {20: ["a"]}),
    }
    scores = OverlapReranker(WordTokenizer()).scores(analysis("a b"), [candidate(20, 2), candidate(10, 1)], lexicons)
    assert scores.tolist() == pytest.approx([0.3 * 0.5, 0.3 * 0.25])


def test_without_statistics_the_text_is_tokenised_and_terms_weigh_the_same():
    candidates = [candidate(1, text="A c"), candidate(2, text="b a"), candidate(3)]
    scores = OverlapReranker(WordTokenizer()).scores(analysis("a b"), candidates, {})
    assert scores.tolist() == pytest.approx([0.3 * 0.5, 0.3 * 1.0, 0.0])


def test_the_agreement_of_the_channels_counts_beside_coverage():
    candidates = [candidate(1, text="a b", agreement=0.5), candidate(2, text="x", agreement=1.0)]
    scores = OverlapReranker(WordTokenizer()).scores(analysis("a b"), candidates, {})
    assert scores.tolist() == pytest.approx([0.3 + 0.35, 0.7])


def test_a_query_without_terms_is_judged_by_agreement_alone():
    scores = OverlapReranker(WordTokenizer()).scores(analysis(""), [candidate(1, text="a", agreement=0.5)], {})
    assert scores.tolist() == [0.35]
