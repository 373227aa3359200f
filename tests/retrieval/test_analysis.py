import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from retrieval.analysis import (
    MOST_NAMES_A_CONCEPT,
    MOST_VARIANTS_A_KB,
    Analyser,
    language_of,
    normalise_query,
)
from retrieval.config import RetrievalConfig
from retrieval.errors import Degradation, DegradationCode, GenerationFailed
from retrieval.types import ConceptMention, Rewritten, Turn

CONFIG = RetrievalConfig()
ALWAYS = RetrievalConfig(rewrite="always")
HISTORY = (Turn("user", "RRF是什么？"), Turn("assistant", "一种融合方法。"))
SOON = time.monotonic() + 3_600

any_text = st.text(st.characters(categories=["L", "M", "N", "P", "S", "Z", "Cc", "Cf", "Cs"]))


@dataclass
class Words:
    """A tokenizer that cuts at white space and counts its calls."""

    id: str = "words"
    calls: list[str] = field(default_factory=list)

    def __call__(self, text):
        self.calls.append(text)
        return text.casefold().split()

    def simplify(self, text):
        return text


@dataclass
class Concepts:
    """Concepts whose mention stands in the text as it is written."""

    known: tuple[ConceptMention, ...] = ()
    calls: list[tuple[tuple[int, ...], str]] = field(default_factory=list)

    def mentions(self, kb_ids, text):
        self.calls.append((tuple(kb_ids), text))
        return tuple(each for each in self.known if each.kb_id in kb_ids and each.mention in text)


@dataclass
class Model:
    """A rewriter with one answer."""

    answer: Rewritten | GenerationFailed
    calls: list[tuple[str, tuple[Turn, ...], int, float]] = field(default_factory=list)

    def rewrite(self, text, history, most, deadline):
        self.calls.append((text, tuple(history), most, deadline))
        if isinstance(self.answer, GenerationFailed):
            raise self.answer
        return self.answer


def analyse(query, *, config=CONFIG, history=(), **parts):
    analyser = Analyser(**({"tokenizers": {1: Words()}} | parts))
    analysis, degradations, rewritten = analyser.analyse(query, history, config, SOON)
    return SimpleNamespace(analysis=analysis, degradations=degradations, rewritten=rewritten)


def concept(mention, *names, kb_id=1, concept_id=1):
    return ConceptMention(concept_id, kb_id, mention, mention, names)


# Normalisation


@pytest.mark.parametrize(
    "query",
    [
        "谁成立了独立的索齿兽目？",
        "《战国无双3》是由哪两个公司合作开发的？",
        "What IS ﬁne, Dr. O’Neil？",
        "\uff21股 \uff11\uff10\uff10\uff05",
    ],
)
def test_a_query_as_people_type_it_stays_byte_for_byte(query):
    assert normalise_query(query) == query


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("  向量\u3000\t 检索 \n", "向量 检索"),
        ("向\u200b量\ufeff检\u00ad索\u2060", "向量检索"),
        ("\u202eabc\u202c", "abc"),
        ("null\x00 byte\x1b\x7f", "null byte"),
        ("half \ud83d pair", "half pair"),
        ("a\x85b\u2028c", "a b c"),
        ("\u200b \x00", ""),
        ("", ""),
    ],
)
def test_what_nobody_sees_is_dropped_and_white_space_collapsed(query, text):
    assert normalise_query(query) == text


@given(any_text)
def test_normalising_twice_changes_nothing_more(query):
    once = normalise_query(query)

    assert normalise_query(once) == once


@given(any_text)
def test_normalising_keeps_every_letter_digit_and_mark(query):
    def visible(text):
        return [character for character in text if character.isprintable() and not character.isspace()]

    assert visible(normalise_query(query)) == visible(query)


# Language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("向量数据库是什么", "zh"),
        ("Python 怎么处理异常", "zh"),
        ("scikit-learn安装", "zh"),
        ("What does 知识库 mean in plain English", "en"),
        ("What is BM25?", "en"),
        ("。！？《》", "en"),
        ("404", "en"),
        ("", "en"),
    ],
)
def test_the_language_is_that_of_most_of_the_words(text, language):
    assert language_of(text) == language


# Tokens


