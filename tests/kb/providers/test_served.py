"""Rows asked at real servers: which model answers, what stays within the guard, and what a fault leaves."""

import json
import logging

import httpx
import httpx2
import numpy as np
import pytest

from kb.providers import clients, endpoints
from kb.providers.clients import http_client, openai_client
from kb.providers.embedding_models import embedder, generator, query_vectors, rerankers, vision_model
from kb.providers.endpoints import Endpoint, endpoint_of
from kb.providers.models import ProviderModel
from kb.providers.recommended import Role
from kb.providers.services import provider_model_create, provider_model_set_default, provider_model_update
from kb.search.services.search import SearchRequest, respond, search
from retrieval.config import RetrievalConfig
from retrieval.errors import DegradationCode, GenerationFailed, ModelUnavailable
from retrieval.rerankers.overlap import OverlapReranker
from retrieval.types import Turn
from tests.factories import make_document, make_kb, make_user, principal
from tests.servers import ModelServer, Reply

KEY = "sk-very-secret-0123456789"
TURNS = [Turn(role="user", text="How many days?")]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("english")]


@pytest.fixture(autouse=True)
def no_environment(settings):
    settings.EMBEDDING_MODEL = "hashing"
    settings.RERANKER_MODEL = settings.RERANK_BASE_URL = settings.VISION_MODEL = settings.LLM_API_KEY = ""
    settings.LLM_BASE_URL_IS_SET = False
    settings.CACHE_ENABLED = False


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


@pytest.fixture
def root():
    return make_user("root", superuser=True)


def create(user, server, role, name="Ours", **fields):
    given = {"provider": "openai", "model": "one", "base_url": server.base_url, "api_key": KEY, "allows_private": True}
    return provider_model_create(user=user, role=role, name=name, **given | fields)


def space(row):
    return endpoint_of(row).id


# -- Each role ---------------------------------------------------------------------------------------------------------
def test_an_embedding_model_is_asked_as_its_row_says(root, server):
    options = {"batch_size": 2, "dimensions": 16, "query_prompt": "Q: ", "document_prompt": "D: "}
    row = create(root, server, Role.EMBEDDING, options=options)
    model = embedder(space(row))

    assert model.model_id == f"model:{row.slug}"
    assert model.embed_documents(["a", "b", "c"]).shape[0] == 3
    model.embed_query("a")
    first, second, query = (request.body for request in server.requests)
    assert (first["model"], first["dimensions"], first["input"]) == ("one", 16, ["D: a", "D: b"])
    assert (second["input"], query["input"]) == (["D: c"], ["Q: a"])
    assert {request.headers["Authorization"] for request in server.requests} == {f"Bearer {KEY}"}


def test_a_search_uses_the_rows_of_its_roles(root, server):
    embedding, reranker = create(root, server, Role.EMBEDDING), create(root, server, Role.RERANK)
    kb = make_kb(root, embedding_model=space(embedding))
    make_document(kb, "Holidays are thirty days.", "The canteen opens at noon.")

    found = search(principal(root), SearchRequest(query="holidays", knowledge_base_ids=(kb.pk,)))

    assert found.result.score_scale == "cross_encoder"
    assert [each.code for each in found.result.degraded if each.stage in {"vector", "rerank"}] == []
    assert server.calls["rerank"] == 1
    assert server.requests[-1].body["model"] == reranker.model
    assert found.result.hits[0].passage.text.startswith("Holidays")


def test_a_chat_model_is_asked_with_its_fields_and_temperature(root, server):
    row = create(root, server, Role.CHAT, options={"temperature": 0.7, "fields": {"enable_thinking": False}})
    own = create(root, server, Role.CHAT, "Reasoner", model="two", options={"temperature": None})

    generator().complete(TURNS, timeout_s=5)
    assert "".join(generator(own.slug).stream(TURNS, timeout_s=5))
    first, second = (request.body for request in server.requests)
    assert (first["model"], first["temperature"], first["enable_thinking"]) == (row.model, 0.7, False)
    assert (second["model"], second["stream"], "temperature" in second) == ("two", True, False)


