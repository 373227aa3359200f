"""A case for each stage that can lose a chunk, through the pipeline that searches run."""

import pytest
from django.utils import translation
from pgvector import HalfVector

from kb.base.errors import NotVisible
from kb.index.filters import Filters
from kb.models import ChunkEmbedding, ChunkPostings, Document, KnowledgeBase, SearchLog
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.quality.why_not.services.asking import ask, bare_chunk, place, states, verdict

pytestmark = pytest.mark.django_db

SHALLOW = {"vector_top_k": 2, "bm25_top_k": 2}
LAST = 6


def lose(chunk, *rows):
    for model in rows:
        model.objects.filter(chunk=chunk).delete()


# -- Found -------------------------------------------------------------------------------------------------------------
def test_a_chunk_that_is_found_is_told_of_with_its_rank(chunk):
    why = ask(chunk, overrides={"top_k": 10})

    assert verdict(why) == ("found", None)
    assert why.rank == LAST
    assert "lost" not in states(why).values()


def test_the_search_is_not_logged(chunk):
    ask(chunk)

    assert not SearchLog.objects.exists()


# -- Before the search -------------------------------------------------------------------------------------------------
def test_a_chunk_of_another_knowledge_base_was_not_searched(chunk):
    other = make_kb(owner=chunk.knowledge_base.owner)
    make_document(other, "保修期")

    why = ask(chunk, ids=[other.pk])

    assert verdict(why) == ("knowledge_base", "not_searched")
    assert set(states(why).values()) == {"lost", "not_asked"}


def test_a_chunk_of_a_strangers_knowledge_base_does_not_exist(chunk):
    stranger = make_user()

    with pytest.raises(NotVisible, match=str(chunk.pk)):
        ask(chunk, who=principal(stranger), ids=[make_kb(owner=stranger).pk])


@pytest.mark.parametrize(
    ("status", "reason"),
    [("pending", "not_ready"), ("processing", "not_ready"), ("failed", "failed")],
)
def test_a_document_that_is_not_ready_has_lost_a_chunk_that_is_in_no_index(chunk, kb, status, reason):
    why = ask(bare_chunk(kb, status=status))

    assert verdict(why) == ("document", reason)


def test_a_document_that_failed_at_another_time_loses_no_chunk_that_is_indexed(chunk):
    Document.objects.filter(pk=chunk.document_id).update(status="failed")

    why = ask(chunk, overrides={"top_k": 10})

    assert verdict(why) == ("found", None)
    assert states(why)["document"] == "weakened"


def test_a_chunk_that_is_switched_off(chunk):
    chunk.enabled = False
    chunk.save()

    why = ask(chunk)

    assert verdict(why) == ("enabled", "disabled")
    assert states(why)["channels"] == "not_asked"


def test_a_chunk_without_terms_and_vector_is_in_no_index(chunk):
    lose(chunk, ChunkPostings, ChunkEmbedding)

    why = ask(chunk)

    assert verdict(why) == ("postings", "no_postings")
    assert states(why)["embedding"] == "lost"


def test_postings_of_another_tokenizer_do_not_count(chunk):
    ChunkPostings.objects.filter(chunk=chunk).update(tokenizer_id="older")

    assert verdict(ask(chunk, overrides=SHALLOW)) == ("postings", "no_postings")


def test_a_chunk_without_terms_that_its_vector_brings_is_only_weakened(chunk):
    lose(chunk, ChunkPostings)

    why = ask(chunk, overrides={"top_k": 10})

    assert verdict(why) == ("found", None)
    assert states(why)["postings"] == "weakened"


def test_a_chunk_without_a_vector_that_keywords_do_not_bring(chunk):
    lose(chunk, ChunkEmbedding)

    assert verdict(ask(chunk, overrides=SHALLOW)) == ("embedding", "no_vector")


def test_a_chunk_with_a_vector_of_another_model_only(chunk):
    ChunkEmbedding.objects.filter(chunk=chunk).update(model="other/model")

    why = ask(chunk, overrides=SHALLOW)

    assert verdict(why) == ("embedding", "other_model")
    assert why.verdict.figures["others"] == ["other/model"]


@pytest.mark.parametrize(
    ("filters", "failed"),
    [
        ({"tags": ["other"]}, ["tags"]),
        ({"source_types": ["book"]}, ["source_types"]),
        ({"document_ids": [1]}, ["document_ids"]),
        ({"created_before": "2020-01-01"}, ["created_before"]),
        (
            {"tags": ["manual"], "metadata": [{"key": "year", "op": "eq", "value": 1999}]},
            ["metadata.year"],
        ),
        ({"tags": ["other"], "source_types": ["web"], "concepts": ["nothing"]}, ["tags", "concepts"]),
    ],
)
def test_a_chunk_that_is_filtered_out_and_by_which_filters(chunk, filters, failed):
    why = ask(chunk, filters=Filters.parse(filters))

    assert verdict(why) == ("filters", "filtered")
    assert why.verdict.figures["failed"] == failed


def test_a_chunk_that_passes_the_filters_is_ranked_among_those_that_do(chunk):
    why = ask(chunk, filters=Filters.parse({"tags": ["manual"]}))

    assert verdict(why) == ("found", None)
    assert (place(why, "vector").rank, place(why, "vector").total) == (1, 1)
    assert place(why, "bm25").rank == 1


