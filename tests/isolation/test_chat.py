"""Every address of the chats, asked by a visitor of one tenant's chat for what belongs to the other's."""

import json
import uuid

import pytest
from django.db import transaction
from django.test import Client

from kb.assistants.services.assistants import assistant_create, draft_of, version_publish
from kb.assistants.services.entry import Visit
from kb.assistants.settings import AssistantSettings
from kb.models import Conversation, Message, Visitor
from tests import factories
from tests.isolation.routes import foreign_values, routes
from tests.isolation.world import MISSING_ID, MISSING_UUID, STRANGER

PREFIX = "chat/"
ROUTES = [route for route in routes(PREFIX) if route.parameters]
METHODS = ("get", "head", "post", "put", "patch", "delete")
OPEN = {"page", "frame", "embed", "picture", "enter"}
"""Told to anybody: a name, a picture, and what stands before a chat."""
NUMBERS = {"place": 1, "number": 1}
"""Of a source and of a page, which every answer has."""
BODY = {"question": "Who rents a bicycle?", "sending_id": str(uuid.uuid4()), "value": -1, "title": "Mine", "text": ""}


@pytest.fixture
def world(standing_world):
    return standing_world


@pytest.fixture
def chats(world):
    """The ids of one visitor's answer in each tenant's chat, the token of mine, and ids of nothing."""
    mine, theirs = (_chat(tenant, word) for tenant, word in ((world.mine, "mine"), (world.theirs, STRANGER)))
    missing = {"slug": "nowhere", "message_id": MISSING_ID, "conversation_id": MISSING_UUID, **NUMBERS}
    return mine, theirs, missing


def _chat(tenant, word):
    caller = factories.principal(tenant.user)
    settings = AssistantSettings(suggested_questions=("Who rents a bicycle?",))
    assistant = assistant_create(
        caller, name="Chat", knowledge_base_ids=[tenant.kb.pk], access="public", settings=settings
    )
    version_publish(caller, draft_of(assistant))
    assistant.refresh_from_db()
    visitor = Visitor.objects.create(assistant=assistant)
    conversation = Conversation.objects.create(visitor=visitor, knowledge_base_ids=[tenant.kb.pk], title=f"{word} asks")
    conversation.messages.create(role=Message.Role.USER, text=f"{word} asks for a bicycle")
    source = {
        "number": 1,
        "label": f"{word}.txt",
        "title": word,
        "text": f"{word} rents",
        "chunk_id": tenant.ids["chunk"],
        "document_id": tenant.ids["document"],
        "knowledge_base_id": tenant.kb.pk,
    }
    message = conversation.messages.create(
        role=Message.Role.ASSISTANT, text=f"{word} rents it [1].", sources=[source], hit=True
    )
    return {
        "slug": assistant.slug,
        "message_id": message.pk,
        "conversation_id": conversation.pk,
        **NUMBERS,
        "token": Visit(assistant, visitor.pk).token(),
    }


def ask(chats, method, url, body=None):
    """One request in the visit to my chat, whose changes are taken back; it may show or change nothing of the other's."""
    theirs = chats[1]
    client = Client(headers={"X-Visit": chats[0]["token"], "X-Language": "en"})
    with transaction.atomic():
        response = client.generic(method.upper(), url, json.dumps(body or BODY), content_type="application/json")
        content = b"".join(response) if response.streaming else response.content
        kept = Message.objects.get(pk=theirs["message_id"])
        transaction.set_rollback(True)
    assert response.status_code < 500, (method, url)
    assert STRANGER.encode() not in content, (method, url)
    assert (kept.feedback, kept.status, kept.conversation.title) == (None, "done", f"{STRANGER} asks")
    return response.status_code, content


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_ids_in_the_path(chats, route):
    mine, theirs, missing = chats
    parameters = route.parameters
    pairs = zip(
        foreign_values(parameters, parameters, mine, theirs),
        foreign_values(parameters, parameters, mine, missing),
        strict=True,
    )
    for foreign, absent in pairs:
        if all(value in {mine[name], NUMBERS.get(name)} for name, value in foreign.items()):
            continue  # only numbers that everyone has
        for method in METHODS:
            status, content = ask(chats, method, route.url(foreign))
            is_told = route.name in OPEN and status in {200, 404, 405, 403}
            assert is_told or status in {403, 404, 405}, (method, route.url(foreign), status)
            if foreign["slug"] == mine["slug"]:
                assert (status, content) == ask(chats, method, route.url(absent)), (method, route.url(foreign))


def test_ids_in_the_body(chats):
    mine, theirs, missing = chats
    for field, name in (("conversation_id", "conversation_id"), ("instead_of", "message_id")):
        of_mine = {"conversation_id": str(mine["conversation_id"])}
        found, other = (
            ask(chats, "post", f"/chat/{mine['slug']}/ask/", {**BODY, **of_mine, field: _plain(ids[name])})
            for ids in (theirs, missing)
        )
        assert found == other
        assert found[0] in {400, 404}


def test_a_visit_to_another_chat_is_entered_as_somebody_new(chats):
    mine, theirs, _missing = chats
    status, content = ask(chats, "post", f"/chat/{theirs['slug']}/enter/", {"visit": mine["token"]})
    assert (status, json.loads(content)["visit"] == mine["token"]) == (200, False)
    status, content = ask(chats, "get", f"/chat/{mine['slug']}/conversations/")
    assert [row["title"] for row in json.loads(content)] == ["mine asks"]


def test_a_source_that_names_another_tenants_chunk_opens_nothing(world, chats):
    mine, _theirs, _missing = chats
    message = Message.objects.get(pk=mine["message_id"])
    message.sources[0] |= {"chunk_id": world.theirs.ids["chunk"], "knowledge_base_id": world.theirs.kb.pk}
    message.save()
    for part in ("", "text/", "pages/1/", "pages/1/image/"):
        assert ask(chats, "get", f"/chat/{mine['slug']}/passages/{message.pk}/1/{part}")[0] == 404


def _plain(value):
    return value if isinstance(value, int) else str(value)
