import numpy as np
import pytest

from retrieval.bm25 import OkapiIndex
from retrieval.character_counts import CharacterCounter, query_codes
from retrieval.evidence import (
    MOST_CHARACTERS,
    MOST_TERMS,
    MOST_TOKENIZERS,
    CharacterEvidence,
    character_rankings,
    function_terms,
    wordings,
)
from retrieval.fusion import fuse
from retrieval.postings import count_postings, hash_terms
from retrieval.rerankers.overlap import OverlapReranker
from retrieval.tokenize import JiebaTokenizer
from retrieval.types import Analysis, Passage, Ranking, RerankJob, Trace, searchable_text
from tests.retrieval.pipelines import scope
from tests.retrieval.rerankers.jobs import candidate, soon

CUT = JiebaTokenizer()
TEXTS = {1: "保修期是三年", 2: "维修需要发票", 3: "智能温控器 X7 的保修", 4: "warranty of X7"}


def analysed(text, *, intent="", variants=(), sub_queries=()):
    cut = tuple(tuple(CUT(each)) for each in variants)
    return Analysis(text, {1: tuple(CUT(text))}, {1: cut}, intent=intent, sub_queries=sub_queries)


def indexed(texts):
    counter = CharacterCounter()
    rows = []
    for chunk_id, text in texts.items():
        counter.add(text)
        postings = count_postings(CUT(text))
        rows.append((chunk_id, postings.terms_bytes, postings.frequencies_bytes, postings.length))
    return OkapiIndex.build(rows), counter.counts()


INDEX, COUNTS = indexed(TEXTS)
PASSAGES = {key: Passage(key, key, 1, "", "", None, text) for key, text in TEXTS.items()}


def keywords(query, *found):
    terms = hash_terms(query.search_tokens(1))
    scores = INDEX.score(terms, np.array(found, dtype=np.int64))
    return Ranking(
        "bm25", 1, np.array(found), scores, lexicon=INDEX, characters=COUNTS, score=lambda ids: INDEX.score(terms, ids)
    )


def vectors(*found):
    return Ranking("vector", 1, np.array(found), np.linspace(0.9, 0.5, len(found)))


SCOPES = (scope(1, tokenizer=CUT),)


def test_every_candidate_of_any_channel_is_scored_by_words_pairs_and_characters():
    query = analysed("保修几年")
    (ranking,), evidence = character_rankings(SCOPES, [keywords(query, 1), vectors(2, 3, 4)], PASSAGES, query, Trace())

    ids = np.array([1, 2, 3, 4])
    codes = query_codes("保修几年", tuple(CUT("保修几年")))
    words = INDEX.score(hash_terms(CUT("保修几年")), ids)
    expected = words + COUNTS.saturation(codes, list(TEXTS.values())) @ COUNTS.most(codes)
    found = dict(zip(ranking.chunk_ids.tolist(), ranking.scores.tolist(), strict=True))
    assert (ranking.channel, ranking.kb_id) == ("characters", 1)
    assert found == pytest.approx({key: score for key, score in zip(ids.tolist(), expected, strict=True) if score})
    assert ranking.scores.tolist() == sorted(ranking.scores, reverse=True)
    assert 4 not in found
    assert ranking.score(ids).tolist() == pytest.approx(expected.tolist())
    some = np.array([4, 1])  # as a reranker's candidates, in their own order
    assert evidence[1].saturation(some).tolist() == COUNTS.saturation(codes, [TEXTS[4], TEXTS[1]]).tolist()


@pytest.mark.parametrize("text", ["warranty X7", "404", "보증 기간"])
def test_queries_in_other_scripts_are_scored_by_words_only(text):
    query = analysed(text)
    assert character_rankings(SCOPES, [keywords(query, 3, 4), vectors(1)], PASSAGES, query, Trace()) == ([], {})


def test_the_latin_words_of_a_mixed_query_count_once():
    mixed, words = analysed("X7 保修"), analysed("X7")
    (ranking,), _evidence = character_rankings(SCOPES, [keywords(mixed, 3, 4)], PASSAGES, mixed, Trace())
    of_latin = INDEX.score(hash_terms(words.search_tokens(1)), np.array([4]))
    assert ranking.score(np.array([4])).tolist() == pytest.approx(of_latin.tolist())


def test_without_an_index_that_has_counted_characters_words_stand_alone():
    query = analysed("保修几年")
    own = keywords(query, 1, 3)
    assert character_rankings(SCOPES, [Ranking("bm25", 1, own.chunk_ids, own.scores)], PASSAGES, query, Trace()) == (
        [],
        {},
    )


@pytest.mark.parametrize("fusion", ["rrf", "weighted"])
def test_they_have_the_weight_of_keywords_in_the_fusion_and_words_none(fusion):
    query = analysed("保修几年")
    rankings = [keywords(query, 3, 1), vectors(2)]
    characters, _evidence = character_rankings(SCOPES, rankings, PASSAGES, query, Trace())
    own = scope(1, tokenizer=CUT, fusion=fusion)
    with_both = fuse([own], [*rankings, *characters], PASSAGES, None)
    as_keywords = [Ranking("bm25", 1, each.chunk_ids, each.scores, score=each.score) for each in characters]
    alone = fuse([own], [*as_keywords, vectors(2)], PASSAGES, None)
    assert [(c.chunk_id, c.scores["fused"], c.agreement) for c in with_both] == pytest.approx(
        [(c.chunk_id, c.scores["fused"], c.agreement) for c in alone]
    )
    assert {c.chunk_id for c in with_both if "bm25" in c.ranks} == {1, 3}  # still shown


