"""A reranker that fails hands over to the next link of the chain, which answers as if it were the first."""

import json
import math
import os
import threading
import time
from importlib.util import find_spec

import pytest

from kb.profiles.services import environment_config
from kb.providers import embedding_models as providers
from retrieval.execution import FAILURES_TO_OPEN, SECONDS_OPEN, CircuitBreaker
from retrieval.rerankers.chain import RerankChain
from retrieval.rerankers.cross_encoder import HttpReranker, get_cross_encoder
from retrieval.rerankers.overlap import OverlapReranker
from tests.kb.search.faults.searches import WARRANTY, ask, notes, texts
from tests.retrieval.rerankers.tiny import save_tiny_model
from tests.servers import Reply

needs_torch = pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs the 'models' extra")


@pytest.fixture
def impatient(monkeypatch):
    """A search whose channels take however long they need, and which then has little time left for the rerankers."""
    rerank = RerankChain.rerank
    monkeypatch.setattr(
        RerankChain,
        "rerank",
        lambda chain, job, deadline: rerank(chain, job, min(deadline, time.monotonic() + 0.5)),
    )


@pytest.fixture
def without(kb):
    """What the chain answers without the reranker."""
    return ask(kb)


@pytest.fixture
def http(kb, models, settings):
    settings.RERANK_BASE_URL = models.base_url
    return models


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def hanging(tiny, settings):
    """A loaded cross-encoder whose every forward pass hangs until the end of the test."""
    from sentence_transformers import CrossEncoder
    from torch.nn.modules.module import register_module_forward_pre_hook

    released = threading.Event()
    hook = register_module_forward_pre_hook(
        lambda module, _: released.wait() if isinstance(module, CrossEncoder) else None
    )
    settings.RERANKER_MODEL = str(tiny)
    yield get_cross_encoder(settings.RERANKER_MODEL)
    released.set()
    hook.remove()


def assert_next_link_answers(result, without):
    assert result.score_scale == without.score_scale == "overlap"
    assert texts(result) == texts(without)
    assert [hit.score for hit in result.hits] == [hit.score for hit in without.hits]


# -- Cross-encoders --------------------------------------------------------------------------------------------------
def test_a_cross_encoder_that_is_not_here(kb, without, settings, tmp_path):
    settings.RERANKER_MODEL = str(tmp_path / "not-here")

    result = ask(kb)

    assert notes(result) == [("rerank", "reranker_unavailable")]
    assert_next_link_answers(result, without)


@needs_torch
def test_a_cross_encoder_whose_files_are_damaged(kb, without, settings, tmp_path):
    folder = save_tiny_model(tmp_path / "damaged")
    os.truncate(folder / "model.safetensors", 100)
    settings.RERANKER_MODEL = str(folder)

    result = ask(kb)

    assert notes(result) == [("rerank", "reranker_unavailable")]
    assert_next_link_answers(result, without)


@needs_torch
def test_a_cross_encoder_whose_scores_are_nan(kb, without, settings, tmp_path):
    settings.RERANKER_MODEL = str(save_tiny_model(tmp_path / "nan", weights=math.nan))

    result = ask(kb)

    assert notes(result) == [("rerank", "reranker_failed")]
    assert_next_link_answers(result, without)


@needs_torch
def test_a_cross_encoder_that_hangs(kb, without, hanging, impatient):
    providers.load([], [hanging])

    result = ask(kb)

    assert notes(result) == [("rerank", "reranker_timeout")]
    assert_next_link_answers(result, without)


def test_every_link_that_fails_is_told_of(kb, models, settings, tmp_path):
    settings.RERANKER_MODEL = str(tmp_path / "not-here")
    settings.RERANK_BASE_URL = models.base_url
    models.always("rerank", Reply(raw=b"<html>"))

    result = ask(kb)

    assert notes(result) == [("rerank", "reranker_unavailable"), ("rerank", "reranker_failed")]
    assert texts(result)


def test_a_chain_of_which_no_link_answers_leaves_the_cosines_of_the_vectors(kb, settings, tmp_path):
    settings.RERANKER_MODEL = str(tmp_path / "not-here")

    result = ask(kb, overrides={"rerankers": ["cross_encoder"]})

    assert notes(result) == [("rerank", "reranker_unavailable")]
    assert result.score_scale == "cosine"
    assert texts(result)[0] == WARRANTY


def test_a_threshold_that_is_meant_for_the_reranker_is_not_held_against_the_next_links_scores(kb, settings, tmp_path):
    usual = ask(kb, overrides={"score_threshold": None})
    settings.RERANKER_MODEL = str(tmp_path / "not-here")

    result = ask(kb, overrides={"score_threshold": 0.999})

    assert notes(result) == [("rerank", "reranker_unavailable"), ("gate", "threshold_not_applied")]
    assert texts(result) == texts(usual)
    assert WARRANTY in texts(result)


# -- HTTP ------------------------------------------------------------------------------------------------------------
ROWS = [{"index": place, "relevance_score": 0.5} for place in range(50)]
FAULTS = {
    "an error": (Reply(status=500), "reranker_unavailable"),
    "a refusal": (Reply(status=401), "reranker_unavailable"),
    "a lost connection": (Reply(break_after=0), "reranker_unavailable"),
    "too few scores": (Reply(content=[0.5]), "reranker_failed"),
    "too many scores": (Reply(raw=json.dumps({"results": ROWS}).encode()), "reranker_failed"),
    "NaN": (Reply(content=lambda body: [math.nan] * len(body["documents"])), "reranker_failed"),
    "logits": (Reply(content=lambda body: [7.5] * len(body["documents"])), "reranker_failed"),
    "garbage": (Reply(raw=b"<html>"), "reranker_failed"),
    "another form": (Reply(raw=b'{"scores": [0.5]}'), "reranker_failed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rerank_server_that_answers_with(fault, kb, without, http):
    reply, code = FAULTS[fault]
    http.always("rerank", reply)

    result = ask(kb)

    assert notes(result) == [("rerank", code)]
    assert_next_link_answers(result, without)


def test_a_rerank_server_that_is_not_there(kb, without, http, settings):
    settings.RERANK_BASE_URL = "http://127.0.0.1:9"  # where nothing listens

    result = ask(kb)

    assert notes(result) == [("rerank", "reranker_unavailable")]
    assert_next_link_answers(result, without)


def test_a_rerank_server_that_hangs(kb, without, http, impatient):
    http.always("rerank", Reply(hang=True))

    result = ask(kb)

    assert notes(result) == [("rerank", "reranker_timeout")]
    assert_next_link_answers(result, without)


def test_a_rerank_server_that_fails_again_and_again_is_left_alone_until_it_is_well(kb, without, http, settings, clock):
    (link,) = (
        each
        for each in providers.rerankers(environment_config(), OverlapReranker({}))
        if isinstance(each, HttpReranker)
    )
    link._guard.breaker = CircuitBreaker(clock=clock)
    http.once("rerank", *[Reply(status=500)] * FAILURES_TO_OPEN)
    for _ in range(FAILURES_TO_OPEN):
        assert notes(ask(kb)) == [("rerank", "reranker_unavailable")]

    result = ask(kb)

    assert notes(result) == [("rerank", "model_circuit_open")]
    assert_next_link_answers(result, without)
    assert http.calls["rerank"] == FAILURES_TO_OPEN
    clock.now += SECONDS_OPEN
    assert (notes(ask(kb)), ask(kb).score_scale) == ([], "cross_encoder")
