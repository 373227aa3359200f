from dataclasses import replace

import numpy as np
import pytest

from retrieval.bm25 import OkapiIndex
from retrieval.character_counts import CharacterCounter
from retrieval.errors import RerankerNotApplicable
from retrieval.evidence import CharacterEvidence, wordings
from retrieval.postings import count_postings, hash_terms
from retrieval.questions import QuestionIndex
from retrieval.rerankers.overlap import OverlapReranker, overlap
from retrieval.types import Analysis, RerankJob
from tests.fakes import LetterTokenizer, TableLexicon, WordTokenizer
from tests.retrieval.rerankers.jobs import candidate, soon

WORDS = WordTokenizer()


def analysis(text, *kb_ids, variants=()):
    return Analysis(
        text,
        {kb_id: tuple(text.split()) for kb_id in kb_ids or (1,)},
        {1: tuple(tuple(variant.split()) for variant in variants)},
    )


def scores(reranker, query, candidates, lexicons=None):
    return reranker.scores(RerankJob(query, tuple(candidates), lexicons or {}), soon())


class CountingLexicon(TableLexicon):
    """Counts the look-ups."""

    looked_up = 0

    def saturation(self, terms, chunk_ids):
        self.looked_up += 1
        return super().saturation(terms, chunk_ids)


def test_terms_weigh_by_rarity_and_by_how_full_of_them_a_chunk_is():
    rarity = np.array([1.0, 3.0])
    saturation = np.array([[1.0, 0.0], [0.0, 0.5], [1.0, 0.5], [0.0, 0.0]])
    held, full = np.array([0.25, 0.75, 1.0, 0.0]), np.array([0.25, 0.375, 0.625, 0.0])
    assert overlap(saturation, rarity) == pytest.approx(0.2 * held + 0.8 * full)


def test_statistics_of_each_knowledge_base_serve_its_own_candidates():
    lexicons = {
        1: TableLexicon({"p": 1.0, "b": 3.0}, {10: ["p"]}),
        2: TableLexicon({"p": 2.0, "b": 2.0}, {20: ["p"]}),
    }
    reranker = OverlapReranker({1: WORDS, 2: WORDS})
    found = scores(reranker, analysis("p b", 1, 2), [candidate(20, 2), candidate(10, 1)], lexicons)
    assert found.tolist() == pytest.approx([0.5, 0.25])


def test_without_statistics_the_text_is_tokenised_and_terms_weigh_the_same():
    candidates = [candidate(1, text="P c"), candidate(2, text="b p"), candidate(3)]
    found = scores(OverlapReranker({1: WORDS}), analysis("p b"), candidates)
    assert found.tolist() == pytest.approx([0.5, 1.0, 0.0])


def test_without_statistics_title_and_headings_are_read_as_they_are_in_the_index():
    candidates = [candidate(1, text="c", title="p", headings=("x", "b")), candidate(2, text="c", title="p")]
    found = scores(OverlapReranker({1: WORDS}), analysis("p b"), candidates)
    assert found.tolist() == pytest.approx([1.0, 0.5])


def test_the_agreement_of_the_channels_does_not_count():
    candidates = [candidate(1, text="p b", agreement=0.5), candidate(2, text="x", agreement=1.0)]
    found = scores(OverlapReranker({1: WORDS}), analysis("p b"), candidates)
    assert found.tolist() == pytest.approx([1.0, 0.0])


def test_a_query_without_terms_has_nothing_in_common_with_anything():
    found = scores(OverlapReranker({1: WORDS}), analysis(""), [candidate(1, text="p", agreement=0.5)])
    assert found.tolist() == [0.0]


def test_each_text_is_tokenised_as_its_own_knowledge_base_is():
    reranker = OverlapReranker({1: WORDS, 2: LetterTokenizer()})
    query = Analysis("pb", {1: ("pb",), 2: ("p", "b")})
    candidates = [candidate(10, 1, text="bp"), candidate(20, 2, text="bp"), candidate(21, 2, text="b")]
    assert scores(reranker, query, candidates).tolist() == pytest.approx([0.0, 1.0, 0.5])


def test_a_knowledge_base_with_statistics_and_one_without_stand_side_by_side():
    reranker = OverlapReranker({1: WORDS, 2: WORDS})
    candidates = [candidate(20, 2, text="b"), candidate(10, 1, text="b")]
    lexicons = {1: TableLexicon({"p": 1.0, "b": 3.0}, {10: ["b"]})}
    found = scores(reranker, analysis("p b", 1, 2), candidates, lexicons)
    assert found.tolist() == pytest.approx([0.5, 0.75])


def test_what_a_knowledge_base_without_tokenizer_holds_is_not_known():
    candidates = [candidate(10, 1, text="p"), candidate(20, 2, text="p", agreement=0.5)]
    found = scores(OverlapReranker({1: WORDS}), analysis("p", 1), candidates)
    assert found.tolist() == pytest.approx([1.0, 0.0])


def test_it_is_of_no_use_where_no_knowledge_base_has_a_tokenizer():
    with pytest.raises(RerankerNotApplicable, match="tokenizer"):
        scores(OverlapReranker({1: WORDS}), analysis("p", 1), [candidate(20, 2, text="p")])


