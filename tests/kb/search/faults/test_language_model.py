"""A chat model that cannot rewrite the query costs the rewriting, and nothing that is found without it."""

import pytest

from kb.providers import embedding_models as providers
from retrieval.execution import FAILURES_TO_OPEN, SECONDS_OPEN, CircuitBreaker
from retrieval.types import Turn
from tests.kb.search.faults.searches import AT_ONCE, POWER, QUERY, ask, notes, texts
from tests.servers import Reply

ALWAYS = {"rewrite": "always"}
BROKEN = Reply(status=500, headers=AT_ONCE)

FAULTS = {
    "an error": (BROKEN, "llm_unavailable"),
    "a refused key": (Reply(status=401), "llm_unavailable"),
    "a refused request": (Reply(status=400), "llm_unavailable"),
    "a connection cut off": (Reply(break_after=0), "llm_unavailable"),
    "prose": (Reply(content="Certainly! Here is the query you asked for."), "llm_unusable"),
    "half of an object": (Reply(content='{"query": "保修'), "llm_unusable"),
    "an object of another form": (Reply(content='{"rewritten": "保修期"}'), "llm_unusable"),
    "a list": (Reply(content='["保修期"]'), "llm_unusable"),
    "no text": (Reply(content='{"query": 7}'), "llm_unusable"),
    "an endless text": (Reply(content='{"query": "' + "长" * 100_000 + '"}'), "llm_unusable"),
    "nothing": (Reply(content=""), "llm_unusable"),
    "another protocol": (Reply(raw=b"<html>"), "llm_unusable"),
}


@pytest.fixture
def llm(models, settings):
    settings.LLM_BASE_URL, settings.LLM_BASE_URL_IS_SET = models.base_url, True
    settings.LLM_API_KEY, settings.LLM_MODEL = "", "chat"
    providers.generator().complete([Turn("user", "hello")], timeout_s=60)  # the first time imports for seconds
    return models


@pytest.fixture
def hasty(settings):
    """Must come before anything is searched: a process makes its rewriter once."""
    settings.LLM_REWRITE_SECONDS = 0.2


@pytest.fixture
def without(kb, llm):
    """The result of a search that asks no chat model."""
    return ask(kb, overrides={"rewrite": "off"})


def assert_as_without(result, without):
    assert texts(result) == texts(without)
    assert [hit.scores for hit in result.hits] == [hit.scores for hit in without.hits]
    assert result.analysis.queries == without.analysis.queries


def test_a_language_model_that_is_well_rewrites_the_query(kb, llm):
    llm.always("chat", Reply(content='{"query": "安装前要关闭电源吗", "sub_queries": []}'))

    result = ask(kb, overrides=ALWAYS)

    assert (notes(result), texts(result)[0]) == ([], POWER)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_language_model_that_answers_with(fault, kb, llm, without):
    reply, code = FAULTS[fault]
    llm.always("chat", reply)

    result = ask(kb, overrides=ALWAYS)

    assert notes(result) == [("analysis", code)]
    assert_as_without(result, without)


def test_a_language_model_that_is_not_there(kb, llm, without, settings):
    settings.LLM_BASE_URL = "http://127.0.0.1:9"  # where nothing listens

    result = ask(kb, overrides=ALWAYS)

    assert notes(result) == [("analysis", "llm_unavailable")]
    assert_as_without(result, without)


def test_a_language_model_that_hangs(hasty, kb, llm, without):
    llm.always("chat", Reply(hang=True))

    result = ask(kb, overrides=ALWAYS)

    assert notes(result) == [("analysis", "llm_timeout")]
    assert_as_without(result, without)


def test_a_language_model_that_trickles(hasty, kb, llm, without):
    llm.always("chat", Reply(trickle_s=0.02))

    result = ask(kb, overrides=ALWAYS)

    assert notes(result) == [("analysis", "llm_timeout")]
    assert_as_without(result, without)


def test_no_language_model_where_one_is_asked_for(kb, without, settings):
    settings.LLM_BASE_URL_IS_SET = False

    result = ask(kb, overrides=ALWAYS)

    assert notes(result) == [("analysis", "llm_not_configured")]
    assert_as_without(result, without)


def test_a_language_model_that_fails_again_and_again_is_left_alone_until_it_is_well(kb, llm, without, clock):
    providers.generator()._guard.breaker = CircuitBreaker(clock=clock)
    before = llm.calls["chat"]
    llm.once("chat", *[BROKEN] * 2 * FAILURES_TO_OPEN)  # each search tries twice
    for _ in range(FAILURES_TO_OPEN):
        assert notes(ask(kb, overrides=ALWAYS)) == [("analysis", "llm_unavailable")]

    result = ask(kb, overrides=ALWAYS)

    assert notes(result) == [("analysis", "model_circuit_open")]
    assert_as_without(result, without)
    assert llm.calls["chat"] == before + 2 * FAILURES_TO_OPEN
    clock.now += SECONDS_OPEN
    llm.always("chat", Reply(content=f'{{"query": "{QUERY}"}}'))
    assert notes(ask(kb, overrides=ALWAYS)) == []
