import uuid

import pytest
from django.utils import timezone

from kb.base.errors import NotVisible
from kb.base.shapes import as_values
from kb.index.filters import Filters
from kb.models import ChunkEmbedding, Concept, KnowledgeBase, KnowledgeBaseVersion, RetrievalProfile, SearchLog
from kb.providers.embedding_models import embedder
from kb.search.services import search_log
from kb.search.services.search import SearchRequest, outcome_as_log, response_of, search
from retrieval.errors import InvalidConfiguration, NoChannelAvailable
from retrieval.types import Turn
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.providers.letters_model import letters_models

pytestmark = pytest.mark.django_db


def ask(kb, query="保修期", *, who=None, **fields):
    request = SearchRequest(
        query=query, knowledge_base_ids=fields.pop("ids", [kb.pk]), log=fields.pop("log", False), **fields
    )
    return search(who or principal(kb.owner), request)


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(
        kb, "智能温控器的保修期是两年", "安装前请先关闭电源", title="手册", metadata={"year": 2024}, tags=["a"]
    )
    return kb


def test_the_response_has_the_contracts_fields(kb):
    response = as_values(response_of(ask(kb)))
    assert set(response) == {
        "query", "results", "near_misses", "facts", "degraded", "profile", "cached", "timings_ms", "trace_id",
    }  # fmt: skip
    assert response["profile"] == {"name": "keyword-led", "version": 1}
    first = response["results"][0]
    assert set(first) == {
        "chunk_id", "document_id", "knowledge_base_id", "title", "source", "page", "text", "score", "score_scale",
        "seconds", "regions", "pictures",
        "relevance", "ranks", "scores", "metadata", "neighbours", "matched_text", "equal_question",
    }  # fmt: skip
    assert first["text"] == "智能温控器的保修期是两年"
    assert first["ranks"] == {"vector": 1, "bm25": 1, "characters": 1, "lexical": 1, "fused": 1, "rerank": 1}
    assert set(first["scores"]) == {"vector", "bm25", "characters", "lexical", "fused", "rerank", "order"}
    assert first["score"] == first["scores"]["rerank"]
    assert first["score_scale"] == "overlap"
    assert first["metadata"]["year"] == 2024
    assert first["neighbours"] == []
    assert first["matched_text"] == ""


def test_neighbours_come_with_a_result_on_request(kb):
    (first, *_) = as_values(response_of(ask(kb, overrides={"neighbours": 1})))["results"]
    (beside,) = first["neighbours"]
    assert (beside["text"], beside["position"]) == ("安装前请先关闭电源", 1)


def test_a_question_that_a_chunk_answers_ranks_it(kb):
    chunk = kb.chunks.get(position=1)
    vector = embedder("hashing").embed_documents(["怎么装温控器"])[0]
    ChunkEmbedding.objects.create(
        chunk=chunk, knowledge_base=kb, model="hashing", kind=ChunkEmbedding.Kind.QUESTION, vector=vector
    )
    results = as_values(response_of(ask(kb, "怎么装温控器", overrides={"score_threshold": 0.0})))["results"]
    assert {each["chunk_id"]: each["ranks"].get("question") for each in results}[chunk.pk] == 1


def test_an_explained_search_carries_its_trace_and_is_written_at_once(kb):
    outcome = ask(kb, explain=True, log=True)
    trace = as_values(response_of(outcome))["trace"]
    assert {span["stage"] for span in trace["spans"]} >= {"analysis", "vector", "bm25", "fusion", "rerank", "gate"}
    assert trace["candidates"][0]["matched_terms"]
    entry = SearchLog.objects.get(pk=outcome.trace_id)
    assert (entry.query, entry.result_count, entry.user) == ("保修期", len(outcome.result.hits), kb.owner)
    assert entry.configuration["keyword_weight"] == 0.9


@pytest.mark.django_db(transaction=True)
def test_an_explained_search_does_not_tell_what_others_have_searched_for(kb, monkeypatch):
    letters_models(monkeypatch, "letters")
    mine, theirs = (make_kb(embedding_model="letters") for _ in range(2))
    for base in (mine, theirs):
        make_document(base, "Who is to be laid off?")

    def source(base):
        trace = as_values(response_of(ask(base, query="laid off", explain=True)))["trace"]
        return next(span["query_vector"] for span in trace["spans"] if span["stage"] == "vector")

    assert [source(theirs), source(theirs)] == ["model", "memory"]
    assert [source(mine), source(mine)] == ["model", "memory"]


