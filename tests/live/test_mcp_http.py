"""The MCP server behind a port, as a client of the official SDK meets it."""

from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import httpx2
import pytest
import requests
from django.utils import timezone
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from prometheus_client.parser import text_string_to_metric_families

from tests.live.processes import Server, running
from tests.serving import free_port

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def server(world):
    metrics = free_port()
    changed = {"API_RATE_LIMIT": "1000/minute", "METRICS_HOST": "127.0.0.1", "METRICS_PORT": str(metrics)}
    made = Server("manage", "mcp", "--http", "--port", "{port}", probe="/health", **changed)
    made.metrics = f"http://127.0.0.1:{metrics}/"
    with running(made):
        yield made


@pytest.fixture
def connected(server):
    """Opens a client with a key."""

    @asynccontextmanager
    async def connect(secret, path="/mcp", **headers):
        headers = {"Authorization": f"Bearer {secret}", **headers}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(server.url + path, http_client=http)) as client,
        ):
            yield client

    return connect


def text_of(result):
    (content,) = result.content
    return content.text


async def test_the_tools_describe_themselves(connected, world):
    async with connected(world.secret) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}

    assert set(tools) == {"search", "ask", "list_knowledge_bases", "read_document"}
    for tool in tools.values():
        assert tool.annotations.read_only_hint
        assert tool.output_schema["type"] == "object"
        assert len(tool.description) > 80
    top_k = tools["search"].input_schema["properties"]["top_k"]
    assert {"type": "integer", "minimum": 1, "maximum": 50} in top_k["anyOf"]


async def test_search_in_chinese_over_all_knowledge_bases(connected, world):
    async with connected(world.secret) as client:
        found = await client.call_tool("search", {"query": "年假有几天？", "score_threshold": 0})

    assert not found.is_error
    first = found.structured_content["passages"][0]
    assert first["text"] == "工作满一年的员工每年享有五天带薪年假。"
    assert first["document_id"] == world.document.pk
    assert [each["code"] for each in found.structured_content["degraded"]] == ["hashing_embedder"] * 2
    assert found.structured_content["trace_id"]
    text = text_of(found)
    assert first["text"] in text
    assert "Degraded (vector, hashing_embedder)" in text
    assert "data" in found.structured_content["notice"]
    assert found.structured_content["notice"] in text


async def test_search_in_english_in_one_knowledge_base_at_a_path_with_a_slash(connected, world):
    asked = {"query": "How often may I work from home?", "knowledge_base_ids": [world.english.pk], "top_k": 1}

    async with connected(world.secret, path="/mcp/") as client:
        found = await client.call_tool("search", asked)

    (passage,) = found.structured_content["passages"]
    assert passage["text"] == "Employees may work from home on two days a week."
    assert passage["title"] == "Remote work"


async def test_filters(connected, world):
    asked = {"query": "年假", "knowledge_base_ids": [world.kb.pk], "score_threshold": 0}
    later = {"metadata": [{"key": "year", "op": "gt", "value": 2024}]}

    async with connected(world.secret) as client:
        found = await client.call_tool("search", {**asked, "filters": {"tags": ["人事"]}})
        none = await client.call_tool("search", {**asked, "filters": later})

    assert len(found.structured_content["passages"]) == 3
    assert none.structured_content["passages"] == []
    assert "Nothing relevant" in text_of(none)


async def test_ask_without_a_language_model_gives_the_passages_and_says_so(connected, world):
    async with connected(world.secret) as client:
        answered = await client.call_tool("ask", {"question": "年假有几天？", "knowledge_base_ids": [world.kb.pk]})

    output = answered.structured_content
    assert output["hit"]
    assert "五天带薪年假" in output["answer"]
    assert "llm_not_configured" in {each["code"] for each in output["degraded"]}
    assert output["sources"][0]["document_id"] == world.document.pk


