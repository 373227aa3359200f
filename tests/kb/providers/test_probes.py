"""What a superuser learns of a model before it is used: real servers on the loopback answer, refuse and fail."""

import json

import pytest

from kb.index.vector_index import MAX_DIMENSION
from kb.providers import probes
from kb.providers.endpoints import Endpoint
from kb.providers.presets import LOCAL, PRESETS
from kb.providers.probes import MOST_DIMENSIONS, ProbeFailed, list_models, probe
from kb.providers.recommended import Role
from retrieval.rerankers.forms import FORMS
from tests.retrieval.rerankers.tiny import save_tiny_embedding_model
from tests.servers import ModelServer, Reply

KEY = "sk-very-secret"


@pytest.fixture
def server():
    with ModelServer() as server:
        yield server


@pytest.fixture
def endpoint(server):
    def make(role=Role.CHAT, provider="openai", **given):
        at = {"base_url": server.base_url, "model": "m", "api_key": KEY, "allows_private": True, **given}
        return Endpoint(role, provider, at.pop("model"), **at)

    return make


def test_a_chat_model_says_its_first_words(server, endpoint):
    found = probe(endpoint())

    assert found.ok
    assert found.words == "An answer from the model."
    assert found.latency_ms > 0
    assert f"Bearer {KEY}" in server.requests[0].headers.values()


def test_a_chat_model_that_thinks_at_length_is_there(server, endpoint, monkeypatch):
    def events(*pieces):
        chunks = [
            {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [each]}
            for each in pieces
        ]
        return "".join(f"data: {json.dumps(each)}\n\n" for each in chunks).encode()

    thought = {"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}
    raw = events(thought, {"index": 0, "delta": {}, "finish_reason": "length"}) + b"data: [DONE]\n\n"
    server.always("chat", Reply(raw=raw, headers={"Content-Type": "text/event-stream"}))

    found = probe(endpoint())

    assert (found.ok, found.words) == (True, "…")


def test_an_embedding_model_tells_its_dimension(endpoint):
    assert probe(endpoint(Role.EMBEDDING)).dimension == 8


@pytest.mark.parametrize("form", FORMS)
def test_a_reranker_prefers_the_passage_that_answers(endpoint, form):
    found = probe(endpoint(Role.RERANK, options={"form": form}))

    assert found.ok
    assert found.scores[0] > found.scores[1]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "key is refused"),
        (403, "key is refused"),
        (404, "no such model"),
        (402, "no credit"),
        (429, "no credit"),
        (400, "serves this role"),
        (500, "server fails"),
        (503, "server fails"),
    ],
)
@pytest.mark.parametrize("role", Role)
def test_a_refusal_is_quoted_with_its_remedy_and_without_the_key(server, endpoint, role, status, words):
    raw = json.dumps({"error": {"message": f"Incorrect key {KEY} " + "x" * 1_000}}).encode()
    name = {Role.CHAT: "chat", Role.EMBEDDING: "embeddings", Role.RERANK: "rerank"}[role]
    server.always(name, Reply(status=status, raw=raw, headers={"Retry-After": "9"}))

    found = probe(endpoint(role))

    assert found.error.startswith(f"HTTP {status}: Incorrect key ***")
    assert len(found.error) <= probes.LONGEST_QUOTE
    assert words in found.remedy
    assert server.calls[name] == 1  # a retry would hide a fault


@pytest.mark.parametrize("role", Role)
def test_a_server_that_is_down(server, endpoint, role):
    server.stop()

    assert "cannot be reached" in probe(endpoint(role)).remedy


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("reply", [Reply(hang=True), Reply(trickle_s=0.2, raw=b" " * 1_000)], ids=["hang", "trickle"])
def test_a_server_that_is_slow(server, endpoint, role, reply, monkeypatch):
    monkeypatch.setattr(probes, "SECONDS", 0.5)
    for name in ("chat", "embeddings", "rerank"):
        server.always(name, reply)

    assert "No answer within" in probe(endpoint(role)).remedy


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("raw", [b"<html>a page</html>", b"[]", b'{"data": [{}], "results": 3}', b"\xff\x00"])
def test_an_answer_of_another_form(server, endpoint, role, raw):
    for name in ("chat", "embeddings", "rerank"):
        server.always(name, Reply(raw=raw))

    found = probe(endpoint(role))

    assert not found.ok
    assert "another form" in found.remedy or "chat model" in found.remedy