@pytest.mark.django_db(transaction=True)
def test_other_searches_are_written_in_the_background(kb):
    outcome = ask(kb, log=True)
    search_log.flush()
    assert SearchLog.objects.filter(pk=outcome.trace_id).exists()


def test_another_users_base_is_not_there(kb):
    stranger = principal(make_user())
    with pytest.raises(NotVisible, match=str(kb.pk)):
        ask(kb, who=stranger)
    with pytest.raises(NotVisible):
        ask(kb, ids=[kb.pk, 10**9])


def test_a_member_finds_what_the_owner_finds(kb):
    assert len(ask(kb, who=principal(make_member(kb))).result.hits) == len(ask(kb).result.hits)


def test_a_key_of_another_base_finds_nothing_of_this_one(kb):
    with pytest.raises(NotVisible):
        ask(kb, who=principal(kb.owner, kb_ids=frozenset()))


def test_disabled_chunks_are_found_by_no_channel(kb):
    chunk = kb.chunks.get(position=0)
    chunk.enabled = False
    chunk.save()
    result = ask(kb).result
    assert chunk.pk not in {candidate.chunk_id for candidate in result.candidates}


def test_a_base_on_the_hashing_embedder_says_that_it_is_degraded_and_what_to_do(kb):
    (degradation,) = ask(kb).result.degraded
    assert degradation.code == "hashing_embedder"
    assert "reindex" in degradation.detail


def test_a_model_that_is_not_here_leaves_keywords_and_a_note(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="BAAI/not-here")
    result = ask(kb).result
    assert [each.code for each in result.degraded] == ["model_unavailable"]
    assert {"vector", "bm25"} & result.hits[0].ranks.keys() == {"bm25"}


def test_postings_of_another_tokenizer_leave_vectors_and_a_note(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="older")
    result = ask(kb, overrides={"score_threshold": 0.0}).result
    assert "bm25_postings_outdated" in {each.code for each in result.degraded}
    assert "bm25" not in result.hits[0].ranks


def test_without_any_channel_there_is_an_error_with_both_reasons(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="BAAI/not-here", tokenizer_id="older")
    with pytest.raises(NoChannelAvailable) as caught:
        ask(kb, overrides={"enable_fts": False, "lexical_fallback": False})
    assert {each.code for each in caught.value.degradations} == {"model_unavailable", "bm25_postings_outdated"}


def test_several_bases_are_searched_by_themselves_and_merged(kb):
    other = make_kb(owner=kb.owner)
    make_document(other, "保修期可以延长")
    result = ask(kb, ids=[other.pk, kb.pk]).result
    assert {hit.passage.kb_id for hit in result.hits} == {kb.pk, other.pk}
    assert [hit.score for hit in result.hits] == sorted((hit.score for hit in result.hits), reverse=True)


def test_equal_scores_keep_the_order_of_the_bases(kb):
    twin = make_kb(owner=kb.owner)
    make_document(twin, "智能温控器的保修期是两年", "安装前请先关闭电源", title="手册", source="other.txt")
    for ids in ([kb.pk, twin.pk], [twin.pk, kb.pk]):
        hits = ask(kb, ids=ids).result.hits
        assert hits[0].score == hits[1].score
        assert [hit.passage.kb_id for hit in hits[:2]] == ids


def test_a_named_profile_rules_and_an_unknown_one_is_refused(kb):
    RetrievalProfile.objects.create(name="mine", version=1, settings={"top_k": 9})
    RetrievalProfile.objects.create(name="mine", version=2, settings={"top_k": 1})
    outcome = ask(kb, profile="mine")
    assert (outcome.wiring.profile.version, len(outcome.result.hits)) == (2, 1)
    with pytest.raises(NotVisible, match="keyword-led"):
        ask(kb, profile="nobodys")


def test_overrides_win_over_the_profile_and_are_checked(kb):
    assert len(ask(kb, overrides={"top_k": 1}).result.hits) == 1
    with pytest.raises(InvalidConfiguration):
        ask(kb, overrides={"top_k": 0})


