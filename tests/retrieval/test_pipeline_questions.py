"""A query that equals a question of a chunk: the chunk is first, and no default cut drops it."""

from dataclasses import replace

import pytest

from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.selection import ScoreScale
from retrieval.types import Rewritten, Turn
from tests.fakes import BrokenChannel, FakeChannel, FakePassages, FixedReranker
from tests.retrieval.pipelines import chunk_ids, pipeline, run, scope

ASKED = "How long is the warranty?"
MANY = {n: 100.0 - n for n in range(1, 41)}


def asking(*channels, scale=ScoreScale.OVERLAP, scores=None, questions=None, kb_id=1, texts=None, **settings):
    """Chunk 40, the last of all and the worst to the reranker, has the question."""
    passages = FakePassages(
        texts, questions={40: ("Who pays?", ASKED)} if questions is None else questions, kb_id=kb_id
    )
    reranker = FixedReranker({1: 0.99, 40: 0.1} if scores is None else scores, scale)
    return pipeline(scope(1, *channels, **settings), passages=passages, rerankers=[reranker] if scale else [])


@pytest.mark.parametrize("scale", [ScoreScale.OVERLAP, ScoreScale.CROSS_ENCODER, ScoreScale.COSINE])
def test_it_is_first_and_passes_whatever_the_reranker_says(scale):
    cuts = {"score_threshold": None, "cosine_threshold": 0.95}
    result = run(asking(FakeChannel("bm25", 1, MANY), scale=scale), ASKED, rerank_candidates=10, **cuts)
    assert chunk_ids(result)[0] == 40
    assert (result.hits[0].score, result.hits[0].score_scale) == (1.0, scale)
    assert (result.candidates[0].question, result.candidates[0].ranks["rerank"]) == (ASKED, 1)
    assert result.candidates[0].ranks["bm25"] == 40


def test_of_two_that_are_perfect_it_is_the_first():
    assert chunk_ids(run(asking(FakeChannel("bm25", 1, MANY), scores={1: 1.0, 2: 1.0}), ASKED))[:2] == [40, 1]


@pytest.mark.parametrize(
    "query", ["how long is  the WARRANTY", "How long is the warranty？！", "\uff28ow long is the warranty …"]
)
def test_case_width_white_space_and_punctuation_at_the_end_do_not_count(query):
    assert chunk_ids(run(asking(FakeChannel("bm25", 1, MANY)), query))[0] == 40


@pytest.mark.parametrize(
    "query", ["How long is the guarantee?", "How long, is the warranty?", "long is the warranty", "?"]
)
def test_another_query_leaves_it_to_the_reranker(query):
    result = run(asking(FakeChannel("bm25", 1, MANY), questions={40: (ASKED, "??")}), query)
    assert chunk_ids(result)[0] == 1
    assert {each.question for each in result.candidates} == {""}
    assert "equal_questions" not in next(span.detail for span in result.spans if span.stage == "fusion")


def test_the_trace_names_the_chunks():
    result = run(asking(FakeChannel("bm25", 1, MANY)), ASKED)
    assert next(span.detail["equal_questions"] for span in result.spans if span.stage == "fusion") == [40]


def test_a_rewritten_query_may_equal_it_and_so_may_what_was_typed_but_no_sub_query():
    class Rewriter:
        def rewrite(self, text, history, most_queries, deadline):
            return Rewritten(self.text, self.sub_queries)

    def first(typed, rewritten, *sub_queries):
        pipe = asking(FakeChannel("bm25", 1, MANY))
        rewriter = Rewriter()
        rewriter.text, rewriter.sub_queries = rewritten, sub_queries
        pipe = replace(pipe, analyser=replace(pipe.analyser, rewriter=rewriter))
        return chunk_ids(run(pipe, typed, rewrite="always", history=[Turn("user", "I bought it in May")]))[0]

    assert first("And how long?", ASKED) == 40
    assert first(ASKED, "warranty period of the thermostat") == 40
    assert first("And how long?", "warranty period", ASKED) == 1


def test_where_questions_are_not_searched_they_do_not_count():
    assert chunk_ids(run(asking(FakeChannel("bm25", 1, MANY), question_weight=0.0), ASKED))[0] == 1


def test_without_a_reranker_it_is_first_among_the_vectors_results_also_if_only_its_questions_were_found():
    channels = FakeChannel("vector", 1, {1: 0.9, 2: 0.8}), FakeChannel("question", 1, {40: 0.99, 3: 0.9})
    result = run(asking(*channels), ASKED, use_rerank=False, score_threshold=None, cosine_threshold=0.85)
    assert [(hit.passage.chunk_id, hit.score, hit.score_scale) for hit in result.hits] == [
        (40, 1.0, "cosine"),
        (1, 0.9, "cosine"),
    ]


