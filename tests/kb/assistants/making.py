"""Assistants for tests, made through the services.

The fixtures' file is imported by a `conftest.py`, before there are any models, so what has models is imported when it is used.
"""

import uuid

import pytest

from tests.kb.answers.asking import *  # noqa: F403 - its fixtures
from tests.kb.answers.asking import WARRANTY


def make_assistant(owner, *bases, name="Heaters", published=True, password="", settings=None, **fields):
    from kb.assistants.services.assistants import assistant_create, draft_of, version_publish
    from kb.assistants.settings import AssistantSettings
    from kb.models import Assistant
    from tests.factories import principal

    assistant = assistant_create(
        principal(owner),
        name=name,
        knowledge_base_ids=[kb.pk for kb in bases],
        settings=AssistantSettings(**settings or {}),
        password=password,
        **fields,
    )
    if published:
        version_publish(principal(owner), draft_of(assistant))
    return Assistant.objects.get(pk=assistant.pk)


@pytest.fixture
def kb(owner):
    from tests.factories import make_document, make_kb

    kb = make_kb(owner, language="en")
    make_document(kb, WARRANTY, source="ProductFAQ.md")
    return kb


@pytest.fixture
def assistant(owner, kb):
    return make_assistant(owner, kb, access="public")


@pytest.fixture
def visit(assistant):
    from kb.assistants.services.entry import Visit

    return Visit(assistant, uuid.uuid4())
