import json
import uuid

import pytest

from kb.models import Conversation
from tests import factories
from tests.kb.providers.language_model import language_model, prompts
from tests.servers import Reply

pytestmark = pytest.mark.django_db

URL = "/api/v1/ask/"
CONVERSATIONS = "/api/v1/conversations/"


@pytest.fixture(autouse=True)
def llm(settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": 0.0}  # passages are few here, and short
    with language_model(settings) as server:
        server.always("chat", Reply("五天[1]。"))
        yield server


@pytest.fixture
def asking():
    def post(client, *kb_ids, query="带薪年假有几天？", **fields):
        scope = {"knowledge_base_ids": list(kb_ids)} if kb_ids else {}
        return client.post(URL, {"query": query, **scope, **fields}, format="json")

    return post


@pytest.fixture
def ask(asking, client):
    return lambda *kb_ids, **fields: asking(client, *kb_ids, **fields)


def events(response):
    """What the stream holds: a list of (name, data)."""
    text = b"".join(response).decode()
    blocks = [block.splitlines() for block in text.removesuffix("\n\n").split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


# -- JSON ----------------------------------------------------------------------------------------------------------


def test_an_answer_has_its_sources(ask, kb, document, chunk):
    response = ask(kb.pk)
    body = response.json()
    assert response.status_code == 200
    assert body["answer"] == "五天[1]。\n\n来源：notes.txt"
    assert (body["hit"], body["conversation_id"]) == (True, None)
    assert body["sources"][0]["chunk_id"] == chunk.pk
    assert body["confidence"] == body["sources"][0]["score"]


def test_nothing_found_is_an_answer_too(ask, kb, document, llm):
    body = ask(kb.pk, score_threshold=1.0).json()
    assert (body["answer"], body["hit"]) == ("抱歉，知识库中没有找到相关内容。", False)
    assert (body["confidence"], body["sources"]) == (0.0, [])
    assert llm.requests == []


def test_near_misses_are_listed_beside_the_sentence(ask, kb, document, chunk, llm, cut_at):
    cut_at(0.98)
    body = ask(kb.pk).json()
    assert (body["answer"], body["hit"], body["sources"]) == ("抱歉，知识库中没有找到相关内容。", False, [])
    assert (body["near_misses"][0]["chunk_id"], body["near_misses"][0]["relevance"]) == (chunk.pk, "low")
    assert llm.requests == []


def test_the_last_event_of_a_stream_has_the_near_misses(ask, kb, document, chunk, llm, cut_at):
    cut_at(0.98)
    *_, (name, whole) = events(ask(kb.pk, stream=True))
    assert (name, whole["hit"], whole["near_misses"][0]["chunk_id"]) == ("done", False, chunk.pk)
    assert llm.requests == []


def test_a_language_model_that_is_down_is_a_degraded_answer(ask, kb, document, llm):
    llm.always("chat", Reply(status=401))
    response = ask(kb.pk)
    assert response.status_code == 200
    assert ("answer", "llm_unavailable") in [(each["stage"], each["code"]) for each in response.json()["degraded"]]


def test_the_fields_of_a_search_bound_the_search(ask, kb, document):
    body = ask(kb.pk, top_k=1, profile="default", latency_budget_ms=5_000, overrides={"max_chunk_chars": 50}).json()
    assert len(body["sources"]) == 1
    assert body["profile"] == {"name": "default", "version": 1}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "knowledge_base_ids"),
        ({"knowledge_base_ids": []}, "knowledge_base_ids"),
        ({"knowledge_base_ids": [1], "explain": True}, "explain"),
        ({"knowledge_base_ids": [1], "stream": "yes"}, "stream"),
        ({"knowledge_base_ids": [1], "conversation_id": 7}, "conversation_id"),
    ],
)
def test_a_request_that_is_not_valid_names_its_field(client, fields, name):
    response = client.post(URL, {"query": "年假", **fields}, format="json")
    assert response.status_code == 400
    assert name in response.json()["fields"]


def test_a_setting_that_does_not_exist_is_refused(ask, kb):
    assert ask(kb.pk, overrides={"no_such": 1}).status_code == 400