# -- The search --------------------------------------------------------------------------------------------------------
def test_a_chunk_too_far_down_in_every_channel_and_its_exact_ranks(chunk):
    why = ask(chunk, overrides=SHALLOW)

    assert verdict(why) == ("channels", "too_deep")
    ranks = {each.channel: (each.rank, each.depth, each.channel_rank) for each in why.places if each.rank}
    assert ranks == {"vector": (LAST, 2, None), "bm25": (LAST, 2, None)}


def test_a_chunk_that_has_nothing_in_common_with_the_query(chunk, kb):
    marks = make_document(kb, "！！！").chunks.select_related("knowledge_base__owner").get()
    ChunkEmbedding.objects.filter(chunk=marks).update(vector=HalfVector([0.0] * 1024))

    assert verdict(ask(marks)) == ("channels", "nothing_in_common")


def test_a_query_without_text_searches_nothing(chunk):
    assert verdict(ask(chunk, query="  ")) == ("channels", "blank_query")


def test_a_channel_that_could_not_answer_is_named(chunk):
    KnowledgeBase.objects.filter(pk=chunk.knowledge_base_id).update(embedding_model="BAAI/not-here")
    ChunkEmbedding.objects.filter(chunk=chunk).update(model="BAAI/not-here")

    why = ask(chunk, query="zebra", overrides={"lexical_fallback": False})

    assert verdict(why) == ("channels", "channel_failed")
    assert (place(why, "vector").state, place(why, "vector").error) == ("failed", "model_unavailable")


def test_a_double_that_another_chunk_stands_for(chunk, kb):
    first, double = (
        make_document(kb, "保修期为两年", source="same.txt").chunks.select_related("knowledge_base__owner").get()
        for _ in range(2)
    )

    why = ask(double, overrides={"top_k": 10})

    assert verdict(why) == ("dedupe", "double")
    assert why.verdict.figures["chunk_id"] == first.pk
    assert why.verdict.figures["rank"]


def test_a_chunk_beyond_the_candidates_that_are_reranked(chunk):
    why = ask(chunk, overrides={"rerank_candidates": 3, "top_k": 1})

    assert verdict(why) == ("fusion", "beyond_cut")
    assert (why.verdict.figures["rank"], why.verdict.figures["depth"]) == (LAST, 3)


def test_a_chunk_that_only_keywords_find_where_vectors_alone_count(chunk):
    why = ask(chunk, overrides={"use_rerank": False, "vector_top_k": 2})

    assert verdict(why) == ("fusion", "vector_only")


def test_a_chunk_below_the_gate(chunk):
    why = ask(chunk, overrides={"score_threshold": 0.99, "top_k": 10})

    assert verdict(why) == ("gate", "below")
    figures = why.verdict.figures
    assert figures["score"] < figures["threshold"] == 0.99
    assert figures["scale"] == "overlap"


def test_a_chunk_that_is_a_near_miss(chunk, cut_at):
    cut_at(0.98)
    why = ask(chunk, overrides={"score_threshold": None, "rerank_candidates": 500, "top_k": 10}, query=chunk.text)

    assert verdict(why) == ("gate", "near_miss")
    assert "作为相近结果" in why.verdict.sentence
    assert why.rank is None


def test_a_chunk_whose_kind_of_source_is_capped(chunk, kb):
    make_document(kb, "保修期 保修期 保修期", source_type="web")

    why = ask(chunk, overrides={"general_retrieval": False, "max_web": 1})

    assert verdict(why) == ("per_source", "cap_full")
    assert (why.verdict.figures["cap"], why.verdict.figures["place"]) == (1, 2)


def test_a_chunk_after_the_last_result(chunk):
    why = ask(chunk, overrides={"top_k": 2})

    assert verdict(why) == ("top_k", "too_many")
    assert (why.verdict.figures["place"], why.verdict.figures["count"]) == (LAST, 2)


def test_the_reranker_and_the_gate_name_the_relevance_and_what_it_is_ordered_by(chunk):
    with translation.override("en"):
        why = ask(chunk, overrides={"top_k": 10, "score_threshold": 0.01})
    steps = {str(step.stage): step for step in why.steps}
    scores = why.candidate.scores

    assert steps["rerank"].figures["score"] == steps["gate"].figures["score"] == scores["rerank"]
    assert steps["rerank"].figures["order"] == scores["order"] > scores["rerank"]
    assert f"relevance {scores['rerank']:.4f}; ordered by {scores['order']:.4f}" in steps["rerank"].sentence
    assert f"Its relevance {scores['rerank']:.4f} reaches the threshold" in steps["gate"].sentence


def test_without_a_reranker_the_stage_is_not_asked(chunk):
    why = ask(chunk, overrides={"use_rerank": False, "top_k": 10})

    assert verdict(why) == ("found", None)
    (step,) = (step for step in why.steps if step.stage == "rerank")
    assert (str(step.state), str(step.reason)) == ("not_asked", "reranker_off")


def test_a_chain_that_cannot_answer_leaves_an_earlier_order(chunk):
    why = ask(chunk, overrides={"rerankers": [], "top_k": 10})

    assert verdict(why) == ("found", None)
    assert states(why)["rerank"] == "weakened"


def test_with_several_knowledge_bases_the_chunks_own_channels_are_told_of(chunk):
    other = make_kb(owner=chunk.knowledge_base.owner)
    make_document(other, "保修期 保修期")

    why = ask(chunk, ids=[other.pk, chunk.knowledge_base_id], overrides={"top_k": 10})

    assert why.rank == LAST + 1
    assert place(why, "vector").total == LAST
