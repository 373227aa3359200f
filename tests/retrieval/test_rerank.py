import numpy as np
import pytest

from retrieval.rerank import OverlapReranker, coverage
from retrieval.types import Analysis, Candidate, Passage
from tests.fakes import LetterTokenizer, TableLexicon, WordTokenizer

WORDS = WordTokenizer()


def candidate(chunk_id, kb_id=1, text=None, agreement=0.0):
    passage = None if text is None else Passage(chunk_id, 1, kb_id, "", "", None, text)
    return Candidate(chunk_id, kb_id, {}, {}, agreement, passage)


def analysis(text, *kb_ids):
    return Analysis(text, {kb_id: tuple(text.split()) for kb_id in kb_ids or (1,)})


def test_coverage_weighs_terms_by_idf():
    frequencies = np.array([[3, 0], [0, 1], [1, 1], [0, 0]], dtype=np.uint32)
    assert coverage(frequencies, np.array([1.0, 3.0])).tolist() == pytest.approx([0.25, 0.75, 1.0, 0.0])


def test_statistics_of_each_knowledge_base_serve_its_own_candidates():
    lexicons = {
        1: TableLexicon({"a": 1.0, "b": 3.0}, {10: ["a"]}),
        2: TableLexicon({"a": 2.0, "b": 2.0}, {20: ["a"]}),
    }
    reranker = OverlapReranker({1: WORDS, 2: WORDS})
    scores = reranker.scores(analysis("a b", 1, 2), [candidate(20, 2), candidate(10, 1)], lexicons)
    assert scores.tolist() == pytest.approx([0.3 * 0.5, 0.3 * 0.25])


def test_without_statistics_the_text_is_tokenised_and_terms_weigh_the_same():
    candidates = [candidate(1, text="A c"), candidate(2, text="b a"), candidate(3)]
    scores = OverlapReranker({1: WORDS}).scores(analysis("a b"), candidates, {})
    assert scores.tolist() == pytest.approx([0.3 * 0.5, 0.3 * 1.0, 0.0])


def test_the_agreement_of_the_channels_counts_beside_coverage():
    candidates = [candidate(1, text="a b", agreement=0.5), candidate(2, text="x", agreement=1.0)]
    scores = OverlapReranker({1: WORDS}).scores(analysis("a b"), candidates, {})
    assert scores.tolist() == pytest.approx([0.3 + 0.35, 0.7])


def test_a_query_without_terms_is_judged_by_agreement_alone():
    scores = OverlapReranker({1: WORDS}).scores(analysis(""), [candidate(1, text="a", agreement=0.5)], {})
    assert scores.tolist() == [0.35]


def test_each_text_is_tokenised_as_its_own_knowledge_base_is():
    reranker = OverlapReranker({1: WORDS, 2: LetterTokenizer()})
    query = Analysis("ab", {1: ("ab",), 2: ("a", "b")})
    candidates = [candidate(10, 1, text="ba"), candidate(20, 2, text="ba"), candidate(21, 2, text="b")]
    assert reranker.scores(query, candidates, {}).tolist() == pytest.approx([0.0, 0.3, 0.15])


def test_a_knowledge_base_with_statistics_and_one_without_stand_side_by_side():
    reranker = OverlapReranker({1: WORDS, 2: WORDS})
    candidates = [candidate(20, 2, text="b"), candidate(10, 1, text="b")]
    lexicons = {1: TableLexicon({"a": 1.0, "b": 3.0}, {10: ["b"]})}
    scores = reranker.scores(analysis("a b", 1, 2), candidates, lexicons)
    assert scores.tolist() == pytest.approx([0.3 * 0.5, 0.3 * 0.75])


def test_a_knowledge_base_without_tokenizer_is_judged_by_agreement_alone():
    candidates = [candidate(10, 1, text="a"), candidate(20, 2, text="a", agreement=0.5)]
    scores = OverlapReranker({1: WORDS}).scores(analysis("a", 1), candidates, {})
    assert scores.tolist() == pytest.approx([0.3, 0.35])
