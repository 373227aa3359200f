import uuid

import pytest

from kb.base.errors import NotVisible, Rejected
from kb.index.filters import Filters
from kb.models import Chunk, KnowledgeBase, RetrievalProfile, SearchLog
from kb.search.services.replay import Change, replay
from kb.search.services.search import SearchRequest, search
from retrieval.types import Turn
from tests.factories import make_document, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db

WARRANTY, EXTENSION, POWER = "智能温控器的保修期是两年", "保修期可以延长一年", "安装前请先关闭电源"


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, WARRANTY, EXTENSION, POWER, title="手册", tags=["a"])
    return kb


def logged(*kbs, who=None, query="保修期", **fields):
    """The trace id of a search."""
    fields.setdefault("overrides", {"score_threshold": 0.0})
    request = SearchRequest(query=query, knowledge_base_ids=[kb.pk for kb in kbs], **fields)
    return search(principal(who or kbs[0].owner), request).trace_id


def again(kb, trace_id, who=None):
    return replay(principal(who or kb.owner), trace_id)


def chunk_of(text):
    return Chunk.objects.get(text=text)


def changes(replayed):
    return {result.chunk_id: result.change for result in replayed.results}


def result_of(replayed, chunk_id):
    return next(result for result in replayed.results if result.chunk_id == chunk_id)


# -- What is compared ----------------------------------------------------------------------------------------------------
def test_a_search_of_what_has_not_changed_is_identical(kb):
    replayed = again(kb, logged(kb))
    assert replayed.identical
    assert set(changes(replayed).values()) == {Change.SAME}
    assert (replayed.configuration, replayed.knowledge_bases) == ((), ())
    assert replayed.degraded.before == replayed.degraded.after != ()


def test_a_replay_is_not_logged(kb):
    again(kb, logged(kb))
    assert SearchLog.objects.count() == 1


def test_a_new_chunk_is_new_and_moves_others(kb):
    trace_id = logged(kb, query=EXTENSION)
    document = make_document(kb, EXTENSION + "，须在保修期内", EXTENSION + "！", source="news.txt")
    replayed = again(kb, trace_id)
    new = [result for result in replayed.results if result.change is Change.NEW]
    assert {result.chunk_id for result in new} == set(document.chunks.values_list("pk", flat=True))
    assert {result.source for result in new} == {"news.txt"}
    assert Change.MOVED in changes(replayed).values()
    assert not replayed.identical


@pytest.mark.parametrize("reason", ["deleted", "disabled"])
def test_a_chunk_that_is_no_more_is_gone(kb, reason):
    trace_id = logged(kb)
    chunk = chunk_of(EXTENSION)
    if reason == "deleted":
        Chunk.objects.filter(pk=chunk.pk).delete()
    else:
        Chunk.objects.filter(pk=chunk.pk).update(enabled=False)
    gone = result_of(again(kb, trace_id), chunk.pk)
    assert (gone.change, gone.reason, gone.rank.after) == (Change.GONE, reason, None)
    assert gone.title == ("" if reason == "deleted" else "手册")


def test_a_result_that_is_cut_now_says_by_what(kb, settings):
    trace_id = logged(kb, overrides={})
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": 0.9999}
    replayed = again(kb, trace_id)
    assert {result.reason for result in replayed.results} == {"gate"}


def test_another_score_at_the_same_rank_is_told(kb):
    trace_id = logged(kb, filters=Filters.parse({"tags": ["a"]}))
    for number in range(20):
        make_document(kb, f"保修期 {number}", tags=["b"])
    replayed = again(kb, trace_id)
    assert Change.RESCORED in changes(replayed).values()
    assert Change.NEW not in changes(replayed).values()


def test_a_changed_environment_is_named_with_both_values(kb, settings):
    trace_id = logged(kb)
    settings.RETRIEVAL = {**settings.RETRIEVAL, "rrf_k": 10}
    settings.LLM_MODEL, settings.LLM_API_KEY = "some-model", "key"
    replayed = again(kb, trace_id)
    assert [(each.name, each.before, each.after) for each in replayed.configuration] == [
        ("rrf_k", 60, 10),
        ("models.llm", "", "some-model"),
    ]


def test_versions_of_the_knowledge_bases_that_have_moved_are_told(kb):
    trace_id = logged(kb)
    kb.documents.update(title="another title")
    (moved,) = again(kb, trace_id).knowledge_bases
    assert (moved.knowledge_base_id, moved.name) == (kb.pk, "content_version")
    assert moved.after > moved.before