def test_no_candidates_have_no_scores():
    assert scores(OverlapReranker({}), analysis("p"), []).shape == (0,)


def test_another_name_of_a_concept_covers_as_the_query_s_own_does():
    query = analysis("p kb", variants=["p knowledge base"])
    candidates = [candidate(1, text="p kb"), candidate(2, text="p knowledge base"), candidate(3, text="knowledge p")]
    found = scores(OverlapReranker({1: WORDS}), query, candidates)
    assert found.tolist() == pytest.approx([1.0, 1.0, 2 / 3])


def test_words_of_two_wordings_are_not_added_up():
    lexicons = {1: TableLexicon({"p": 1.0, "b": 1.0, "c": 3.0, "d": 1.0}, {1: ["b", "d"]})}
    found = scores(OverlapReranker({1: WORDS}), analysis("p b", variants=["c d"]), [candidate(1)], lexicons)
    assert found.tolist() == pytest.approx([0.5])


def test_all_wordings_take_one_look_at_the_statistics():
    lexicon = CountingLexicon({"p": 1.0, "b": 1.0, "c": 1.0}, {1: ["c"], 2: ["b"]})
    query = analysis("p", variants=["b", "c"])
    found = scores(OverlapReranker({1: WORDS}), query, [candidate(1), candidate(2)], {1: lexicon})
    assert found.tolist() == pytest.approx([1.0, 1.0])
    assert lexicon.looked_up == 1


def test_an_answer_to_one_of_several_questions_covers_as_if_it_had_been_asked_alone():
    whole = Analysis("p b c d", {1: ("p", "b", "c", "d")}, sub_queries=(analysis("p b"), analysis("c d")))
    found = scores(OverlapReranker({1: WORDS}), whole, [candidate(1, text="c d"), candidate(2, text="p c")])
    assert found.tolist() == pytest.approx([1.0, 0.5])


def test_function_words_count_only_in_a_query_that_has_no_others():
    candidates = [candidate(1, text="how warranty"), candidate(2, text="how is the")]
    reranker = OverlapReranker({1: WORDS})
    assert scores(reranker, analysis("how is the warranty"), candidates).tolist() == pytest.approx([1.0, 0.0])
    assert scores(reranker, analysis("how is"), candidates).tolist() == pytest.approx([0.5, 1.0])


class TestQuestions:
    """A chunk scores by its passage or by one of the questions that it answers, whichever is better."""

    def job(self, cutter, query, texts, asked, **parts):
        def counted(text):
            return count_postings(cutter(text))

        counter = CharacterCounter()
        rows = []
        for chunk_id, text in texts.items():
            counter.add(text)
            postings = counted(text)
            rows.append((chunk_id, postings.terms_bytes, postings.frequencies_bytes, postings.length))
        index = QuestionIndex.build((key, [counted(each).packed for each in of]) for key, of in asked.items())
        statistics = {"lexicons": {1: OkapiIndex.build(rows)}, "questions": {1: index}}
        analysed = Analysis(query, {1: tuple(cutter(query))})
        held = CharacterEvidence.of(
            counter.counts(), wordings(analysed, 1, cutter), np.array(list(texts)), list(texts.values())
        )
        statistics["characters"] = {1: held}
        candidates = tuple(candidate(key, text=text, questions=asked.get(key, ())) for key, text in texts.items())
        return RerankJob(analysed, candidates, **{**statistics, **parts})

    def words_job(self, query, **parts):
        asked = {1: ("b c", "p b"), 2: ("c c",)}
        return self.job(WORDS, query, {1: "p q r s t u v w", 2: "x y z", 3: "p"}, asked, **parts)

    def test_the_best_of_passage_and_questions_counts(self):
        job = self.words_job("p b")
        hashes, lexicon = hash_terms(["p", "b"]), job.lexicons[1]
        best = np.vstack(
            [
                lexicon.saturation_of(np.array([[1, 1]]), np.array([2.0])),
                lexicon.saturation(hashes, np.array([2, 3])),
            ]
        )
        expected = overlap(best, lexicon.rarity(hashes))
        assert OverlapReranker({1: WORDS}).scores(job, soon()) == pytest.approx(expected)

    def test_without_an_index_of_them_the_passage_alone_counts(self):
        with_them, without = (
            OverlapReranker({1: WORDS}).scores(self.words_job("p b", **parts), soon())
            for parts in ({}, {"questions": {}})
        )
        assert with_them[0] > without[0]
        assert with_them[1:].tolist() == without[1:].tolist()

    def test_without_statistics_they_are_tokenised_too(self):
        job = self.words_job("p b c", lexicons={}, questions={}, characters={})
        assert OverlapReranker({1: WORDS}).scores(job, soon()) == pytest.approx([2 / 3, 1 / 3, 1 / 3])

    def test_their_characters_count_but_not_those_of_one_that_has_gone_since_the_index_was_read(self):
        letters = LetterTokenizer()
        job = self.job(letters, "保修多久", {1: "质保期为两年", 2: "运费由买家承担"}, {2: ("保修多久",)})
        edited = tuple(each._replace(passage=each.passage._replace(questions=())) for each in job.candidates)
        [first, second], [_, without] = (
            OverlapReranker({1: letters}).scores(replace(job, candidates=each), soon())
            for each in (job.candidates, edited)
        )
        assert second > without > first
