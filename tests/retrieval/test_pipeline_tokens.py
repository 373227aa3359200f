"""Every knowledge base of a search brings its own tokenizer."""

import pytest

from retrieval.rerankers.overlap import OverlapReranker
from tests.fakes import FakeChannel, FakePassages, LetterTokenizer, TableLexicon, WordTokenizer
from tests.retrieval.pipelines import pipeline, run as run_pipeline, scope

WORDS, LETTERS = WordTokenizer(), LetterTokenizer()


class CountingTokenizer(WordTokenizer):
    def __init__(self):
        self.texts = []

    def __call__(self, text):
        self.texts.append(text)
        return super().__call__(text)


def run(query, *searched, texts=None, reranker=None):
    """Searches knowledge bases, each given as (channel, tokenizer)."""
    scopes = [scope(channel.kb_id, channel, tokenizer=tokenizer) for channel, tokenizer in searched]
    rerankers = [reranker] if reranker else []
    return run_pipeline(pipeline(*scopes, passages=FakePassages(texts), rerankers=rerankers), query)


def matched(result):
    return {hit.passage.chunk_id: hit.matched_terms for hit in result.hits}


def test_each_knowledge_base_is_searched_with_its_own_tokens():
    one, two = FakeChannel("bm25", 1, {10: 1.0}), FakeChannel("bm25", 2, {20: 1.0})

    result = run(" ab c ", (one, WORDS), (two, LETTERS))

    assert (one.tokens, two.tokens) == ([("ab", "c")], [("a", "b", "c")])
    assert result.analysis.all_terms == ("ab", "c", "a", "b")


def test_knowledge_bases_with_the_same_tokenizer_have_the_query_cut_once():
    tokenizer = CountingTokenizer()

    result = run("ab c", *((FakeChannel("bm25", kb_id, {kb_id: 1.0}), tokenizer) for kb_id in (1, 2)))

    assert tokenizer.texts == ["ab c"]
    assert result.analysis.tokens(1) == result.analysis.tokens(2) == ("ab", "c")


def test_a_knowledge_base_without_tokenizer_leaves_the_other_its_tokens():
    one, two = FakeChannel("vector", 1, {10: 0.5}), FakeChannel("bm25", 2, {20: 1.0})

    run("ab", (one, None), (two, WORDS))

    assert (one.tokens, two.tokens) == ([()], [("ab",)])


def test_matched_terms_are_those_of_the_chunks_own_knowledge_base():
    one = FakeChannel("bm25", 1, {10: 1.0}, lexicon=TableLexicon({}, {10: ["ab"]}))
    two = FakeChannel("bm25", 2, {20: 1.0, 21: 0.5}, lexicon=TableLexicon({}, {20: ["a", "c"], 21: []}))

    assert matched(run("ab c c", (one, WORDS), (two, LETTERS))) == {10: ("ab",), 20: ("a", "c"), 21: ()}


def test_a_chunk_has_no_matched_terms_where_no_channel_knows_any():
    vector, bm25 = (
        FakeChannel("vector", 1, {10: 1.0}),
        FakeChannel("bm25", 2, {20: 1.0}, lexicon=TableLexicon({}, {20: ["a"]})),
    )

    assert matched(run("a", (vector, WORDS), (bm25, WORDS))) == {10: (), 20: ("a",)}


def test_coverage_is_measured_in_the_terms_of_the_chunks_own_knowledge_base():
    one = FakeChannel("bm25", 1, {10: 1.0}, lexicon=TableLexicon({"ab": 1.0, "c": 3.0}, {10: ["ab"]}))
    two = FakeChannel("bm25", 2, {20: 1.0}, lexicon=TableLexicon({"a": 1.0, "b": 1.0, "c": 1.0}, {20: ["a", "b"]}))
    three = FakeChannel("bm25", 3, {30: 1.0})
    tokenizers = {1: WORDS, 2: LETTERS, 3: LETTERS}

    result = run(
        "ab c",
        *((channel, tokenizers[channel.kb_id]) for channel in (one, two, three)),
        texts={30: "cab"},
        reranker=OverlapReranker(tokenizers),
    )

    scores = {hit.passage.chunk_id: hit.score for hit in result.hits}
    assert scores == pytest.approx({10: 1 / 4, 20: 2 / 3, 30: 1.0})