def test_what_is_degraded_now_and_was_not_is_told(kb):
    trace_id = logged(kb)
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="BAAI/not-here")
    replayed = again(kb, trace_id)
    assert [each.code for each in replayed.degraded.before] == ["hashing_embedder"]
    assert "model_unavailable" in {each.code for each in replayed.degraded.after}
    assert ("space", "hashing", "BAAI/not-here") in {
        (each.name, each.before, each.after) for each in replayed.knowledge_bases
    }


def test_another_scale_is_no_identical_search(kb, settings):
    trace_id = logged(kb)
    settings.RETRIEVAL = {**settings.RETRIEVAL, "use_rerank": False}
    replayed = again(kb, trace_id)
    assert (replayed.score_scale.before, replayed.score_scale.after) == ("overlap", "cosine")
    assert not replayed.identical


# -- What is run again ---------------------------------------------------------------------------------------------------
def test_overrides_and_filters_are_those_of_the_log(kb):
    make_document(kb, "保修期", tags=["b"])
    overrides = {"top_k": 1, "score_threshold": 0.0}
    trace_id = logged(kb, filters=Filters.parse({"tags": ["a"]}), overrides=overrides)
    replayed = again(kb, trace_id)
    assert replayed.identical
    assert len(replayed.results) == 1


def test_a_named_profile_is_of_the_version_of_the_log(kb):
    RetrievalProfile.objects.create(name="mine", version=1, settings={"top_k": 1})
    trace_id = logged(kb, profile="mine")
    RetrievalProfile.objects.create(name="mine", version=2, settings={"top_k": 3})
    replayed = again(kb, trace_id)
    assert (replayed.profile.version, len(replayed.results)) == (1, 1)


def test_a_knowledge_base_searches_by_the_profile_that_was_its_own(kb):
    trace_id = logged(kb)
    mine = RetrievalProfile.objects.create(name="mine", version=1, settings={"top_k": 1, "fusion": "weighted"})
    KnowledgeBase.objects.filter(pk=kb.pk).update(profile=mine)
    replayed = again(kb, trace_id)
    assert replayed.identical
    assert replayed.configuration == ()


def test_bases_of_several_profiles_are_ruled_by_the_default_one_of_the_log(kb):
    other = make_kb(owner=kb.owner)
    make_document(other, WARRANTY, source="other.txt")
    KnowledgeBase.objects.filter(pk=other.pk).update(profile=RetrievalProfile.objects.get(name="default"))
    trace_id = logged(kb, other)
    RetrievalProfile.objects.create(name="default", version=2, settings={"top_k": 1})
    replayed = again(kb, trace_id)
    assert (replayed.profile.name, replayed.profile.version) == ("default", 1)
    assert replayed.identical


def test_a_profile_version_that_is_gone_is_an_error_that_names_it(kb):
    mine = RetrievalProfile.objects.create(name="mine", version=1, settings={})
    trace_id = logged(kb, profile="mine")
    mine.delete()
    with pytest.raises(NotVisible, match="mine"):
        again(kb, trace_id)


# -- Who may ---------------------------------------------------------------------------------------------------------------
def test_only_who_sees_all_of_its_knowledge_bases_may_run_it_again(kb):
    other = make_kb(owner=kb.owner)
    trace_id = logged(kb, other)
    for who in (make_user(), make_member(kb)):
        with pytest.raises(NotVisible, match=str(trace_id)):
            again(kb, trace_id, who)
    with pytest.raises(NotVisible):
        replay(principal(kb.owner, kb_ids=frozenset({kb.pk})), trace_id)


def test_an_unknown_trace_is_an_error(kb):
    with pytest.raises(NotVisible):
        again(kb, uuid.uuid4())


def test_the_conversation_is_used_for_whom_it_belongs_to_alone(kb):
    trace_id = logged(kb, history=(Turn("user", "温控器"), Turn("assistant", "哪一种？")))
    assert not again(kb, trace_id).without_history
    assert again(kb, trace_id, make_member(kb)).without_history
    assert not again(kb, trace_id, make_user(superuser=True)).without_history


def test_what_an_earlier_release_has_logged_cannot_be_run_again(kb):
    trace_id = logged(kb)
    entry = SearchLog.objects.get(pk=trace_id)
    del entry.trace["request"]
    entry.save()
    with pytest.raises(Rejected) as caught:
        again(kb, trace_id)
    assert caught.value.code == "not_replayable"