def test_knowledge_bases_with_one_tokenizer_share_one_cut():
    first, second = Words(), Words()

    analysis = analyse("How big", tokenizers={1: first, 2: second}).analysis

    assert analysis.tokens_by_kb == {1: ("how", "big"), 2: ("how", "big")}
    assert (first.calls, second.calls) == (["How big"], [])


def test_knowledge_bases_with_different_tokenizers_have_their_own_tokens():
    other = Words(id="other")

    analyse("How big", tokenizers={1: Words(), 2: other})

    assert other.calls == ["How big"]


def test_a_blank_query_has_an_analysis_and_asks_nobody():
    model, concepts = Model(Rewritten("text")), Concepts()

    analysed = analyse(" \u200b ", config=ALWAYS, rewriter=model, concepts=concepts, concept_kb_ids=(1,))

    assert (analysed.analysis.text, analysed.analysis.intent, analysed.analysis.tokens(1)) == ("", "", ())
    assert not model.calls
    assert not concepts.calls
    assert not analysed.rewritten


def test_keywords_and_intent_come_with_the_query():
    analysis = analyse("What is the ERR_404 code?").analysis

    assert analysis.keywords == ("ERR_404", "code")
    assert analysis.intent == "the ERR_404 code"


# Rewriting


def test_a_rewritten_query_replaces_the_query():
    model = Model(Rewritten("RRF\u200b 的  缺点", ("RRF 的参数",)))

    analysed = analyse(" 它的缺点 ", history=HISTORY, rewriter=model)

    assert analysed.rewritten
    assert analysed.degradations == ()
    assert [query.text for query in analysed.analysis.queries] == ["RRF 的 缺点", "RRF 的参数"]
    assert model.calls == [("它的缺点", HISTORY, CONFIG.max_retrieval_queries, SOON)]


@pytest.mark.parametrize(
    ("rewrite", "history", "is_asked"),
    [
        ("off", HISTORY, False),
        ("conversation", (), False),
        ("conversation", HISTORY, True),
        ("always", (), True),
    ],
)
def test_the_configuration_says_when_a_query_is_rewritten(rewrite, history, is_asked):
    model = Model(Rewritten("text"))

    analysed = analyse("query", config=RetrievalConfig(rewrite=rewrite), history=history, rewriter=model)

    assert (bool(model.calls), analysed.rewritten) == (is_asked, is_asked)


def test_a_query_that_cannot_be_rewritten_is_searched_for_as_it_is():
    model = Model(GenerationFailed(DegradationCode.LLM_TIMEOUT, "too late"))

    analysed = analyse("query", config=ALWAYS, rewriter=model)

    assert analysed.analysis.text == "query"
    assert analysed.degradations == (Degradation("analysis", DegradationCode.LLM_TIMEOUT, "too late"),)
    assert not analysed.rewritten


def test_a_rewrite_that_is_always_wanted_says_that_there_is_no_model():
    (degradation,) = analyse("query", config=ALWAYS).degradations

    assert (degradation.stage, degradation.code) == ("analysis", DegradationCode.LLM_NOT_CONFIGURED)


def test_a_conversation_without_a_language_model_is_no_degradation():
    assert analyse("query", history=HISTORY).degradations == ()


def test_a_blank_rewrite_leaves_the_query():
    assert analyse("query", config=ALWAYS, rewriter=Model(Rewritten(" \u200b"))).analysis.text == "query"


def test_sub_queries_that_are_blank_or_repeated_are_dropped_before_they_are_counted():
    model = Model(Rewritten("a", (" ", "a", "b", " b", "c", "d")))

    analysis = analyse("query", config=ALWAYS, rewriter=model).analysis

    assert [query.text for query in analysis.queries] == ["a", "b", "c"]


# Sub-queries


def test_questions_about_different_things_become_sub_queries():
    analysis = analyse("向量数据库是什么？\n重排序怎么做？").analysis

    assert analysis.text == "向量数据库是什么？ 重排序怎么做？"
    assert [query.text for query in analysis.sub_queries] == ["向量数据库是什么？", "重排序怎么做？"]


def test_a_sub_query_is_analysed_like_a_query():
    (first, _) = analyse("What is BM25? How does HNSW work?").analysis.sub_queries

    assert first.tokens(1) == ("what", "is", "bm25?")
    assert (first.keywords, first.intent, first.language) == (("BM25",), "BM25", "en")
    assert first.sub_queries == ()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_there_are_at_most_so_many_queries_in_all(most):
    config = RetrievalConfig(max_retrieval_queries=most)

    analysis = analyse("向量数据库是什么？重排序怎么做？词频怎么算？", config=config).analysis

    assert len(analysis.queries) == most