def test_pictures_go_to_a_chat_model_that_takes_them(root, server, settings):
    create(root, server, Role.CHAT)
    assert vision_model() is None
    create(root, server, Role.CHAT, "Sees", model="seeing", options={"vision": True})
    assert vision_model().model == "seeing"

    settings.VISION_MODEL, settings.LLM_API_KEY = "of-the-environment", "sk"
    assert vision_model().model == "of-the-environment"


# -- Changes -----------------------------------------------------------------------------------------------------------
def test_a_change_by_another_process_arrives_with_the_next_reading(root, server, monkeypatch):
    row = create(root, server, Role.CHAT)
    assert generator().model == "one"
    # A statement of another process: no signal of this one tells of it.
    ProviderModel.objects.filter(pk=row.pk).update(model="two")
    assert generator().model == "one"

    monkeypatch.setattr(endpoints, "ROWS_SECONDS", -1.0)
    assert generator().model == "two"


def test_rows_are_read_once_for_many_searches(root, server, django_assert_num_queries, monkeypatch):
    monkeypatch.setattr(endpoints, "ROWS_SECONDS", 60.0)
    create(root, server, Role.CHAT)
    generator()
    query_vectors("hashing")  # which reads who this installation is
    with django_assert_num_queries(0):
        for _ in range(10):
            generator()
            rerankers(RetrievalConfig(), OverlapReranker({}))
            query_vectors("hashing")


def test_the_breaker_of_a_model_stays_when_another_becomes_the_default(root, server):
    first = create(root, server, Role.CHAT)
    other, before = create(root, server, Role.CHAT, "Other"), generator(first.slug)
    provider_model_set_default(other, user=root)
    assert generator(first.slug) is before


def test_a_cached_response_is_not_served_for_another_reranker(root, server, settings):
    settings.CACHE_ENABLED = True
    row = create(root, server, Role.RERANK)
    kb = make_kb(root)
    make_document(kb, "Holidays are thirty days.")
    search_again(root, kb)
    provider_model_update(row, user=root, model="two")
    search_again(root, kb)
    assert [request.body["model"] for request in server.requests] == ["one", "two"]


def search_again(user, kb):
    return respond(principal(user), SearchRequest(query="holidays", knowledge_base_ids=(kb.pk,)))


# -- Faults ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=401),
        Reply(status=500),
        Reply(status=429, headers={"Retry-After": "600"}),
        Reply(raw=b"<html>no</html>"),
        Reply(content=[[float("nan")] * 4]),
        Reply(content=[[1.0, 0.0], [0.0, 1.0]]),
        Reply(hang=True),
    ],
    ids=["401", "500", "429", "garbage", "nan", "two for one", "hang"],
)
def test_a_query_without_its_model_says_so_and_takes_no_other(root, server, reply):
    row = create(root, server, Role.EMBEDDING)
    kb = make_kb(root, embedding_model=space(row))
    make_document(kb, "Holidays are thirty days.")
    server.always("embeddings", reply)

    found = search(principal(root), SearchRequest(query="holidays", knowledge_base_ids=(kb.pk,), latency_budget_ms=800))

    assert {each.code for each in found.result.degraded if each.stage == "vector"} & {
        DegradationCode.MODEL_UNAVAILABLE,
        DegradationCode.EMBEDDER_FAILED,
        DegradationCode.EMBEDDER_TIMEOUT,
    }
    assert "vector" not in found.result.hits[0].ranks
    assert "bm25" in found.result.hits[0].ranks


def test_vectors_of_another_dimension_are_not_compared(root, server):
    row = create(root, server, Role.EMBEDDING)
    kb = make_kb(root, embedding_model=space(row))
    make_document(kb, "Holidays are thirty days.")
    server.always("embeddings", Reply(content=lambda body: [[1.0, 0.0, 0.0] for _ in body["input"]]))

    found = search(principal(root), SearchRequest(query="holidays", knowledge_base_ids=(kb.pk,)))

    assert [each.stage for each in found.result.degraded if each.stage == "vector"]


