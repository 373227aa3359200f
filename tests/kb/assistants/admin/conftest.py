import pytest
from django.urls import reverse

from tests.kb.admin_fixtures import client, curator  # noqa: F401
from tests.kb.assistants.making import *  # noqa: F403 - its fixtures


@pytest.fixture
def owner(curator):  # noqa: F811
    return curator


@pytest.fixture
def page(client):  # noqa: F811
    """Opens a page of an assistant, or sends it a form."""

    def of(name, *args, data=None, **query):
        url = reverse(f"admin:kb_assistant_{name}", args=args)
        headers = {"accept-language": "en"}
        return client.get(url, query, headers=headers) if data is None else client.post(url, data, headers=headers)

    return of
