"""The port of the MCP server: what it takes of a head, and what else it does while a call waits."""

import asyncio
import contextlib
import threading
from contextlib import asynccontextmanager

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
import uvicorn

from kb.agents.mcp import http
from kb.agents.mcp.http import HEAD_BYTES, LINE_BYTES, BoundedProtocol, Door, paced
from kb.base.streams import STREAMS

SECONDS = 30


async def application(scope, receive, send):
    """Answers with the body that it was sent."""
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    body += message.get("body", b"")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connected(app=application):
    """A client's connection to a server of this process."""
    config = uvicorn.Config(app, port=0, http=BoundedProtocol, lifespan="off", ws="none", log_config=None)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.shutdown()


async def talk(*pieces):
    """What is answered to pieces of bytes, each of which is on its way alone, until the connection is closed."""
    async with asyncio.timeout(SECONDS), connected() as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return await reader.read()


def head(*lines):
    return "\r\n".join(["POST /mcp HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", ""]).encode()


def cut(data, size=1_000):
    return [data[at : at + size] for at in range(0, len(data), size)]


def status(answer):
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "sent",
    [
        [b"POST /mcp HTTP/1.1\r\nX-Long: ", *[b"x" * 1_000] * (HEAD_BYTES // 1_000 + 1)],
        [b"POST /", *[b"x" * 1_000] * (HEAD_BYTES // 1_000 + 1)],
        cut(head("X-Long: " + "x" * LINE_BYTES)),
        cut(head(*[f"X-{number}: x" for number in range(64)])),
        [head(*[f"X-{number}: {'x' * 1_000}" for number in range(40)])],
    ],
    ids=["field-without-an-end", "line-without-an-end", "field", "fields", "whole-at-once"],
)
async def test_a_head_beyond_the_bounds_is_refused(sent):
    assert status(await talk(*sent)) == 431


async def test_what_is_sent_after_the_refusal_is_not_taken_in():
    async with asyncio.timeout(SECONDS), connected() as (reader, writer):
        writer.write(b"POST /mcp HTTP/1.1\r\nX-Long: ")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            await reader.read()  # which ends


async def test_a_head_within_the_bounds_and_a_body_of_any_length_are_taken():
    body = bytes(range(256)) * 2_000
    answer = await talk(*cut(head("X-Long: " + "x" * 8_000, f"Content-Length: {len(body)}") + body))
    assert status(answer) == 200
    assert answer.partition(b"\r\n\r\n")[2] == body


async def test_a_body_in_chunks_is_taken_as_it_is():
    chunks = b"".join(b"%x;name=value\r\n%b\r\n" % (1_000, b"x" * 1_000) for _ in range(200))
    answer = await talk(*cut(head("Transfer-Encoding: chunked") + chunks + b"0\r\nX-Trailer: x\r\n\r\n", 777))
    assert status(answer) == 200
    assert answer.partition(b"\r\n\r\n")[2] == b"x" * 200_000


@pytest.mark.parametrize("frame", [b"5;name=", b"0\r\nX-Trailer: "], ids=["extension", "trailer"])
async def test_the_frame_of_a_chunk_has_an_end(frame):
    answer = await talk(head("Transfer-Encoding: chunked") + frame, *[b"x" * 1_000] * (HEAD_BYTES // 1_000 + 1))
    assert status(answer) == 431


async def test_a_body_that_breaks_amid_its_answer_ends_the_connection_without_another_answer():
    async def begins_to_answer(_scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"be", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async with asyncio.timeout(SECONDS), connected(begins_to_answer) as (reader, writer):
        writer.write(head("Transfer-Encoding: chunked"))
        begun = await reader.readuntil(b"\r\n\r\nbe")
        writer.write(b"no length of a chunk\r\n")
        rest = b""
        with contextlib.suppress(ConnectionError):
            rest = await reader.read()

    assert status(begun) == 200
    assert rest == b""


async def test_once_its_body_is_whole_a_request_is_held_to_no_pace(monkeypatch):
    monkeypatch.setattr(http, "CLIENT_SECONDS", 0)
    whole, later = {"type": "http.request", "body": b""}, {"type": "http.disconnect", "reason": "it has its answer"}
    messages = [whole, later]

    async def receive():
        if len(messages) == 1:
            await anyio.lowlevel.checkpoint()  # where one that is too slow is given up
        return messages.pop(0)

    received = paced(receive)

    assert [await received(), await received()] == [whole, later]


async def test_a_call_that_waits_for_a_chat_model_lets_another_one_begin(monkeypatch):
    monkeypatch.setenv("WEB_THREADS", "1")
    monkeypatch.setattr(STREAMS, "aside", STREAMS.aside)
    written, waits = threading.Event(), anyio.Event()

    async def started(_scope, _receive, _send):
        pass

    def ask():
        with STREAMS.waiting():
            anyio.from_thread.run_sync(waits.set)
            return written.wait(SECONDS)

    await Door(started)({"type": "lifespan"}, None, None)
    limiter = anyio.to_thread.current_default_thread_limiter()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as calls:
            calls.start_soon(anyio.to_thread.run_sync, ask)
            await waits.wait()
            assert await anyio.to_thread.run_sync(str, "another") == "another"
            written.set()
    assert limiter.total_tokens == 1
    limiter.total_tokens = 40
