"""What would help, and that it does: each remedy is applied and the search run again."""

import pytest

from kb.base.errors import NotAllowed, Rejected
from kb.index.filters import Filters
from kb.index.services.tokenizing import TOKENIZING
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Document, KnowledgeBase, Membership, RetrievalProfile
from kb.profiles.services import find_version
from kb.quality.why_not.services.remedies import apply_remedy, remedies
from kb.quality.why_not.services.walk import why_not_found
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.quality.why_not.services.asking import ask, bare_chunk, place, states, verdict

pytestmark = pytest.mark.django_db

DEEP = {"vector_top_k": 2, "bm25_top_k": 2, "top_k": 10}


def offered(why):
    return {remedy.id: remedy for remedy in remedies(why)}


def remedied(why, remedy_id, text="", *, who=None, **how):
    """What the search says after a remedy: what was promised, unless another text was given."""
    who = who or principal(why.chunk.knowledge_base.owner)
    remedy = offered(why)[remedy_id]
    request = apply_remedy(who, why, remedy, text, **how)
    after = why_not_found(who, request, why.chunk.pk)
    if remedy.effect is not None and not text:
        assert (after.verdict.stage, after.rank or after.place) == (remedy.effect.stage, remedy.effect.rank_after)
    return after


def ranked(why, stage):
    (found,) = [candidate for candidate in why.outcome.result.candidates if candidate.chunk_id == why.chunk.pk]
    return found.ranks[stage]


# -- What changes the search -------------------------------------------------------------------------------------------
def test_nothing_is_to_be_done_for_a_chunk_that_is_found(chunk):
    assert remedies(ask(chunk, overrides={"top_k": 10})) == ()


def test_its_knowledge_base_is_searched_too(chunk):
    other = make_kb(owner=chunk.knowledge_base.owner)
    make_document(other, "保修期")

    after = remedied(ask(chunk, ids=[other.pk], overrides={"top_k": 10}), "change_request:knowledge_base")

    assert verdict(after) == ("found", None)
    assert after.request.knowledge_base_ids == [other.pk, chunk.knowledge_base_id]


@pytest.mark.parametrize(
    ("filters", "remedy"),
    [
        ({"tags": ["other"]}, "change_request:tags"),
        ({"source_types": ["book"]}, "change_request:source_types"),
        ({"metadata": [{"key": "year", "op": "eq", "value": 1999}]}, "change_request:metadata.year"),
    ],
)
def test_a_filter_is_taken_out_and_the_others_stay(chunk, filters, remedy):
    given = {**filters, "created_after": "2020-01-01"}

    after = remedied(ask(chunk, filters=Filters.parse(given), overrides={"top_k": 10}), remedy)

    assert verdict(after) == ("found", None)
    assert list(after.request.filters.as_dict()) == ["created_after"]


def test_filters_that_it_fails_are_taken_out_together(chunk):
    given = {"tags": ["other"], "metadata": [{"key": "year", "op": "eq", "value": 1999}], "source_types": ["web"]}

    after = remedied(
        ask(chunk, filters=Filters.parse(given), overrides={"top_k": 10}), "change_request:tags+metadata.year"
    )

    assert verdict(after) == ("found", None)
    assert list(after.request.filters.as_dict()) == ["source_types"]


# -- What changes the chunk --------------------------------------------------------------------------------------------
def test_a_chunk_is_switched_on(chunk):
    chunk.enabled = False
    chunk.save()

    assert verdict(remedied(ask(chunk, overrides={"top_k": 10}), "enable")) == ("found", None)


@pytest.fixture
def by_rank(kb):
    """A chunk that the vectors put first for RARE, and a rival that the keywords do."""
    for word in COMMON.split():
        make_document(kb, f"{word} notes", f"{word} index")
    make_document(kb, f"{RARE} lorem ipsum dolor amet consetur")
    document = make_document(kb, COMMON)
    return document.chunks.select_related("knowledge_base__owner").get()


COMMON = "alpha beta gamma delta"
RARE = f"{COMMON} quartz"


def test_a_chunk_without_terms_is_indexed_again(chunk):
    ChunkPostings.objects.filter(chunk=chunk).delete()
    before = ask(chunk, "电源 保修期 保修期 保修期", overrides={"vector_top_k": 1, "bm25_top_k": 1})
    assert verdict(before)[0] == "postings"

    assert verdict(remedied(before, "index_chunk")) == ("found", None)


@pytest.mark.parametrize("other", [None, "other/model"])
def test_a_chunk_without_a_vector_of_the_model_gets_one(by_rank, other):
    vectors = ChunkEmbedding.objects.filter(chunk=by_rank)
    _ = vectors.update(model=other) if other else vectors.delete()
    before = ask(by_rank, RARE, overrides={"vector_top_k": 1, "bm25_top_k": 1})
    assert verdict(before)[0] == "embedding"

    assert verdict(remedied(before, "index_chunk")) == ("found", None)
    assert set(ChunkEmbedding.objects.filter(chunk=by_rank).values_list("model", flat=True)) == {"hashing"}