@pytest.mark.parametrize("change", ["gone", "off", "key"])
def test_a_row_that_cannot_be_used_degrades_and_names_the_remedy(root, server, settings, change):
    row = create(root, server, Role.EMBEDDING)
    model = space(row)
    kb = make_kb(root, embedding_model=model)
    make_document(kb, "Holidays are thirty days.")
    if change == "gone":
        ProviderModel.objects.all().delete()
    elif change == "off":
        ProviderModel.objects.update(is_enabled=False)
    else:
        settings.SECRET_KEY = "another one"
    endpoints.forget()
    asked = server.calls["embeddings"]

    found = search(principal(root), SearchRequest(query="holidays", knowledge_base_ids=(kb.pk,)))

    [fault] = [each for each in found.result.degraded if each.stage == "vector"]
    assert fault.code == DegradationCode.MODEL_UNAVAILABLE
    assert {"gone": "choose another one", "off": "switch it on", "key": "enter it again"}[change] in fault.detail
    assert server.calls["embeddings"] == asked


def test_a_default_reranker_that_is_down_leaves_the_order_to_the_next_link(root, server):
    create(root, server, Role.RERANK)
    kb = make_kb(root)
    make_document(kb, "Holidays are thirty days.")
    server.stop()

    found = search(principal(root), SearchRequest(query="holidays", knowledge_base_ids=(kb.pk,)))

    [fault] = [each for each in found.result.degraded if each.stage == "rerank"]
    assert fault.code == DegradationCode.RERANKER_UNAVAILABLE
    assert "“Ours” under System, Models" in fault.detail
    assert found.result.score_scale == "overlap"


def test_a_default_row_takes_the_place_of_the_environment_s_rerankers(root, server, settings):
    settings.RERANKER_MODEL, settings.RERANK_BASE_URL = "BAAI/bge-reranker-base", "http://127.0.0.1:9"
    row = create(root, server, Role.RERANK)
    provider_model_set_default(row, user=root)
    links = rerankers(RetrievalConfig(rerankers=["cross_encoder", "http", "overlap"]), OverlapReranker({}))
    assert [(link.name, getattr(link, "model_id", "")) for link in links] == [
        ("http", f"model:{row.slug}"),
        ("overlap", ""),
    ]


def test_a_cut_stream_is_told_and_no_key_with_it(root, server, caplog):
    create(root, server, Role.CHAT)
    server.once("chat", Reply("It is in the handbook.", break_after=1), Reply(status=401, raw=f"no {KEY}".encode()))

    with caplog.at_level(logging.DEBUG):
        with pytest.raises(GenerationFailed) as cut:
            list(generator().stream(TURNS, timeout_s=5))
        with pytest.raises(GenerationFailed) as refused:
            generator().complete(TURNS, timeout_s=5)
    assert cut.value.code == DegradationCode.LLM_STREAM_BROKEN
    assert "“Ours” under System, Models" in str(refused.value)
    assert KEY not in caplog.text + str(refused.value)


@pytest.mark.parametrize("role", [Role.EMBEDDING, Role.RERANK])
def test_a_server_that_repeats_the_key_is_not_quoted_with_it(root, server, role):
    row = create(root, server, role)
    kb = make_kb(root, embedding_model=space(row) if role == Role.EMBEDDING else "hashing")
    make_document(kb, "Holidays are thirty days.")
    body = json.dumps({"error": f"the key {KEY} is wrong"}).encode()
    server.always("embeddings" if role == Role.EMBEDDING else "rerank", Reply(status=401, raw=body))

    found = search(principal(root), SearchRequest(query="holidays", knowledge_base_ids=(kb.pk,), explain=True))

    details = [each.detail for each in found.result.degraded]
    assert any("***" in detail for detail in details)
    assert KEY not in str(details)


def port_of(server):
    return httpx.URL(server.root_url).port


# -- The guard ---------------------------------------------------------------------------------------------------------
PUBLIC_ROW = Endpoint(Role.CHAT, "openai", "one", "http://models.example.org/v1", slug="one-1")
CONFIRMED = Endpoint(Role.CHAT, "openai", "one", "http://models.example.org/v1", slug="one-1", allows_private=True)