def test_where_only_ranks_are_left_it_is_first_too():
    channels = BrokenChannel("vector", 1), FakeChannel("bm25", 1, MANY)
    result = run(asking(*channels, scale=None), ASKED)
    assert (chunk_ids(result)[0], result.score_scale) == (40, "rrf")


def test_a_chunk_that_stands_for_the_content_of_another_has_its_question():
    texts = {7: "the same", 40: "the same"}
    result = run(asking(FakeChannel("vector", 1, {1: 0.9, 7: 0.8, 40: 0.7}), scores={1: 0.9}, texts=texts), ASKED)
    assert chunk_ids(result) == [7, 1]
    assert result.candidates[0].question == ASKED


def test_several_chunks_with_it_are_first_in_the_fused_order():
    questions = {30: (ASKED,), 40: (ASKED,)}
    result = run(asking(FakeChannel("bm25", 1, MANY), questions=questions), ASKED, rerank_candidates=2, top_k=3)
    assert chunk_ids(result)[:2] == [30, 40]


def test_at_most_two_of_a_knowledge_base_are_first_and_the_others_stay_where_they_are():
    questions = dict.fromkeys((20, 30, 40), (ASKED,))
    scores = {1: 0.99, 2: 0.98, 20: 0.3, 30: 0.1, 40: 0.1}
    pipe = asking(FakeChannel("bm25", 1, MANY), questions=questions, scores=scores)
    found = run(pipe, ASKED, top_k=10, rerank_candidates=40)
    assert chunk_ids(found)[:3] == [20, 30, 1]
    assert chunk_ids(found).index(2) < 9
    fourth = next(each for each in found.candidates if each.chunk_id == 40)
    assert fourth.scores["rerank"] == 1.0
    assert fourth.ranks["rerank"] > fourth.ranks["fused"] / 2 > 3


def test_an_equal_question_of_one_knowledge_base_leaves_room_for_another():
    questions = dict.fromkeys((10, 11, 12, 20), (ASKED,))
    passages = FakePassages(questions=questions)
    first = scope(1, FakeChannel("bm25", 1, {number: 50.0 - number for number in (1, 10, 11, 12)}))
    second = scope(2, FakeChannel("bm25", 2, {2: 9.0, 20: 8.0}))
    reranker = FixedReranker({1: 0.9, 2: 0.8, 10: 0.1, 11: 0.1, 12: 0.1, 20: 0.1}, ScoreScale.OVERLAP)
    found = run(pipeline(first, second, passages=passages, rerankers=[reranker]), ASKED, top_k=10)
    assert set(chunk_ids(found)[:3]) == {10, 11, 20}
    assert chunk_ids(found)[3:] == [1, 2, 12]


@pytest.mark.parametrize("scale", [None, ScoreScale.OVERLAP])
def test_a_result_says_which_question_it_was_found_for(scale):
    found = run(asking(FakeChannel("bm25", 1, MANY), scale=scale), ASKED)
    assert [hit.equal_question for hit in found.hits][:2] == [ASKED, ""]


def test_without_a_reranker_at_most_two_are_first_and_all_have_a_cosine_of_1():
    questions = dict.fromkeys((2, 3, 4, 40), (ASKED,))
    vectors = FakeChannel("vector", 1, {1: 0.9, 2: 0.8, 5: 0.7, 3: 0.6, 6: 0.5, 4: 0.4})
    asked = FakeChannel("question", 1, {40: 0.99})
    found = run(asking(vectors, asked, questions=questions), ASKED, use_rerank=False, score_threshold=None)
    assert len({2, 3, 4, 40} & set(chunk_ids(found)[:2])) == 2
    assert {hit.score for hit in found.hits if hit.equal_question} == {1.0}
    assert [each for each in chunk_ids(found)[2:] if each in (1, 5, 6)] == [1, 5, 6]
    assert chunk_ids(found)[2] == 1


def test_a_paraphrase_that_vectors_find_first_is_a_near_miss_only_where_they_compare_meaning():
    def near(space):
        channels = FakeChannel("vector", 1, {7: 0.9, 8: 0.8}), FakeChannel("bm25", 1, {1: 5.0})
        pipe = pipeline(
            scope(1, *channels, space=space), passages=FakePassages(), rerankers=[FixedReranker({}, ScoreScale.OVERLAP)]
        )
        return {hit.passage.chunk_id for hit in run(pipe, score_threshold=None).near_misses}

    assert near("a-model") >= {7, 8}
    assert not near(HASHING_MODEL_ID)
