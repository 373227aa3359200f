import json

import pytest

from kb.base import cache as query_caches
from kb.base.errors import NotVisible
from kb.base.metrics import HOT_QUERIES
from kb.base.shapes import as_json, as_values
from kb.index.filters import Filters
from kb.models import KnowledgeBase, RetrievalProfile, SearchLog
from kb.profiles.services import publish
from kb.search.services import search as responses
from kb.search.services.search import SearchRequest, respond, search, tier_that_answers
from retrieval.errors import InvalidConfiguration
from retrieval.types import Turn
from tests.factories import make_document, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, "智能温控器的保修期是两年", "安装前请先关闭电源", title="手册", tags=["a"])
    return kb


def ask(kb, *others, who=None, query="保修期", **fields):
    ids = [each.pk for each in (kb, *others)]
    request = SearchRequest(query=query, knowledge_base_ids=ids, **fields)
    response = respond(principal(who or kb.owner), request)
    sent = json.loads(as_json(response))
    assert as_values(response) == sent
    return sent


def is_served_again(kb, *others, **fields):
    ask(kb, *others, **fields)
    return ask(kb, *others, **fields)["cached"]


# -- What is served again ------------------------------------------------------------------------------------------------
def test_the_same_search_is_served_again_with_the_trace_of_the_one_that_was_run(kb):
    first, again = ask(kb), ask(kb)
    assert (first["cached"], again["cached"]) == (False, True)
    changing = {"cached", "timings_ms"}
    assert {name: first[name] for name in first.keys() - changing} == {
        name: again[name] for name in again.keys() - changing
    }
    assert again["results"]
    assert again["degraded"]
    assert again["timings_ms"].keys() == {"total"}


def test_near_misses_are_served_again(kb, cut_at):
    cut_at(0.98)
    first, again = ask(kb), ask(kb)
    assert (first["cached"], again["cached"]) == (False, True)
    assert first["results"] == []
    assert again["near_misses"] == first["near_misses"] != []


