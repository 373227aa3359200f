"""The MCP server as a child of the program that uses it, over its standard input and output."""

import itertools
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from django.utils import timezone
from mcp import StdioServerParameters
from mcp.client import Client

from kb.agents.mcp import KEY_VARIABLE
from tests.config.commands import run_in_turn
from tests.live.processes import ROOT, SECONDS, environment
from tests.live.test_mcp_http import INITIALIZE, text_of


@asynccontextmanager
async def connected(secret):
    child = StdioServerParameters(
        command=sys.executable,
        args=["manage.py", "mcp"],
        env=environment(**{KEY_VARIABLE: secret}),
        cwd=str(ROOT),
    )
    async with Client(child) as client:
        yield client


async def test_tools_in_both_languages_and_the_end_of_a_key(world, new_key, revoke):
    key, secret = new_key()
    async with connected(secret) as client:
        chinese = await client.call_tool("search", {"query": "年假有几天？", "knowledge_base_ids": [world.kb.pk]})
        english = await client.call_tool(
            "ask", {"question": "How often may I work from home?", "knowledge_base_ids": [world.english.pk]}
        )
        listed = await client.call_tool("list_knowledge_bases", {})
        read = await client.call_tool("read_document", {"document_id": world.english_document.pk})
        foreign = await client.call_tool("search", {"query": "年假", "knowledge_base_ids": [world.foreign.pk]})
        unread = await client.call_tool("read_document", {"document_id": world.foreign_document.pk})
        revoke(key)
        ended = await client.call_tool("list_knowledge_bases", {})

    assert chinese.structured_content["passages"][0]["text"].startswith("工作满一年")
    assert "two days a week" in english.structured_content["answer"]
    assert listed.structured_content["total"] == 2
    assert "two days a week" in text_of(read)
    assert [each.is_error for each in (foreign, unread, ended)] == [True, True, True]
    assert "revoked" in text_of(ended)


async def test_a_key_that_is_bound(world, new_key):
    async with connected(new_key(world.english)[1]) as client:
        found = await client.call_tool("search", {"query": "年假", "score_threshold": 0})
        refused = await client.call_tool("search", {"query": "年假", "knowledge_base_ids": [world.kb.pk]})

    assert {each["knowledge_base_id"] for each in found.structured_content["passages"]} == {world.english.pk}
    assert refused.is_error


def started(secret):
    return subprocess.Popen(
        [sys.executable, "manage.py", "mcp"],
        cwd=ROOT,
        env=environment(**{KEY_VARIABLE: secret}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


KINDS = ("none", "unknown", "revoked", "expired")


@pytest.fixture(scope="module")
def refused(world, committed):
    """By the kind of its key, what becomes of a server without a good one."""
    from tests.factories import make_api_key

    with committed():
        revoked = make_api_key(world.owner, revoked=True)[1]
        expired = make_api_key(world.owner, expiry_date=timezone.now() - timedelta(seconds=1))[1]
    starts = [[{KEY_VARIABLE: secret}, ["mcp"]] for secret in ("", "nonsense", revoked, expired)]
    done = run_in_turn(*itertools.chain(*starts), environment=environment())
    return dict(zip(KINDS, done, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_good_key_it_ends_with_the_remedy(refused, kind):
    done = refused[kind]
    assert done.returncode == 1
    assert done.stdout == ""
    assert KEY_VARIABLE in done.stderr
    assert "create_api_key" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, None])
def test_it_ends_when_it_is_told_to_or_its_input_ends_and_has_written_nothing_but_the_protocol(world, number):
    with started(world.secret) as process:
        process.stdin.write(json.dumps(INITIALIZE) + "\n")
        process.stdin.flush()
        first = json.loads(process.stdout.readline())
        if number is None:
            process.stdin.close()
        else:
            process.send_signal(number)
        assert process.wait(SECONDS) == 0
        rest = process.stdout.read()

    assert first["result"]["serverInfo"]["name"] == "zhiku"
    assert rest == ""