async def test_list_knowledge_bases_page_by_page(connected, world):
    async with connected(world.secret) as client:
        every = (await client.call_tool("list_knowledge_bases", {})).structured_content
        first = (await client.call_tool("list_knowledge_bases", {"limit": 1})).structured_content

    assert [(each["id"], each["name"]) for each in every["knowledge_bases"]] == [
        (world.kb.pk, "员工手册"),
        (world.english.pk, "handbook"),
    ]
    assert every["knowledge_bases"][0] | {"documents": 1, "chunks": 3, "role": "owner"} == every["knowledge_bases"][0]
    assert (first["total"], first["next_offset"], len(first["knowledge_bases"])) == (2, 1, 1)


async def test_read_a_document_page_by_page(connected, world):
    asked = {"document_id": world.document.pk, "limit": 2}

    async with connected(world.secret) as client:
        first = (await client.call_tool("read_document", asked)).structured_content
        rest = (await client.call_tool("read_document", {**asked, "start": first["next_start"]})).structured_content

    assert [chunk["position"] for chunk in first["chunks"] + rest["chunks"]] == [0, 1, 2]
    assert (first["total_chunks"], first["next_start"], rest["next_start"]) == (3, 2, None)
    assert first["title"] == "休假制度"
    assert first["metadata"] == {"部门": "人事部", "year": 2024}


async def test_another_tenants_knowledge_base_and_document_do_not_exist(connected, world):
    calls = [
        ("search", {"query": "年假", "knowledge_base_ids": [world.foreign.pk]}),
        ("search", {"query": "年假", "knowledge_base_ids": [world.kb.pk, world.foreign.pk]}),
        ("ask", {"question": "年假", "knowledge_base_ids": [world.foreign.pk]}),
        ("read_document", {"document_id": world.foreign_document.pk}),
    ]
    async with connected(world.secret) as client:
        for name, arguments in calls:
            refused = await client.call_tool(name, arguments)
            assert refused.is_error
            assert "九十天" not in text_of(refused)
        found = await client.call_tool("search", {"query": "别人的年假", "score_threshold": 0, "top_k": 50})

    assert "九十天" not in text_of(found)


async def test_a_key_sees_no_further_than_the_knowledge_bases_that_it_is_bound_to(connected, world, new_key):
    bound = new_key(world.english)[1]

    async with connected(bound) as client:
        listed = await client.call_tool("list_knowledge_bases", {})
        found = await client.call_tool("search", {"query": "年假", "score_threshold": 0})
        refused = await client.call_tool("search", {"query": "年假", "knowledge_base_ids": [world.kb.pk]})
        unread = await client.call_tool("read_document", {"document_id": world.document.pk})

    assert [each["id"] for each in listed.structured_content["knowledge_bases"]] == [world.english.pk]
    assert {each["knowledge_base_id"] for each in found.structured_content["passages"]} == {world.english.pk}
    assert refused.is_error
    assert unread.is_error


async def test_errors_say_what_to_do_in_the_language_asked_for(connected, world):
    asked = {"document_id": 2**62}

    async with connected(world.secret, **{"Accept-Language": "en"}) as client:
        refused = await client.call_tool("read_document", asked)
        invalid = await client.call_tool("search", {"query": "", "top_k": 500})
        unusable = await client.call_tool("search", {"query": "a", "filters": {"created_after": "soon"}})

    assert "take one from the results of a search" in text_of(refused)
    assert invalid.is_error
    assert "top_k" in text_of(invalid)
    assert "give a date or a time" in text_of(unusable)


async def test_concurrent_calls(connected, world):
    answers = []

    async def ask(client, query, kb, expected):
        found = await client.call_tool("search", {"query": query, "knowledge_base_ids": [kb.pk], "score_threshold": 0})
        answers.append(found.structured_content["passages"][0]["text"].startswith(expected))

    async with connected(world.secret) as client, anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(ask, client, "年假有几天", world.kb, "工作满一年")
            tasks.start_soon(ask, client, "work from home", world.english, "Employees")

    assert answers == [True] * 24


