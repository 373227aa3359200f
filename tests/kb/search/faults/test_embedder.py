"""An embedding model that fails costs the vectors, never the answer: keywords find what they would have found."""

import math

import pytest

from retrieval.execution import FAILURES_TO_OPEN, SECONDS_OPEN
from tests.interleaving import until
from tests.kb.search.faults.searches import (
    AT_ONCE,
    DIMENSION,
    QUERY,
    WARRANTY,
    ask,
    channels,
    embedder_breaker,
    notes,
    of_letters,
    texts,
)
from tests.servers import Reply

BROKEN = Reply(status=500, headers=AT_ONCE)
HANGS = Reply(content=of_letters, hang=True)
IMPATIENT = {"vector_timeout_ms": 200}


def vectors_of(*numbers):
    return Reply(content=lambda body: [list(numbers) for _ in body["input"]])


FAULTS = {
    "an error": (BROKEN, "model_unavailable"),
    "a refusal": (Reply(status=401), "model_unavailable"),
    "a lost connection": (Reply(break_after=0), "model_unavailable"),
    "NaN": (vectors_of(math.nan, *[0.5] * (DIMENSION - 1)), "embedder_failed"),
    "infinity": (vectors_of(math.inf, *[0.5] * (DIMENSION - 1)), "embedder_failed"),
    "zeros": (vectors_of(*[0.0] * DIMENSION), "embedder_failed"),
    "the wrong dimension": (vectors_of(*[0.5] * (DIMENSION - 1)), "embedder_failed"),
    "no vector": (Reply(content=[]), "embedder_failed"),
    "garbage": (Reply(raw=b"<html>"), "embedder_failed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_embedder_that_answers_with(fault, kb, models):
    reply, code = FAULTS[fault]
    models.always("embeddings", reply)

    result = ask(kb)

    assert notes(result) == [("vector", code)]
    assert texts(result)[0] == WARRANTY
    assert "vector" not in channels(result)
    assert result.score_scale == "overlap"


def test_the_wrong_dimension_from_the_start_of_a_process(kb, models, settings):
    settings.EMBEDDING_API_KEY = "of another client, which has not seen a right one yet"
    models.always("embeddings", vectors_of(*[0.5] * (DIMENSION - 1)))

    result = ask(kb)

    assert notes(result) == [("vector", "embedder_failed")]
    assert texts(result)[0] == WARRANTY


def test_an_embedder_that_is_not_there(kb, models):
    models.stop()

    result = ask(kb)

    assert notes(result) == [("vector", "model_unavailable")]
    assert texts(result)[0] == WARRANTY


def test_an_embedder_that_hangs(kb, models, begun):
    models.always("embeddings", HANGS)

    result = ask(kb, overrides=IMPATIENT)

    assert notes(result) == [("vector", "embedder_timeout")]
    assert texts(result)[0] == WARRANTY
    assert "vector" not in channels(result)


def test_a_vector_that_came_too_late_serves_the_next_search(kb, models, begun):
    models.always("embeddings", HANGS)
    ask(kb, overrides=IMPATIENT)
    models.release()

    result = ask(kb)

    assert notes(result) == []
    assert "vector" in channels(result)


def test_vectors_that_are_cached_need_no_embedder(kb, models):
    before = ask(kb)
    models.always("embeddings", BROKEN)

    result = ask(kb)

    assert notes(result) == []
    assert texts(result) == texts(before)


# -- Repeatedly ------------------------------------------------------------------------------------------------------
def test_an_embedder_that_fails_again_and_again_is_left_alone_for_a_while(kb, models, clock):
    embedder_breaker(clock)
    models.always("embeddings", BROKEN)
    for _ in range(FAILURES_TO_OPEN):
        assert notes(ask(kb)) == [("vector", "model_unavailable")]
    asked = models.calls["embeddings"]

    result = ask(kb)

    assert notes(result) == [("vector", "model_circuit_open")]
    assert texts(result)[0] == WARRANTY
    assert models.calls["embeddings"] == asked


def test_an_embedder_that_hangs_again_and_again_is_left_alone_for_a_while(kb, models, clock, begun):
    breaker = embedder_breaker(clock, patience_s=0.0)
    models.always("embeddings", HANGS)
    before = models.calls["embeddings"]
    for number in range(FAILURES_TO_OPEN):
        found = notes(ask(kb, query=f"{QUERY}{number}", overrides=IMPATIENT))
        assert found == [("vector", "embedder_timeout")]
    until(lambda: not breaker.allows())
    until(lambda: models.calls["embeddings"] == before + FAILURES_TO_OPEN)
    asked = models.calls["embeddings"]

    result = ask(kb)

    assert notes(result) == [("vector", "model_circuit_open")]
    assert texts(result)[0] == WARRANTY
    assert models.calls["embeddings"] == asked


def test_an_embedder_that_is_well_again_is_asked_again(kb, models, clock):
    embedder_breaker(clock)
    models.once("embeddings", *[BROKEN] * 2 * FAILURES_TO_OPEN)  # each search tries twice
    for _ in range(FAILURES_TO_OPEN):
        ask(kb)
    assert notes(ask(kb)) == [("vector", "model_circuit_open")]
    clock.now += SECONDS_OPEN

    result = ask(kb)

    assert notes(result) == []
    assert "vector" in channels(result)


def test_an_embedder_that_is_still_ill_after_the_pause_is_left_alone_for_another(kb, models, clock):
    embedder_breaker(clock)
    models.always("embeddings", BROKEN)
    for _ in range(FAILURES_TO_OPEN):
        ask(kb)
    clock.now += SECONDS_OPEN

    assert notes(ask(kb)) == [("vector", "model_unavailable")]
    assert notes(ask(kb)) == [("vector", "model_circuit_open")]