@pytest.mark.parametrize(
    ("role", "reply", "words"),
    [
        (Role.EMBEDDING, Reply([[1.0, 2.0], [1.0, 2.0]]), "same vector"),
        (Role.EMBEDDING, Reply([[1.0, 2.0]]), "another form"),
        (Role.EMBEDDING, Reply([[1.0], [float("nan")]]), "another form"),
        (Role.EMBEDDING, Reply([[0.0] * 4_001, [1.0] * 4_001]), "smaller model"),
        (Role.RERANK, Reply([0.1, 0.9]), "prefers the passage"),
        (Role.RERANK, Reply([9.0, -4.0]), "from 0 to 1"),
        (Role.RERANK, Reply([0.9]), "another form"),
        (Role.CHAT, Reply([]), "without text"),
    ],
)
def test_a_model_of_another_kind(server, endpoint, role, reply, words):
    for name in ("chat", "embeddings", "rerank"):
        server.always(name, reply)

    assert words in probe(endpoint(role)).remedy


def test_dimensions_are_bounded_as_the_index_is():
    assert MOST_DIMENSIONS == MAX_DIMENSION


@pytest.mark.parametrize("role", Role)
def test_a_private_address_has_to_be_confirmed(server, endpoint, role):
    found = probe(endpoint(role, allows_private=False))

    assert found.is_private
    assert not server.requests


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("host", ["169.254.169.254", "100.100.100.200", "[fd00:ec2::254]"])
def test_addresses_of_metadata_are_never_asked(endpoint, role, host):
    found = probe(endpoint(role, base_url=f"http://{host}/v1"))

    assert not found.ok
    assert not found.is_private


def test_a_redirect_is_not_followed(server, endpoint):
    server.always("embeddings", Reply(status=302, raw=b"", headers={"Location": "http://169.254.169.254/"}))

    found = probe(endpoint(Role.EMBEDDING))

    assert found.error == "HTTP 302: http://169.254.169.254/"
    assert server.calls["embeddings"] == 1


def test_the_models_of_a_server_are_listed_by_role(server, endpoint):
    assert list_models(endpoint(Role.CHAT)) == ["chat-model"]
    assert list_models(endpoint(Role.EMBEDDING)) == ["text-embedding-small"]
    assert list_models(endpoint(Role.RERANK)) == ["bge-reranker"]
    assert server.listed[0]["Authorization"] == f"Bearer {KEY}"
    server.models = ["one", "two"]
    assert list_models(endpoint(Role.EMBEDDING)) == ["one", "two"]


def test_tei_says_which_model_it_serves(server, endpoint):
    server.models = ["BAAI/bge-m3"]

    assert list_models(endpoint(Role.EMBEDDING, "tei")) == ["BAAI/bge-m3"]
    assert list_models(endpoint(Role.RERANK, "tei", base_url=server.root_url)) == ["BAAI/bge-m3"]


def test_a_server_without_a_list_says_so(server, endpoint):
    with pytest.raises(ProbeFailed, match="HTTP 404"):
        list_models(endpoint(base_url=f"{server.root_url}/v9"))


def test_local_weights_are_tried_as_they_are(tmp_path):
    folder = save_tiny_embedding_model(tmp_path / "tiny")

    assert probe(Endpoint(Role.EMBEDDING, LOCAL, str(folder))).dimension > 0
    missing = probe(Endpoint(Role.EMBEDDING, LOCAL, "nobody/nothing"))
    assert "download_model" in missing.error
    assert "Download its weights" in missing.remedy
    assert not probe(Endpoint(Role.RERANK, LOCAL, "nobody/nothing")).ok


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.key)
def test_what_is_said_of_a_provider_fits_together(preset):
    for role, served in preset.roles.items():
        assert preset.key == LOCAL or preset.base_url_of(role).startswith(("https://", "http://127.0.0.1"))
        assert role != Role.RERANK or preset.key == LOCAL or served.options["form"] in FORMS
        assert role != Role.EMBEDDING or preset.key == LOCAL or 0 < served.options["batch_size"] <= 100
    assert not preset.keys_url or preset.keys_url.startswith("https://")
    assert len({each.key for each in PRESETS}) == len(PRESETS)
