"""OpenAI's protocol, given the assistant of another tenant."""

import pytest
from rest_framework.test import APIClient

from kb.models import KnowledgeBase
from tests.factories import make_api_key
from tests.isolation.routes import routes
from tests.kb.assistants.making import make_assistant

NAMES_NOTHING = {"v1/models", "v1/openapi", "v1/<path:path>"}
NAMES_A_MODEL = {"v1/models/<slug:slug>", "v1/chat/completions"}


@pytest.fixture
def theirs(world):
    kb = KnowledgeBase.objects.get(pk=world.theirs.ids["kb"])
    return make_assistant(world.theirs.user, kb, name="Theirs")


def test_every_address_is_looked_at():
    assert {route.path for route in routes("v1/")} == NAMES_NOTHING | NAMES_A_MODEL


@pytest.mark.parametrize("scope", ["read", "write"])
@pytest.mark.parametrize("is_bound", [True, False])
def test_the_assistant_of_another_is_as_none(world, theirs, scope, is_bound):
    bases = [world.mine.kb] if is_bound else []
    client = APIClient(headers={"Authorization": f"Bearer {make_api_key(world.mine.user, *bases, scope=scope)[1]}"})

    def answers(slug):
        body = {"model": slug, "messages": [{"role": "user", "content": "bicycle"}]}
        found = client.get(f"/v1/models/{slug}"), client.post("/v1/chat/completions", body, format="json")
        return [(each.status_code, each.content.decode().replace(slug, "SLUG")) for each in found]

    found, missing = answers(theirs.slug), answers("none-such")

    assert found == missing
    assert {status for status, _content in found} == {404}
    assert theirs.slug not in client.get("/v1/models").content.decode()
