"""Who the MCP server lets in; tests/live/test_mcp_http.py has the same behind a port."""

import asyncio
from http import HTTPStatus
from types import SimpleNamespace

import httpx
import pytest
from django.db import OperationalError, connection

from kb.agents.mcp.http import Door
from kb.agents.mcp.server import Refusal, calling
from retrieval.errors import Degradation, DegradationCode, NoChannelAvailable
from tests.factories import make_api_key, make_user
from tests.outage import database_out_of_reach

pytestmark = pytest.mark.django_db(transaction=True)


async def inside(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": [(b"path", scope["path"].encode())]})
    await send({"type": "http.response.body"})


@pytest.fixture
def secret():
    return make_api_key(make_user())[1]


@pytest.fixture
def knock():
    async def send(path="/mcp", headers=None, method="POST", **named):
        transport = httpx.ASGITransport(Door(inside), client=("203.0.113.7", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers or named)

    return send


async def test_a_good_key_comes_in_at_either_form_of_the_path(knock, secret):
    for path in ("/mcp", "/mcp/"):
        answer = await knock(path, authorization=f"bearer {secret}")
        assert (answer.status_code, answer.headers["path"]) == (204, "/mcp")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "kb.example.org"}, 204),
        ({"host": "a.example.org"}, 421),
        ({"host": "x.wild.example:8001"}, 204),
        ({"host": "bad host"}, 421),
        ({"origin": "https://app.example"}, 204),
        ({"origin": "http://app.example"}, 403),
        ({"origin": "https://kb.example.org"}, 204),
        ({"origin": "http://["}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "kb.example.org"}, 403),
        ({"origin": "https://kb.example.org@evil.example"}, 403),
        ({"origin": "https://evil.example/https://kb.example.org"}, 403),
    ],
)
async def test_hosts_are_those_of_the_web_server(knock, secret, settings, headers, status):
    settings.ALLOWED_HOSTS = ["localhost", "kb.example.org", ".wild.example"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://app.example"]

    assert (await knock(authorization=f"Bearer {secret}", **headers)).status_code == status


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "PUT"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_only_post_is_answered(knock, secret, method, path):
    refused = await knock(path, method=method, authorization=f"Bearer {secret}", accept="text/event-stream")

    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert method == "HEAD" or refused.json()["code"] == "method_not_allowed"


async def test_a_method_that_is_none_tells_nothing_to_who_has_no_key(knock):
    assert (await knock(method="GET")).status_code == 401


async def test_an_address_that_tries_keys_is_held_up(knock, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "failures": "1/minute"}

    first, second = await knock(), await knock(authorization="Bearer guess")

    assert (first.status_code, first.headers["www-authenticate"]) == (401, 'Bearer realm="zhiku"')
    assert second.status_code == 429
    assert int(second.headers["retry-after"]) > 0


async def test_what_a_client_claims_in_a_header_of_its_own_hides_no_address(knock, settings):
    settings.TRUSTED_PROXIES = 1
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "failures": "1/minute"}

    def claimed(address):
        return [("x-forwarded-for", address), ("x-forwarded-for", "198.51.100.9")]  # the second is the proxy's

    first, second = await knock(headers=claimed("192.0.2.1")), await knock(headers=claimed("192.0.2.2"))

    assert (first.status_code, second.status_code) == (401, 429)


def test_without_its_database_it_says_when_to_come_back(knock, secret, monkeypatch):
    connection.close()
    with database_out_of_reach():
        monkeypatch.setattr(connection.pool, "timeout", 1)
        answer = asyncio.run(knock(authorization=f"Bearer {secret}"))

    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "30")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NoChannelAvailable((Degradation("vector", DegradationCode.MODEL_UNAVAILABLE, "no model"),)), "no model"),
        (OperationalError("connection refused"), "The database is out of reach"),
    ],
    ids=["channels", "database"],
)
def test_a_call_that_is_let_in_and_cannot_be_answered_now_may_be_made_again(secret, error, told):
    request = SimpleNamespace(headers={"authorization": f"Bearer {secret}", "accept-language": "en"})

    with pytest.raises(Refusal, match=told) as refused, calling(request, "search"):
        raise error

    assert refused.value.status == HTTPStatus.SERVICE_UNAVAILABLE


async def test_health_is_open(knock):
    assert (await knock("/health")).json() == {"status": "ok"}