def test_what_only_asks_does_not_tell():
    (wording,) = wordings(analysed("请问保修期是多久？", intent="保修期是"), 1, CUT)
    assert wording.terms == ("保修期",)  # not 保修 within it, no function words
    assert set(wording.codes.tolist()) == set(query_codes("保修期是", ("保修期",)).tolist())


@pytest.mark.parametrize(("text", "both"), [("кот скотный", {"кот", "скотный"}), ("öl ölfarbe", {"öl", "ölfarb"})])
def test_words_of_alphabets_that_stand_within_others_count(text, both):
    (wording,) = wordings(analysed(text), 1, CUT)
    assert both <= set(wording.terms)


def test_of_a_long_query_the_first_words_and_characters_count():
    letters = (chr(0x4E00 + 7 * number) for number in range(2_000))
    text = "".join(letter for letter in letters if letter not in function_terms(CUT))
    query = Analysis(text, {1: tuple(text)}, intent=text)
    (wording,) = wordings(query, 1, CUT)
    assert wording.terms == tuple(text)[:MOST_TERMS]
    assert wording.codes.size == 2 * MOST_CHARACTERS - 1


def test_a_query_of_function_words_only_counts_them():
    (wording,) = wordings(analysed("怎么办"), 1, CUT)
    assert wording.terms


def test_sub_queries_and_other_names_are_wordings_of_their_own():
    query = analysed("保修", variants=["质保"], sub_queries=(analysed("发票"),))
    assert [each.terms for each in wordings(query, 1, CUT)] == [("保修",), ("质保",), ("发票",)]


def evidence_of(query, counts, texts):
    chunk_ids = np.array(sorted(texts), dtype=np.int64)
    return CharacterEvidence.of(counts, wordings(query, 1, CUT), chunk_ids, [texts[key] for key in chunk_ids.tolist()])


def relevance(query, texts, chunk_id=1):
    index, counts = indexed(texts)
    passage = Passage(chunk_id, 1, 1, "", "", None, texts[chunk_id])
    held = evidence_of(query, counts, {chunk_id: texts[chunk_id]})
    job = RerankJob(query, (candidate(chunk_id)._replace(passage=passage),), {1: index}, {1: held})
    return OverlapReranker({1: CUT}).scores(job, soon())[0]


def test_relevance_does_not_depend_on_the_other_candidates():
    query = analysed("保修期几年")
    candidates = tuple(candidate(key)._replace(passage=PASSAGES[key]) for key in TEXTS)
    job = RerankJob(query, candidates, {1: INDEX}, {1: evidence_of(query, COUNTS, TEXTS)})
    together = OverlapReranker({1: CUT}).scores(job, soon()).tolist()
    assert together == pytest.approx([relevance(query, TEXTS, key) for key in TEXTS])
    assert together[0] == max(together)


def test_other_chunks_move_it_through_the_statistics_only_and_by_a_bounded_amount():
    """One chunk of 60 moves a rarity by log 3 at most, that of a term that no chunk held, and the mean length by a sixtieth."""
    query = analysed("保修期几年")
    texts = {number: f"第{number}条 {TEXTS[number % 4 + 1]}" for number in range(2, 62)} | {1: TEXTS[1]}
    before = relevance(query, texts)
    added = relevance(query, {**texts, 99: "保修期几年" * 4})
    removed = relevance(query, {key: text for key, text in texts.items() if key != 7})
    edited = relevance(query, {**texts, 7: "完全不同的内容"})
    unrelated = {**texts, 7: texts[7][::-1]}  # the same statistics but for the pairs, none of which is asked for
    assert max(abs(each - before) for each in (added, removed, edited)) < 0.05
    assert abs(relevance(query, unrelated) - before) < 0.005
    assert added != before


def test_title_and_headings_are_characters_of_the_passage_too():
    query = analysed("保修期")
    passage = PASSAGES[2]._replace(title="保修期", heading_path=("说明",))
    job = RerankJob(query, (candidate(2)._replace(passage=passage),), {}, {})
    assert searchable_text("保修期", ("说明",), TEXTS[2]) == passage.searchable
    assert OverlapReranker({1: CUT}).scores(job, soon())[0] > 0


def test_the_function_words_of_so_many_tokenizers_are_kept_and_no_more():
    """A trial of a word makes a tokenizer of its own, which nobody uses again."""
    made = []

    class Counting:
        def __init__(self, number):
            self.id = f"counting-{number}"

        def __call__(self, text):
            made.append(self.id)
            return [text]

    for number in range(MOST_TOKENIZERS + 1):
        assert "the" in function_terms(Counting(number))
        function_terms(Counting(0))

    assert made.count("counting-0") == made.count("counting-1")  # made once: it is the one that was used last
    function_terms(Counting(1))
    assert made.count("counting-1") == 2 * made.count("counting-0")