def test_a_chunk_in_no_index_is_indexed_again(chunk):
    for model in (ChunkPostings, ChunkEmbedding):
        model.objects.filter(chunk=chunk).delete()
    before = ask(chunk, overrides={"top_k": 10})
    assert verdict(before)[0] == "postings"

    assert verdict(remedied(before, "index_chunk")) == ("found", None)


@pytest.mark.parametrize(("model", "kind"), [(ChunkPostings, "--bm25"), (ChunkEmbedding, "--embeddings")])
def test_the_command_that_indexes_all_chunks_is_named(chunk, model, kind):
    model.objects.filter(chunk=chunk).delete()

    command = offered(ask(chunk, overrides=DEEP))["run_command"].command

    assert command == f"manage.py reindex --kb {chunk.knowledge_base.name} {kind}"


def test_a_failed_document_is_put_back_in_the_queue_with_its_chunks(kb):
    chunk = bare_chunk(kb, status=Document.Status.FAILED, error="broken", error_code="broken")

    after = remedied(ask(chunk), "retry_document")

    assert verdict(after) == ("document", "not_ready")
    document = Document.objects.get(pk=chunk.document_id)
    assert (document.status, document.keep_chunks) == ("pending", True)


def test_a_question_of_its_own_brings_a_chunk_up(chunk):
    before = ask(chunk, "质保多久", overrides={"vector_top_k": 1, "bm25_top_k": 1})
    assert verdict(before)[0] == "channels"

    after = remedied(before, "add_question")

    assert verdict(after) == ("found", None)
    assert place(after, "question").rank == 1
    assert Chunk.objects.get(pk=chunk.pk).questions == ["质保多久"]


def test_another_question_than_the_query_may_be_added(chunk):
    before = ask(chunk, "质保多久", overrides={"vector_top_k": 1, "bm25_top_k": 1})

    remedied(before, "add_question", "  质保期是 多长？ ")

    assert Chunk.objects.get(pk=chunk.pk).questions == ["质保期是 多长？"]


def test_a_query_that_is_a_question_of_the_chunk_already_is_not_offered_again(chunk):
    remedied(ask(chunk, overrides=DEEP), "add_question")

    assert "add_question" not in offered(ask(chunk, overrides={**DEEP, "rerank_candidates": 1, "top_k": 1}))


def test_a_question_that_is_too_long_is_refused(chunk):
    with pytest.raises(Rejected, match="2000"):
        remedied(ask(chunk, overrides=DEEP), "add_question", "长" * 2_001)


# -- What changes the tokenizer ----------------------------------------------------------------------------------------
@pytest.fixture
def cut_apart(kb):
    """A chunk whose text holds the query's word, cut into others."""
    document = make_document(kb, "员工每年享有带薪年假期五天")
    return document.chunks.select_related("knowledge_base__owner").get()


def test_a_word_that_query_and_chunk_share_as_written_is_suggested(cut_apart):
    why = ask(cut_apart, "带薪年假", overrides={"vector_top_k": 1, "bm25_top_k": 1, "score_threshold": 1.0})

    assert "带薪年假" in why.terms.words
    assert offered(why)["add_word"].suggestions == why.terms.words


def test_a_word_that_the_tokenizer_would_not_cut_out_is_not_suggested(kb):
    document = make_document(kb, "本店支持以旧换新业务员上门服务")
    chunk = document.chunks.select_related("knowledge_base__owner").get()

    why = ask(chunk, "换新业务", overrides={"score_threshold": 1.0})

    assert why.terms.words == ()
    assert "add_word" not in offered(why)


def test_a_word_in_the_dictionary_joins_query_and_chunk_once_a_worker_is_done(cut_apart, kb):
    before = ask(cut_apart, "带薪年假", overrides={"score_threshold": 1.0})
    assert "带薪年假" not in [each.term for each in before.terms.chunk]

    during = remedied(before, "add_word", "带薪年假")
    assert KnowledgeBase.objects.get(pk=kb.pk).target_tokenizer_id
    assert "带薪年假" not in [each.term for each in during.terms.chunk]
    TOKENIZING.follow(KnowledgeBase.objects.get(pk=kb.pk))
    after = ask(cut_apart, "带薪年假", overrides={"score_threshold": 1.0})

    held = {row.term: row.in_chunk for row in after.terms.query}
    assert held["带薪年假"] == 1
    assert after.terms.missing == ()


def test_a_word_that_the_dictionary_has_is_refused(cut_apart, kb):
    why = ask(cut_apart, "带薪年假", overrides={"score_threshold": 1.0})
    remedied(why, "add_word", "带薪年假")
    TOKENIZING.follow(KnowledgeBase.objects.get(pk=kb.pk))
    cut_apart.knowledge_base.refresh_from_db()

    with pytest.raises(Rejected, match="带薪年假"):
        remedied(why, "add_word", "带薪年假")


def test_a_word_that_cannot_be_used_is_refused_with_the_reason(cut_apart):
    why = ask(cut_apart, "带薪年假", overrides={"score_threshold": 1.0})

    with pytest.raises(Rejected, match="50"):
        remedied(why, "add_word", "长" * 60)