# -- Server-sent events --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json", "*/*"])
def test_a_stream_is_sources_then_pieces_then_the_whole(client, kb, document, accept):
    body = {"query": "带薪年假有几天？", "knowledge_base_ids": [kb.pk], "stream": True}
    response = client.post(URL, body, format="json", headers={"accept": accept})
    assert (response.status_code, response.headers["Content-Type"]) == (200, "text/event-stream")
    (first, found), *pieces, (last, whole) = events(response)
    assert (first, last) == ("sources", "done")
    assert {name for name, _ in pieces} == {"delta"}
    assert "".join(data["text"] for _, data in pieces) == whole["answer"] == "五天[1]。\n\n来源：notes.txt"
    assert found["trace_id"] == whole["trace_id"]
    assert (found["hit"], found["sources"]) == (True, whole["sources"])


def test_a_stream_is_not_buffered_on_its_way(ask, kb, document):
    response = ask(kb.pk, stream=True)
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Cache-Control"] == "no-cache"
    response.close()


def test_the_first_event_is_sent_before_the_model_is_asked(ask, kb, document, llm):
    response = ask(kb.pk, stream=True)
    assert next(iter(response)).startswith(b"event: sources\n")
    assert llm.requests == []
    response.close()


def test_a_client_that_goes_away_closes_the_stream_of_the_model(ask, kb, document, llm):
    llm.always("chat", Reply(["词"] * 10_000, pause_s=0.01))
    response = ask(kb.pk, stream=True)
    parts = iter(response)
    assert b"event: delta" in [next(parts), next(parts)][1]
    response.close()
    assert llm.disconnected.wait(10)


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
def test_an_error_before_the_first_event_is_an_ordinary_one(client, accept):
    body = {"query": "年假", "knowledge_base_ids": [987654321], "stream": True}
    response = client.post(URL, body, format="json", headers={"accept": accept})
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert response.headers["Content-Type"] == "application/json"


def test_a_fault_after_the_first_event_is_an_event_without_its_insides(client, kb, document, monkeypatch):
    def fail(_self, _answer):
        raise ZeroDivisionError("insides")

    monkeypatch.setattr("kb.answers.services.answers.Question.kept", fail)
    response = client.post(
        URL, {"query": "带薪年假有几天？", "knowledge_base_ids": [kb.pk], "stream": True}, format="json"
    )
    told = events(response)

    assert (response.headers["Cache-Control"], response.headers["X-Accel-Buffering"]) == ("no-cache", "no")
    assert [name for name, _ in told if name != "delta"] == ["sources", "error"]
    assert told[-1][1]["code"] == "internal_error"
    assert told[-1][1].keys() == {"code", "detail", "remedy"}
    assert "insides" not in str(told)


def test_no_channel_is_an_ordinary_error_of_a_stream_too(ask, owner):
    kb = factories.make_kb(owner)
    type(kb).objects.filter(pk=kb.pk).update(embedding_model="no/such-model", tokenizer_id="", lacks_postings=True)
    response = ask(kb.pk, stream=True, overrides={"enable_fts": False, "lexical_fallback": False})
    assert (response.status_code, response.json()["code"]) == (503, "no_channel_available")


# -- Who may ask ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_knowledge_base_of_another_user_is_404(asking, client_of, kb, document, llm, stream):
    response = asking(client_of(factories.make_user()), kb.pk, stream=stream)
    assert response.status_code == 404
    assert llm.requests == []


def test_a_key_with_the_scope_read_suffices(asking, client_with, owner, kb, document):
    _, secret = factories.make_api_key(owner, scope="read")
    assert asking(client_with(secret), kb.pk, remember=True).json()["hit"]


def test_a_key_bound_to_another_knowledge_base_is_404(asking, client_with, owner, kb, document):
    _, secret = factories.make_api_key(owner, factories.make_kb(owner, "other"))
    assert asking(client_with(secret), kb.pk).status_code == 404


def test_a_conversation_of_another_user_cannot_be_continued(asking, ask, client_of, kb, document):
    begun = ask(kb.pk, remember=True).json()["conversation_id"]
    member = client_of(factories.make_member(kb))
    assert asking(member, kb.pk, conversation_id=begun).status_code == 404
    assert asking(member, kb.pk, conversation_id=str(uuid.uuid4())).status_code == 404


# -- Conversations -------------------------------------------------------------------------------------------------