def test_an_asked_count_also_wins_where_kinds_of_sources_are_capped(kb):
    capped = {"general_retrieval": False, "score_threshold": 0.0}
    assert len(ask(kb, overrides=capped).result.hits) > 1
    assert len(ask(kb, overrides={**capped, "top_k": 1}).result.hits) == 1


@pytest.mark.django_db(transaction=True)
def test_a_search_costs_few_queries(kb, django_assert_num_queries):
    """Bases with version and profile, and passages; the vectors' query runs on a connection of its own."""
    ask(kb)
    with django_assert_num_queries(2):
        ask(kb)


def test_a_score_threshold_gates_and_zero_does_not(kb):
    first, second = ask(kb, overrides={"score_threshold": 0.0}).result.hits
    between = (first.score + second.score) / 2
    assert [hit.score for hit in ask(kb, overrides={"score_threshold": between}).result.hits] == [first.score]


def test_zero_is_no_gate_for_cosines_below_zero_either(kb):
    for number in range(30):
        make_document(kb, f"text number {number} about topic {number * 7}")
    result = ask(kb, "zebra quantum", overrides={"use_rerank": False, "score_threshold": 0.0, "top_k": 40}).result
    assert min(hit.score for hit in result.hits) < 0
    assert "gate" not in {candidate.cut_by for candidate in result.candidates}


@pytest.mark.parametrize("overrides", [{"use_rerank": False}, {}])
def test_a_channel_may_weigh_nothing(kb, overrides):
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="older")
    overrides = {**overrides, "vector_weight": 0.0, "score_threshold": 0.0}
    assert len(ask(kb, overrides=overrides).result.hits) == 2


def test_without_reranker_the_nearest_vectors_of_all_bases_are_the_results(kb):
    other = make_kb(owner=kb.owner)
    make_document(kb, *[f"苹果手机维修指南 {number}" for number in range(30)])
    make_document(other, *[f"无关内容 {number} 猫" for number in range(30)])
    overrides = {"use_rerank": False, "top_k": 20}
    result = ask(kb, "苹果手机维修指南", ids=[other.pk, kb.pk], overrides=overrides).result
    nearest = sorted((candidate.scores["vector"] for candidate in result.candidates), reverse=True)[:20]
    assert [hit.score for hit in result.hits] == nearest


@pytest.mark.parametrize("query", ["a\x00b", "a\ud800b", "，。！", "", "的" * 5_000])
def test_odd_queries_are_answered_and_logged(kb, query):
    outcome = ask(kb, query, explain=True, log=True)
    assert SearchLog.objects.filter(pk=outcome.trace_id).exists()


def test_no_base_at_all_is_refused(kb):
    with pytest.raises(NotVisible):
        ask(kb, ids=[])


def test_a_log_entry_is_seen_by_those_who_see_all_its_bases_and_never_by_strangers(kb):
    other = make_kb(owner=kb.owner)
    member = make_member(kb)
    ask(kb, ids=[kb.pk, other.pk], explain=True, log=True)
    assert SearchLog.objects.visible_to(principal(kb.owner)).count() == 1
    assert not SearchLog.objects.visible_to(principal(member)).exists()
    SearchLog.objects.update(knowledge_base_ids=[])
    assert not SearchLog.objects.visible_to(principal(member)).exists()


@pytest.mark.django_db(transaction=True)
def test_one_bad_log_entry_costs_no_other(kb, caplog):
    rows = []
    for query in ("one", "two\x00", "three"):
        row = SearchLog(user=kb.owner, created_at=timezone.now(), **outcome_as_log(ask(kb, "x")))
        row.query = query
        rows.append(row)
    search_log._write(rows)
    assert set(SearchLog.objects.values_list("query", flat=True)) == {"one", "three"}
    assert "could not be written" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_an_entry_that_cannot_be_made_costs_no_other(kb, caplog):
    def broken():
        raise KeyError("trace")

    entry = outcome_as_log(ask(kb, "x"))
    search_log.record(principal(kb.owner), uuid.uuid4(), broken, now=False)
    search_log.record(principal(kb.owner), uuid.uuid4(), lambda: entry, now=False)
    search_log.flush()
    assert SearchLog.objects.get().query == "x"
    assert "could not be made" in caplog.text


