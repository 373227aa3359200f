"""Each remedy is tried before it is offered: what it would change is said, and nothing is written."""

import dataclasses
from collections import Counter

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.translation import override

from kb.index.bm25 import BM25Store
from kb.ingest.services.chunks import chunk_update
from kb.models import (
    BM25Index,
    Chunk,
    ChunkChange,
    ChunkEmbedding,
    ChunkPostings,
    KnowledgeBaseVersion,
    RetrievalProfile,
    SearchLog,
)
from kb.providers import embedding_models as providers
from kb.quality.why_not.services import trials
from kb.quality.why_not.services.remedies import remedies
from kb.quality.why_not.services.walk import why_not_found
from retrieval.errors import Degradation, DegradationCode, GenerationFailed
from retrieval.pipeline import Pipeline
from retrieval.questions import QuestionIndex
from retrieval.types import Rewritten
from tests.factories import make_document, make_kb, make_member, principal
from tests.kb.quality.why_not.services.asking import ask, verdict

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_english")]

NARROW = {"vector_top_k": 1, "bm25_top_k": 1}


@pytest.fixture
def in_english():
    with override("en"):
        yield


def effects(why):
    return {remedy.id: remedy.effect for remedy in remedies(why)}


# -- What is offered ---------------------------------------------------------------------------------------------------
def test_what_makes_it_a_result_stands_before_what_only_brings_it_nearer(chunk):
    why = ask(chunk, overrides={**NARROW, "rerank_candidates": 1, "top_k": 1})

    offered = remedies(why)

    assert offered[0].id == "add_question"
    assert [remedy.effect.becomes_result for remedy in offered] == sorted(
        (remedy.effect.becomes_result for remedy in offered), reverse=True
    )


def test_the_sentence_names_the_place_among_the_results(chunk):
    effect = effects(ask(chunk, overrides={"top_k": 2}))["draft:top_k"]

    assert (effect.becomes_result, effect.rank_before, effect.rank_after) == (True, 6, 6)
    assert effect.sentence == "It would be result 6 of 6."


def test_what_still_loses_it_is_named_with_the_figures(chunk):
    effect = effects(ask(chunk, overrides={**NARROW, "rerank_candidates": 1, "top_k": 1}))["draft:vector_top_k"]

    assert (effect.becomes_result, str(effect.stage), effect.rank_before, effect.rank_after) == (
        False, "fusion", None, 6,
    )  # fmt: skip
    assert effect.sentence == (
        "It would become a candidate, at place 6. It would still be lost at the stage “Fusion”: "
        "Its fused rank is 6, and the first 1 go on."
    )


def test_two_cuts_in_a_row_are_one_remedy(chunk):
    offered = effects(ask(chunk, overrides={"vector_top_k": 2, "bm25_top_k": 2}))

    assert offered["draft:vector_top_k+top_k"].sentence == "It would be result 6 of 6."
    assert "draft:vector_top_k" not in offered


# -- What is not -------------------------------------------------------------------------------------------------------
def test_a_question_is_not_offered_where_questions_do_not_count(chunk):
    assert "add_question" in effects(ask(chunk, overrides=NARROW))
    assert "add_question" not in effects(ask(chunk, overrides={**NARROW, "question_weight": 0.0}))


def test_a_chunk_that_would_not_be_a_candidate_is_not_to_be_switched_on(chunk):
    chunk.enabled = False
    chunk.save()

    assert effects(ask(chunk, overrides={"top_k": 10}))["enable"].becomes_result
    assert "enable" not in effects(ask(chunk, overrides=NARROW))


def test_a_chunk_that_would_not_be_a_candidate_is_not_to_be_indexed(chunk):
    ChunkPostings.objects.filter(chunk=chunk).delete()
    ChunkEmbedding.objects.filter(chunk=chunk).delete()

    assert "index_chunk" in effects(ask(chunk, overrides={"top_k": 10}))
    assert "index_chunk" not in effects(ask(chunk, overrides=NARROW))


def test_another_knowledge_base_is_not_to_be_searched_where_that_finds_nothing_more(chunk):
    other = make_kb(owner=chunk.knowledge_base.owner)
    make_document(other, "保修期")

    assert "change_request:knowledge_base" not in effects(ask(chunk, ids=[other.pk], overrides=NARROW))


def test_a_word_is_not_offered_where_the_chunk_is_lost_as_before(kb):
    make_document(kb, "带薪年假", "带薪年假：五天")
    document = make_document(kb, "员工每年享有带薪年假期五天")
    chunk = document.chunks.select_related("knowledge_base__owner").get()

    why = ask(chunk, "带薪年假", overrides={"top_k": 1})

    assert verdict(why)[0] == "top_k"
    assert why.terms.words
    assert "add_word" not in effects(why)


# -- What is promised holds --------------------------------------------------------------------------------------------
def test_a_second_question_counts_with_the_best(chunk):
    chunk_update(chunk, text=chunk.text, enabled=True, questions=["谁来安装"])
    chunk.refresh_from_db()
    for number in range(3):
        other = make_document(chunk.knowledge_base, f"保修期 {number}").chunks.get()
        chunk_update(other, text=other.text, enabled=True, questions=[f"质保多久啊 {number}"])
    why = ask(chunk, "质保多久", overrides=NARROW)
    promised = effects(why)["add_question"]

    chunk_update(chunk, text=chunk.text, enabled=True, questions=["谁来安装", "质保多久"])

    after = why_not_found(why.principal, why.request, chunk.pk)
    assert (after.rank, True) == (promised.rank_after, promised.becomes_result)