async def test_a_revoked_key_opens_nothing_from_the_next_call_on(connected, new_key, revoke):
    key, secret = new_key()
    async with connected(secret) as client:
        assert not (await client.call_tool("list_knowledge_bases", {})).is_error
        revoke(key)
        with pytest.raises(Exception):  # noqa: B017, PT011 the SDK has no name for a 401
            await client.call_tool("list_knowledge_bases", {})


async def test_the_rate_limit_of_a_key(connected, new_key):
    secret = new_key(rate_limit="2/hour")[1]

    async with connected(secret) as client:
        results = [await client.call_tool("list_knowledge_bases", {}) for _ in range(3)]

    assert [result.is_error for result in results] == [False, False, True]


def counted(server):
    """By metric, route, status and outcome, what scrapers read."""
    families = text_string_to_metric_families(requests.get(server.metrics, timeout=60).text)
    samples = [sample for family in families for sample in family.samples]
    total = Counter()
    for sample in samples:
        total[sample.name, *(sample.labels.get(name) for name in ("route", "status", "outcome"))] += sample.value
    return total


async def test_calls_and_refusals_are_counted_as_the_requests_of_the_web_server_are(connected, server, world):
    before = counted(server)
    async with connected(world.secret) as client:
        await client.call_tool("search", {"query": "年假有几天？", "knowledge_base_ids": [world.kb.pk]})
        await client.call_tool("read_document", {"document_id": world.foreign_document.pk})
    post(server, {})
    rise = counted(server) - before

    assert rise["zhiku_http_requests_total", "mcp:search", "2xx", None] == 1
    assert rise["zhiku_http_requests_total", "mcp:read_document", "4xx", None] == 1
    assert rise["zhiku_http_requests_total", "mcp", "4xx", None] == 1
    assert rise["zhiku_http_request_seconds_count", "mcp:search", None, None] == 1
    assert rise["zhiku_searches_total", None, None, "found"] == 1


def post(server, headers):
    return requests.post(f"{server.url}/mcp", json=INITIALIZE, headers={**ACCEPT, **headers}, timeout=60)


def test_without_a_good_key_it_is_401(server, world, new_key, revoke):
    key, revoked = new_key()
    revoke(key)
    expired = new_key(expiry_date=timezone.now() - timedelta(seconds=1))[1]
    for value in (None, "Bearer", f"Token {world.secret}", "Bearer nonsense", f"Bearer {revoked}", f"Bearer {expired}"):
        refused = post(server, {} if value is None else {"Authorization": value})
        assert refused.status_code == 401, value
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    assert post(server, {"Authorization": f"Bearer {world.secret}"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Host": "localhost:1"}, 200),
    ],
)
def test_hosts_and_origins(server, world, headers, status):
    assert post(server, {"Authorization": f"Bearer {world.secret}", **headers}).status_code == status


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_no_stream_is_held_open_and_no_session_ended(server, world, method):
    headers = {"Authorization": f"Bearer {world.secret}", "Accept": "text/event-stream"}
    refused = requests.request(method, f"{server.url}/mcp", headers=headers, timeout=60)

    assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")


def test_health_needs_no_key(server):
    assert requests.get(f"{server.url}/health", timeout=60).json() == {"status": "ok"}


async def test_a_restart_goes_unnoticed_between_two_calls(connected, server, world):
    asked = {"query": "年假有几天", "knowledge_base_ids": [world.kb.pk], "score_threshold": 0}
    async with connected(world.secret) as client:
        before = await client.call_tool("search", asked)
        assert await anyio.to_thread.run_sync(server.stop) == 0
        await anyio.to_thread.run_sync(server.start)
        after = await client.call_tool("search", asked)

    assert after.structured_content["passages"] == before.structured_content["passages"]