# -- Filters -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def crowded(kb):
    """Chunks that match better stand before those of the tag "rare"."""
    for number in range(30):
        make_document(kb, f"保修期 保修期 {number}", tags=["common"])
    for number in range(4):
        make_document(kb, f"第{number}种设备的说明书里也写着保修期以及别的事项", tags=["rare"])
    return kb


def test_a_filtered_search_is_never_short_and_finds_in_both_channels(crowded):
    few = {"top_k": 4, "candidate_floor": 1, "vector_top_k": 4, "bm25_top_k": 4, "score_threshold": 0.0}
    result = ask(crowded, filters=Filters.parse({"tags": ["rare"]}), overrides=few).result
    assert [hit.passage.metadata["tags"] for hit in result.hits] == [["rare"]] * 4
    assert all({"vector", "bm25"} <= hit.ranks.keys() for hit in result.hits)
    assert {candidate.chunk_id for candidate in result.candidates} == {hit.passage.chunk_id for hit in result.hits}


def test_the_stand_ins_are_filtered_too(crowded):
    KnowledgeBase.objects.filter(pk=crowded.pk).update(embedding_model="BAAI/not-here", lacks_postings=True)
    result = ask(crowded, filters=Filters.parse({"tags": ["rare"]}), overrides={"score_threshold": 0.0}).result
    assert len(result.hits) == 4
    assert {name for hit in result.hits for name in hit.ranks} >= {"fts", "lexical"}


@pytest.mark.parametrize("whose", ["the owner's", "a stranger's"])
def test_ids_of_another_base_find_nothing(kb, whose):
    other = make_kb(owner=kb.owner if whose == "the owner's" else None)
    document = make_document(other, "智能温控器的保修期是两年")
    concept = Concept.objects.create(knowledge_base=other, name="保修期")
    document.concepts.add(concept)
    for filters in ({"document_ids": [document.pk]}, {"concepts": [concept.pk]}):
        outcome = ask(kb, filters=Filters.parse(filters))
        assert outcome.result.candidates == ()
        assert "两年" not in str(outcome_as_log(outcome))


def test_filters_that_nothing_meets_find_nothing_and_are_no_fault(kb):
    result = ask(kb, filters=Filters.parse({"tags": ["nowhere"]})).result
    assert result.hits == ()
    assert [each.code for each in result.degraded] == ["hashing_embedder"]


# -- What the log keeps --------------------------------------------------------------------------------------------------
def test_the_log_keeps_what_was_asked_and_of_what(kb):
    outcome = ask(
        kb,
        log=True,
        filters=Filters.parse({"tags": ["a"]}),
        overrides={"top_k": 3},
        latency_budget_ms=9_000,
        history=(Turn("user", "温控器"),),
    )
    entry = SearchLog.objects.get(pk=outcome.trace_id)
    assert entry.trace["request"] == {
        "profile": "",
        "profile_version": None,
        "overrides": {"top_k": 3},
        "filters": {"tags": ["a"]},
        "latency_budget_ms": 9_000,
        "turns": 1,
    }
    (scope,) = entry.trace["scopes"]
    row = KnowledgeBaseVersion.objects.get(pk=kb.pk)
    assert (scope["version"], scope["content_version"]) == (row.version, row.content_version)
    assert (scope["tokenizer"], scope["space"]) == (kb.tokenizer_id, "hashing")
    assert scope["profile"] == {"name": "keyword-led", "version": 1, "knowledge_base_id": None}
    assert [each["chunk_id"] for each in entry.trace["results"]] == [h.passage.chunk_id for h in outcome.result.hits]


def test_the_texts_of_a_conversation_are_kept_apart_from_the_trace(kb):
    outcome = ask(kb, log=True, history=(Turn("user", "what another base told"),))
    entry = SearchLog.objects.get(pk=outcome.trace_id)
    assert entry.history == [{"role": "user", "text": "what another base told"}]
    assert "another base" not in str(entry.trace)


def test_a_version_of_a_profile_can_be_named(kb):
    RetrievalProfile.objects.create(name="mine", version=1, settings={"top_k": 1})
    RetrievalProfile.objects.create(name="mine", version=2, settings={"top_k": 9})
    assert ask(kb, profile="mine", profile_version=1).wiring.profile.version == 1
    with pytest.raises(NotVisible, match="mine"):
        ask(kb, profile="mine", profile_version=3)