def test_a_conversation_is_continued_without_its_knowledge_bases(ask, kb, document, llm):
    begun = ask(kb.pk, remember=True).json()["conversation_id"]
    again = ask(conversation_id=begun, query="那病假呢？").json()
    assert again["conversation_id"] == begun
    assert ("user", "带薪年假有几天？") in prompts(llm)[-1]


def test_a_conversation_does_not_take_other_knowledge_bases(ask, kb, document, owner):
    begun = ask(kb.pk, remember=True).json()["conversation_id"]
    response = ask(factories.make_kb(owner, "other").pk, conversation_id=begun)
    assert (response.status_code, response.json()["code"]) == (400, "other_knowledge_bases")


def test_conversations_are_listed_the_one_continued_last_first(ask, client, kb, document):
    first, second = (ask(kb.pk, query=query, remember=True).json()["conversation_id"] for query in ("年假", "病假"))
    ask(conversation_id=first, query="那病假呢？")
    rows = client.get(CONVERSATIONS).json()["results"]
    assert [(row["id"], row["title"], row["message_count"]) for row in rows] == [
        (first, "年假", 4),
        (second, "病假", 2),
    ]


def test_a_conversation_is_read_with_its_messages(ask, client, kb, document):
    answered = ask(kb.pk, remember=True).json()
    body = client.get(f"{CONVERSATIONS}{answered['conversation_id']}/").json()
    question, answer = body["messages"]
    assert body["knowledge_base_ids"] == [kb.pk]
    assert (question["role"], question["text"], question["sources"]) == ("user", "带薪年假有几天？", [])
    assert (answer["role"], answer["text"], answer["hit"]) == ("assistant", answered["answer"], True)
    assert (answer["sources"], answer["trace_id"]) == (answered["sources"], answered["trace_id"])


def test_a_message_has_its_near_misses(ask, client, kb, document, chunk, cut_at):
    cut_at(0.98)
    conversation = ask(kb.pk, remember=True).json()["conversation_id"]
    _question, message = client.get(f"{CONVERSATIONS}{conversation}/").json()["messages"]
    assert (message["hit"], message["near_misses"][0]["chunk_id"]) == (False, chunk.pk)


def test_a_message_of_an_earlier_release_has_sources_without_a_label(ask, client, kb, document):
    conversation = ask(kb.pk, remember=True).json()["conversation_id"]
    message = Conversation.objects.get(pk=conversation).messages.get(role="assistant")
    later = ("relevance", "seconds", "regions")
    message.sources = [{name: value for name, value in message.sources[0].items() if name not in later}]
    message.save()
    _question, message = client.get(f"{CONVERSATIONS}{conversation}/").json()["messages"]
    [source] = message["sources"]
    assert (source["label"], source["relevance"], source["regions"]) == ("notes.txt", None, [])


def test_a_deleted_conversation_is_gone(ask, client, kb, document):
    begun = ask(kb.pk, remember=True).json()["conversation_id"]
    assert client.delete(f"{CONVERSATIONS}{begun}/").status_code == 204
    assert client.get(f"{CONVERSATIONS}{begun}/").status_code == 404
    assert not Conversation.objects.exists()


def test_a_key_with_the_scope_read_deletes_no_conversation(ask, client_with, owner, kb, document):
    begun = ask(kb.pk, remember=True).json()["conversation_id"]
    _, secret = factories.make_api_key(owner, scope="read")
    assert client_with(secret).delete(f"{CONVERSATIONS}{begun}/").status_code == 403


def test_nobody_else_sees_a_conversation_whatever_they_may_see(ask, client_of, kb, document):
    begun = ask(kb.pk, remember=True).json()["conversation_id"]
    for other in (factories.make_member(kb), factories.make_user(superuser=True)):
        client = client_of(other)
        assert client.get(f"{CONVERSATIONS}{begun}/").status_code == 404
        assert len(client.get(CONVERSATIONS).json()["results"]) == 0


def test_who_loses_a_knowledge_base_loses_its_conversations(asking, client_of, kb, document):
    member = factories.make_member(kb)
    client = client_of(member)
    begun = asking(client, kb.pk, remember=True).json()["conversation_id"]
    member.memberships.all().delete()
    assert client.get(f"{CONVERSATIONS}{begun}/").status_code == 404
    assert len(client.get(CONVERSATIONS).json()["results"]) == 0