@pytest.mark.parametrize("texts", [("保修期",), ()])
def test_a_chunk_among_few_is_promised_what_n_grams_find_too(kb, texts):
    make_document(kb, "保修条款", *texts)
    chunk = make_document(kb, "保修期内免费维修").chunks.select_related("knowledge_base__owner").get()
    chunk.enabled = False
    chunk.save()
    why = ask(chunk, "免费维修保修")
    promised = effects(why)["enable"]

    chunk_update(chunk, text=chunk.text, enabled=True)

    after = why_not_found(why.principal, why.request, chunk.pk)
    assert (after.verdict.stage, after.rank or after.place) == (promised.stage, promised.rank_after)
    assert ("lexical" in after.candidate.ranks) == (not texts)


# -- What a trial leaves alone -----------------------------------------------------------------------------------------
def stored():
    models = (Chunk, ChunkPostings, ChunkEmbedding, ChunkChange, KnowledgeBaseVersion, RetrievalProfile, SearchLog)
    rows = [list(model.objects.order_by("pk").values()) for model in (*models, BM25Index)]
    return rows, {name: (tier.stores, tier.nbytes) for name, tier in BM25Store().cache.stats().items()}


READING = ("SELECT", "WITH", "SET LOCAL", "SAVEPOINT", "RELEASE SAVEPOINT")


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_trial_writes_nothing_and_takes_no_lock(chunk, is_enabled):
    chunk.enabled = is_enabled
    chunk.save()
    why = ask(chunk, "质保多久 保修期", overrides={"score_threshold": 1.0, "top_k": 1})
    before = stored()

    with CaptureQueriesContext(connection) as queries:
        assert remedies(why)

    statements = [query["sql"].lstrip().upper() for query in queries]
    assert [each for each in statements if not each.startswith(READING)] == []
    assert not any(word in statement for statement in statements for word in ("FOR UPDATE", "FOR NO KEY", "NEXTVAL"))
    assert stored() == before


def test_what_there_was_no_time_for_is_offered_without_an_effect(chunk, monkeypatch):
    monkeypatch.setattr(trials, "MOST_TRIALS", 1)

    offered = effects(ask(chunk, overrides={"top_k": 2}))

    assert offered["draft:top_k"].becomes_result
    assert offered["add_question"] is None


def test_a_trial_changes_the_keyword_index_once_for_all_channels_that_search_it(chunk, monkeypatch):
    chunk_update(chunk, text=chunk.text, enabled=True, questions=["谁来安装"])
    chunk.refresh_from_db()
    for number in range(3):
        other = make_document(chunk.knowledge_base, f"保修期 {number}").chunks.get()
        chunk_update(other, text=other.text, enabled=True, questions=[f"质保多久啊 {number}"])
    why = ask(chunk, "质保多久", overrides=NARROW)
    counted = Counter()

    def counting(name, function):
        return lambda *given: counted.update([name]) or function(*given)

    monkeypatch.setattr(trials, "_with_index", counting("trials", trials._with_index))
    monkeypatch.setattr(QuestionIndex, "with_rows", counting("changed", QuestionIndex.with_rows))
    assert effects(why)["add_question"] is not None

    assert counted["changed"] == counted["trials"] > 0


def test_a_viewer_is_told_of_effects_too(chunk):
    why = ask(chunk, overrides=NARROW, who=principal(make_member(chunk.knowledge_base)))

    assert effects(why)["add_question"].becomes_result


def test_the_query_as_a_question_passes_a_cut_that_nothing_reaches(chunk):
    why = ask(chunk, "质保多久", overrides={"score_threshold": 1.0, "top_k": 1})
    promised = effects(why)["add_question"]
    assert (promised.becomes_result, promised.sentence) == (True, "It would be result 1 of 1.")

    chunk_update(chunk, text=chunk.text, enabled=True, questions=["质保多久"])

    assert why_not_found(why.principal, why.request, chunk.pk).rank == 1


def test_no_trial_may_take_longer_than_is_left_for_all(chunk, monkeypatch):
    why = ask(chunk, overrides={**NARROW, "rerank_candidates": 1, "top_k": 1}, latency_budget_ms=60_000)
    budgets, run = [], Pipeline.run
    monkeypatch.setattr(
        Pipeline,
        "run",
        lambda *args, latency_budget, **given: (
            budgets.append(latency_budget) or run(*args, latency_budget=latency_budget, **given)
        ),
    )

    remedies(why)

    assert len(budgets) > 1
    assert sorted(budgets, reverse=True) == budgets
    assert budgets[0] <= trials.TRIAL_SECONDS


def test_a_trial_that_had_too_little_time_says_nothing(chunk, monkeypatch):
    why = ask(chunk, overrides={"top_k": 2})
    late = Degradation("vector", DegradationCode.CHANNEL_TIMEOUT, "late")
    run = Pipeline.run
    monkeypatch.setattr(
        Pipeline, "run", lambda *args, **given: dataclasses.replace(run(*args, **given), degraded=(late,), hits=())
    )

    assert effects(why)["draft:top_k"] is None


@pytest.mark.parametrize("fails", [False, True])
def test_the_language_model_is_not_asked_again_for_other_knowledge_bases(chunk, monkeypatch, fails):
    asked = []

    class Rewriter:
        def rewrite(self, text, *_args):
            asked.append(text)
            if fails:
                raise GenerationFailed(DegradationCode.LLM_UNAVAILABLE, "away")
            return Rewritten("保修期", ("电源",))

    monkeypatch.setattr(providers, "rewriter", Rewriter)
    other = make_kb(owner=chunk.knowledge_base.owner)
    make_document(other, "保修期")
    query = "保修期" if fails else "质保多久"

    effect = effects(ask(chunk, query, ids=[other.pk], overrides={"rewrite": "always", "top_k": 10}))

    assert effect["change_request:knowledge_base"].becomes_result
    assert len(asked) == 1