def test_a_rewritten_query_is_not_split():
    model = Model(Rewritten("向量数据库是什么？重排序怎么做？"))

    assert analyse("query", config=ALWAYS, rewriter=model).analysis.sub_queries == ()


# Concepts


def test_concepts_of_all_queries_are_looked_up_once():
    concepts = Concepts((concept("BM25"), concept("HNSW", concept_id=2)))

    analysed = analyse("What is BM25? How does HNSW work?", concepts=concepts, concept_kb_ids=(1, 3))

    assert [kb_ids for kb_ids, _ in concepts.calls] == [(1, 3)]
    names = [[each.name for each in query.concepts] for query in analysed.analysis.queries]
    assert names == [["BM25", "HNSW"], ["BM25"], ["HNSW"]]


def test_other_names_of_a_concept_are_searched_for_in_its_knowledge_base_only():
    concepts = Concepts((concept("k8s", "Kubernetes", "kube cluster", kb_id=2),))

    analysis = analyse(
        "restart k8s now", tokenizers={1: Words(), 2: Words()}, concepts=concepts, concept_kb_ids=(2,)
    ).analysis

    assert analysis.variants_by_kb == {
        2: (("restart", "kubernetes", "now"), ("restart", "kube", "cluster", "now")),
    }
    assert analysis.search_tokens(2) == ("restart", "k8s", "now", "kubernetes", "kube", "cluster")
    assert analysis.search_tokens(1) == ("restart", "k8s", "now")


def test_a_knowledge_base_without_a_tokenizer_has_no_variants():
    concepts = Concepts((concept("k8s", "Kubernetes", kb_id=2),))

    assert analyse("k8s", concepts=concepts, concept_kb_ids=(2,)).analysis.variants_by_kb == {}


@pytest.mark.parametrize(
    ("query", "variant"),
    [
        ("AI is not MAIN", ("intelligence", "is", "not", "main")),
        ("an ai model", ("an", "intelligence", "model")),
        ("\uff21\uff29", ("intelligence",)),
    ],
)
def test_a_mention_is_replaced_in_any_spelling_but_not_within_a_word(query, variant):
    class Found(Concepts):
        def mentions(self, kb_ids, text):
            return self.known

    analysis = analyse(query, concepts=Found((concept("AI", "intelligence"),)), concept_kb_ids=(1,)).analysis

    assert analysis.variants_by_kb == {1: (variant,)}


def test_a_name_may_hold_what_a_pattern_could_read():
    concepts = Concepts((concept("C++", r"C\1 (\g<0>)"),))

    assert analyse("C++", concepts=concepts, concept_kb_ids=(1,)).analysis.variants_by_kb == {
        1: ((r"c\1", r"(\g<0>)"),)
    }


@given(st.lists(st.integers(0, 12), max_size=12))
def test_variants_are_bounded_and_every_concept_has_its_first(name_counts):
    known = tuple(
        concept(f"c{at}", *(f"c{at}-{name}" for name in range(count)), concept_id=at)
        for at, count in enumerate(name_counts)
    )
    query = " ".join(each.mention for each in known) or "none"

    analysis = analyse(query, concepts=Concepts(known), concept_kb_ids=(1,)).analysis

    variants = analysis.variants_by_kb.get(1, ())
    wanted = sum(min(count, MOST_NAMES_A_CONCEPT) for count in name_counts)
    assert len(variants) == min(wanted, MOST_VARIANTS_A_KB)
    with_names = [each for each in known if each.names][:MOST_VARIANTS_A_KB]
    assert {token for variant in variants for token in variant} >= {each.names[0] for each in with_names}


def test_a_failure_of_the_concepts_is_the_callers():
    class Broken:
        def mentions(self, kb_ids, text):
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        analyse("query", concepts=Broken(), concept_kb_ids=(1,))


@given(any_text)
def test_any_text_can_be_analysed(query):
    analysis = analyse(query).analysis

    assert bool(analysis.intent) == bool(analysis.text)
    assert len(analysis.queries) <= CONFIG.max_retrieval_queries