@pytest.fixture
def resolves(monkeypatch):
    """Has the guard find these addresses for any host, each time the next ones."""

    def answer(*answers):
        left = list(answers)

        def resolver(_host, _port):
            return left.pop(0) if len(left) > 1 else left[0]

        for name in ("PUBLIC", "PRIVATE"):
            guard = getattr(clients, name)
            monkeypatch.setattr(clients, name, type(guard)(guard.allowed, resolver, guard.ports))

    return answer


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.8", "fd12::1", "::ffff:192.168.1.1"])
def test_a_private_address_is_not_connected_to_unless_confirmed(server, resolves, library, address):
    resolves([address])
    client = (http_client if library is httpx else openai_client)(PUBLIC_ROW)
    with pytest.raises(library.ConnectError, match="private address"):
        client.get(f"http://models.example.org:{port_of(server)}/v1/models")
    assert not server.requests


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fe80::1", "0.0.0.0"],
)
def test_metadata_of_a_cloud_is_never_connected_to(resolves, library, address):
    resolves([address])
    client = (http_client if library is httpx else openai_client)(CONFIRMED)
    with pytest.raises(library.ConnectError, match="where no model can be"):
        client.get("http://models.example.org/latest/meta-data/")


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_the_address_that_was_checked_is_connected_to(server, resolves, library):
    """A name that leads elsewhere at the second question is asked once a connection."""
    resolves(["127.0.0.1"], ["169.254.169.254"])
    client = (http_client if library is httpx else openai_client)(CONFIRMED)
    assert client.get(f"http://models.example.org:{port_of(server)}/anything").status_code == 404


def test_one_address_of_several_that_is_not_allowed_refuses_all(server, resolves):
    resolves(["203.0.114.7", "127.0.0.1"])
    with pytest.raises(httpx.ConnectError, match="private address"):
        http_client(PUBLIC_ROW).get(f"http://models.example.org:{port_of(server)}/")
    assert not server.requests


def test_a_redirect_is_not_followed(root, server):
    row = create(root, server, Role.EMBEDDING)
    location = "http://169.254.169.254/latest"
    server.always("embeddings", Reply(status=307, raw=b"", headers={"Location": location}))
    with pytest.raises(ModelUnavailable, match="HTTP 307"):
        embedder(space(row)).embed_query("a")

    chat = create(root, server, Role.CHAT)
    server.always("chat", Reply(status=307, raw=b"", headers={"Location": location}))
    with pytest.raises(GenerationFailed, match="HTTP 307"):
        generator(chat.slug).complete(TURNS, timeout_s=5)


@pytest.mark.parametrize("role", [Role.EMBEDDING, Role.CHAT, Role.RERANK])
def test_a_refused_address_is_told_with_its_remedy(root, server, resolves, role):
    row = create(root, server, role, base_url="https://203.0.114.7/v1")
    resolves(["10.0.0.8"])
    ProviderModel.objects.update(allows_private=False)
    endpoints.forget()
    kb = make_kb(root)
    make_document(kb, "Holidays are thirty days.")

    if role == Role.EMBEDDING:
        with pytest.raises(ModelUnavailable, match="Let a superuser confirm it"):
            embedder(space(row)).embed_query("a")
    elif role == Role.CHAT:
        with pytest.raises(GenerationFailed, match="Let a superuser confirm it"):
            generator().complete(TURNS, timeout_s=5)
    else:
        found = search(principal(root), SearchRequest(query="holidays", knowledge_base_ids=(kb.pk,)))
        assert any("Let a superuser confirm it" in each.detail for each in found.result.degraded)


def test_what_the_environment_names_may_be_private_and_no_metadata(server, resolves):
    named = Endpoint(Role.CHAT, "openai", "one", server.base_url, variable="LLM_MODEL")
    assert http_client(named).get(f"{server.root_url}/anything").status_code == 404
    resolves(["169.254.169.254"])
    with pytest.raises(httpx.ConnectError, match="where no model can be"):
        http_client(named).get("http://models.example.org/")


@pytest.mark.parametrize("make", [http_client, openai_client])
def test_a_proxy_of_the_environment_gets_only_what_is_allowed(server, resolves, monkeypatch, make):
    monkeypatch.setenv("http_proxy", server.root_url)
    monkeypatch.setenv("no_proxy", "")
    resolves(["203.0.114.7"], ["10.0.0.8"])
    client = make(PUBLIC_ROW)
    assert client.get("http://models.example.org/v1/models").status_code == 404  # the proxy's own answer
    with pytest.raises(Exception, match="private address"):
        client.get("http://models.example.org/v1/models")


def test_vectors_are_those_of_the_server(root, server):
    row = create(root, server, Role.EMBEDDING)
    server.always("embeddings", Reply(content=[[3.0, 4.0]]))
    assert np.allclose(embedder(space(row)).embed_query("a"), [0.6, 0.8])
