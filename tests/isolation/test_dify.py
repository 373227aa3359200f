"""Dify's External Knowledge API, given the knowledge of another tenant."""

import pytest
from rest_framework.test import APIClient

from tests.factories import make_api_key
from tests.isolation.routes import routes
from tests.isolation.test_api import ask, without

RULES = {"^api/dify/retrieval/?$": ("/api/dify/retrieval", "/api/dify/retrieval/")}
"""The addresses that an expression stands for."""


def test_every_address_has_a_rule():
    assert {route.path for route in routes() if "api/dify" in route.path} == set(RULES)


@pytest.mark.parametrize("url", [url for urls in RULES.values() for url in urls])
@pytest.mark.parametrize("scope", ["read", "write"])
@pytest.mark.parametrize("is_bound", [True, False])
def test_the_knowledge_of_another_is_as_none(world, url, scope, is_bound):
    bases = [world.mine.kb] if is_bound else []
    _key, secret = make_api_key(world.mine.user, *bases, scope=scope)
    client = APIClient(headers={"Authorization": f"Bearer {secret}"})

    def answer(ids, **more):
        body = {"knowledge_id": str(ids["kb"]), "query": "bicycle", "retrieval_setting": {"top_k": 3}, **more}
        return ask(world, client, "post", url, body)

    found, other = answer(world.theirs.ids), answer(world.missing)

    assert answer(world.mine.ids)[0] == 200
    assert found[0] == 404
    assert without(found[1], world.theirs.ids) == without(other[1], world.missing)