# -- What changes the settings, in a draft -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("overrides", "remedy", "changed"),
    [
        (DEEP, "draft:vector_top_k", {"vector_top_k": 10}),
        (DEEP, "draft:bm25_top_k", {"bm25_top_k": 10}),
        (
            {"rerank_candidates": 3, "top_k": 1},
            "draft:rerank_candidates+top_k",
            {"rerank_candidates": 10, "rerank_top_k": 6, "general_final_count": 6},
        ),
        ({"use_rerank": False, "vector_top_k": 2, "top_k": 10}, "draft:use_rerank", {"use_rerank": True}),
        ({"general_retrieval": False, "max_web": 0}, "draft:max_web", {"max_web": 1}),
        (
            {"top_k": 2},
            "draft:top_k",
            {"rerank_top_k": 6, "general_final_count": 6},
        ),
    ],
)
def test_a_setting_is_changed_in_a_draft_and_the_stage_lets_the_chunk_pass(chunk, overrides, remedy, changed):
    before = ask(chunk, overrides=overrides)
    assert offered(before)[remedy].settings == changed

    after = remedied(before, remedy)

    assert states(after)[str(before.verdict.stage)] == "passed"
    draft = find_version(principal(chunk.knowledge_base.owner), after.request.profile, after.request.profile_version)
    assert changed.items() <= draft.settings.items()
    assert not draft.published
    assert after.outcome.wiring.profile == draft


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        ({"score_threshold": 0.99}, "score_threshold"),
        ({"score_threshold": None, "overlap_threshold": 0.99}, "overlap_threshold"),
    ],
)
def test_the_threshold_that_cut_it_is_lowered_to_its_score(chunk, overrides, setting):
    before = ask(chunk, overrides={**overrides, "top_k": 10})
    assert verdict(before) == ("gate", "below")

    after = remedied(before, f"draft:{setting}")

    assert verdict(after) == ("found", None)
    assert after.outcome.result.threshold <= before.verdict.figures["score"]


def test_a_draft_follows_on_a_draft(chunk):
    before = ask(chunk, overrides={**DEEP, "rerank_candidates": 1, "top_k": 1})

    after = remedied(before, "draft:vector_top_k")
    assert verdict(after) == ("fusion", "beyond_cut")
    last = remedied(after, "draft:rerank_candidates+top_k")

    settings = last.outcome.wiring.profile.settings
    assert {"vector_top_k": 10, "rerank_candidates": 10}.items() <= settings.items()
    assert verdict(last) == ("found", None)


def test_the_same_draft_serves_again(chunk):
    before = ask(chunk, overrides=DEEP)

    first, second = (remedied(before, "draft:vector_top_k").request for _ in range(2))

    assert first.profile_version == second.profile_version


def test_a_draft_is_the_knowledge_bases_own_unless_the_shared_profile_is_to_change(chunk):
    before = ask(chunk, overrides=DEEP)

    shared = remedied(before, "draft:vector_top_k", who=principal(make_user(superuser=True)), shared=True).request
    own = remedied(before, "draft:vector_top_k").request

    kb_id = chunk.knowledge_base_id
    assert (shared.profile, shared.profile_version) == ("keyword-led", 2)
    assert (own.profile, own.profile_version) == (f"{kb_id}/keyword-led-kb{kb_id}", 1)
    profile = find_version(principal(chunk.knowledge_base.owner), own.profile)
    assert profile.knowledge_base_id == chunk.knowledge_base_id
    assert {"keyword_weight": 0.9, "vector_top_k": 10}.items() <= profile.settings.items()


def test_with_several_profiles_the_channels_are_those_of_its_own_knowledge_base(chunk):
    other = make_kb(owner=chunk.knowledge_base.owner)
    other.profile = RetrievalProfile.objects.live("balanced")
    other.save()
    make_document(other, "保修期")

    before = ask(chunk, ids=[other.pk, chunk.knowledge_base_id], overrides=DEEP)
    after = remedied(before, "draft:vector_top_k")

    assert after.outcome.wiring.profile.settings["keyword_weight"] == 0.9


# -- Who may -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("remedy", ["draft:vector_top_k", "add_question"])
def test_a_viewer_may_not_change_anything(chunk, remedy):
    viewer = principal(make_member(chunk.knowledge_base, Membership.Role.VIEWER))
    why = ask(chunk, who=viewer, overrides=DEEP)

    with pytest.raises(NotAllowed):
        remedied(why, remedy, who=viewer)

    assert RetrievalProfile.objects.filter(version=2).count() == 0
    assert Chunk.objects.get(pk=chunk.pk).questions == []


def test_a_link_is_nothing_to_apply(chunk, kb):
    make_document(kb, chunk.text, title="说明书")
    double = Chunk.objects.filter(text=chunk.text).select_related("knowledge_base__owner").latest("pk")
    why = ask(double)
    assert offered(why)["show_double"].chunk_id == chunk.pk

    with pytest.raises(Rejected):
        remedied(why, "show_double")