def test_a_response_of_a_release_without_near_misses_is_not_found(kb, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(responses, "FORMAT", 3)
        ask(kb)
    assert not ask(kb)["cached"]


def test_a_hit_is_counted_and_not_logged(kb):
    hits = HOT_QUERIES.labels("memory", "hits")
    ask(kb)
    before = hits._value.get()
    ask(kb)
    assert hits._value.get() == before + 1
    assert SearchLog.objects.count() == 1


@pytest.mark.parametrize(
    "change",
    [
        {"query": "电源"},
        {"overrides": {"top_k": 1}},
        {"profile": "default"},
        {"filters": Filters.parse({"tags": ["a"]})},
    ],
    ids=str,
)
def test_another_search_is_run(kb, change):
    ask(kb)
    assert not ask(kb, **change)["cached"]
    assert ask(kb, **change)["cached"]


def test_no_filters_and_empty_ones_are_the_same(kb):
    ask(kb)
    assert ask(kb, filters=Filters.parse({}))["cached"]


def test_a_search_under_one_version_of_a_profile_is_served_again(kb):
    assert is_served_again(kb, profile="default", profile_version=1)


def test_a_latency_budget_asks_for_nothing_else(kb):
    ask(kb)
    assert ask(kb, latency_budget_ms=5_000)["cached"]


@pytest.mark.parametrize(
    "fields",
    [
        {"explain": True},
        {"history": (Turn("user", "温控器"),)},
        {"log": False},
    ],
    ids=str,
)
def test_some_searches_are_always_run(kb, fields):
    assert not is_served_again(kb, **fields)


def test_nothing_is_served_again_where_the_cache_is_switched_off(kb, settings):
    settings.CACHE_ENABLED = False
    assert not is_served_again(kb)


# -- What makes a response another one -----------------------------------------------------------------------------------
def test_a_changed_document_is_found_at_once(kb):
    assert is_served_again(kb)
    document = make_document(kb, "保修期可以延长")
    again = ask(kb)
    assert not again["cached"]
    assert document.pk in {result["document_id"] for result in again["results"]}


def test_a_new_version_of_a_named_profile_rules_at_once(kb):
    RetrievalProfile.objects.create(name="mine", version=1, settings={})
    assert is_served_again(kb, profile="mine")
    RetrievalProfile.objects.create(name="mine", version=2, settings={})
    assert ask(kb, profile="mine")["profile"]["version"] == 2


def test_a_version_that_is_published_meanwhile_serves_the_next_search(kb, monkeypatch):
    """The profile is read once, so a response and the key that it is cached under are of one version."""
    first = RetrievalProfile.objects.create(name="mine", version=1, settings={"top_k": 1}, published=True)
    second = RetrievalProfile.objects.create(name="mine", version=2, settings={"top_k": 2})
    root = principal(make_user(superuser=True))
    real = responses.search

    def published_first(*arguments):
        publish(root, second)
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(responses, "search", published_first)
        found = ask(kb, profile="mine")
    assert (found["profile"]["version"], len(found["results"])) == (1, 1)
    found = ask(kb, profile="mine")
    assert (found["profile"]["version"], found["cached"]) == (2, False)
    publish(root, first)
    assert ask(kb, profile="mine")["profile"]["version"] == 1


def test_bases_of_several_profiles_depend_on_the_default_one_too(kb):
    other = make_kb(owner=kb.owner)
    KnowledgeBase.objects.filter(pk=other.pk).update(profile=RetrievalProfile.objects.get(name="default"))
    assert is_served_again(kb, other)
    RetrievalProfile.objects.filter(name="default").update(published=False)
    RetrievalProfile.objects.create(name="default", version=2, settings={"top_k": 1}, published=True)
    again = ask(kb, other)
    assert (again["cached"], again["profile"]["version"]) == (False, 2)


@pytest.mark.parametrize(
    "change", [("RERANKER_MODEL", "some/model"), ("LLM_API_KEY", "another"), ("RETRIEVAL", {"rrf_k": 10})]
)
def test_another_environment_runs_the_search_again(kb, settings, change):
    assert is_served_again(kb)
    name, value = change
    setattr(settings, name, {**settings.RETRIEVAL, **value} if name == "RETRIEVAL" else value)
    assert not ask(kb)["cached"]


def test_a_search_that_a_fault_has_made_worse_is_run_again(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="BAAI/not-here")
    assert not is_served_again(kb)


# -- Who is served -------------------------------------------------------------------------------------------------------
def test_another_member_is_served_the_same_response(kb):
    trace_id = ask(kb)["trace_id"]
    served = ask(kb, who=make_member(kb))
    assert (served["cached"], served["trace_id"]) == (True, trace_id)


def test_who_may_not_search_there_is_not_served(kb):
    member = make_member(kb)
    assert is_served_again(kb, who=member)
    kb.memberships.all().delete()
    for who in (member, make_user()):
        with pytest.raises(NotVisible, match=str(kb.pk)):
            ask(kb, who=who)


def test_a_key_for_another_base_is_not_served(kb):
    ask(kb)
    request = SearchRequest(query="保修期", knowledge_base_ids=[kb.pk])
    with pytest.raises(NotVisible):
        respond(principal(kb.owner, kb_ids=frozenset({kb.pk + 1})), request)


def test_a_search_that_cannot_be_run_is_refused_as_ever(kb):
    for _ in range(2):
        with pytest.raises(InvalidConfiguration):
            ask(kb, overrides={"top_k": 0})
        with pytest.raises(NotVisible, match="nobodys"):
            ask(kb, profile="nobodys")
        with pytest.raises(NotVisible):
            respond(principal(kb.owner), SearchRequest(query="x", knowledge_base_ids=[]))


# -- Redis ---------------------------------------------------------------------------------------------------------------
def codes(response):
    return [each["code"] for each in response["degraded"]]


@pytest.fixture
def redis_at(settings):
    def move(url):
        settings.CACHES = {**settings.CACHES, "bm25": {**settings.CACHES["bm25"], "LOCATION": url}}

    return move


@pytest.mark.parametrize(("query", "lasting"), [("保修期", ["hashing_embedder"]), (" ", [])])
def test_that_redis_is_away_is_said_while_it_is_so_and_keeps_no_response_from_being_kept(
    kb, settings, redis_at, query, lasting
):
    there = settings.CACHES["bm25"]["LOCATION"]
    redis_at("redis://127.0.0.1:1/0")
    ask(kb, query="only to notice that Redis is away")
    first, again = ask(kb, query=query), ask(kb, query=query)
    redis_at(there)
    later = ask(kb, query=query)
    assert (first["cached"], codes(first)) == (False, [*lasting, "shared_cache_unavailable"])
    assert (again["cached"], codes(again)) == (True, [*lasting, "shared_cache_unavailable"])
    assert (later["cached"], codes(later)) == (True, lasting)


# -- Where a response is kept --------------------------------------------------------------------------------------------
def kept(kb, *others, who=None, query="保修期", **fields):
    ids = [each.pk for each in (kb, *others)]
    request = SearchRequest(query=query, knowledge_base_ids=ids, explain=True, **fields)
    return tier_that_answers(search(principal(who or kb.owner), request))


def test_an_explained_search_knows_whether_the_response_to_the_same_is_kept(kb):
    before = kept(kb)
    ask(kb)

    assert (before, kept(kb), kept(kb, query="电源")) == (None, "memory", None)


def test_a_response_that_another_process_made_is_kept_in_the_shared_tier(kb):
    ask(kb)
    query_caches._hot_queries.cache_clear()

    assert kept(kb) == "shared"


@pytest.mark.parametrize("fields", [{"profile": "balanced"}, {"overrides": {"top_k": 3}}], ids=["profile", "overrides"])
def test_profile_and_settings_are_those_of_the_response(kb, fields):
    ask(kb, **fields)

    assert kept(kb, **fields) == "memory"
    assert kept(kb) is None


def test_the_response_over_knowledge_bases_with_several_profiles_is_found(kb):
    other = make_kb(kb.owner)
    balanced = RetrievalProfile.objects.live("balanced")
    KnowledgeBase.objects.filter(pk=other.pk).update(profile=balanced)
    ask(kb, other)

    assert kept(kb, other) == "memory"


def test_looking_is_not_counted(kb):
    ask(kb)
    hits = HOT_QUERIES.labels("memory", "hits")
    before = hits._value.get()

    kept(kb)

    assert hits._value.get() == before


def test_nothing_is_kept_where_the_cache_is_off(kb, settings):
    ask(kb)
    settings.CACHE_ENABLED = False

    assert kept(kb) is None
