"""A chat model on the loopback for many streams at once, in a process of its own that costs little.

It writes a piece RATE times a second until its reader leaves. A question with the word `briefly` is answered at once, in few
pieces. Prints its port.

    python -m tests.benchmarks.streams_model RATE
"""

import asyncio
import json
import random
import sys

BRIEFLY = b"briefly"
PIECES = ("第三条", "规定，", "保修期为", "两年，", "自购买", "之日起", "计算。")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(piece: str) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": piece}, "finish_reason": None}
    chunk = {"id": "chat-1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
    return framed(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode())


def framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


EVENTS = [event(piece) for piece in PIECES]
END = framed(b"data: [DONE]\n\n") + framed(b"")


class Model(asyncio.Protocol):
    def __init__(self, pause: float) -> None:
        self._pause, self._received, self._written = pause, b"", 0
        self._transport: asyncio.Transport
        self._next: asyncio.TimerHandle | None = None

    def connection_made(self, transport):
        self._transport = transport

    def data_received(self, data):
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        if not end or len(body) < length:
            return
        self._received = b""
        self._transport.write(HEAD + EVENTS[0])
        if BRIEFLY in body:
            self._transport.write(b"".join(EVENTS[1:]) + END)
        else:
            self._later(random.random() * self._pause)

    def _write(self):
        self._written += 1
        self._transport.write(EVENTS[self._written % len(EVENTS)])
        self._later(self._pause)

    def _later(self, seconds):
        self._next = asyncio.get_running_loop().call_later(seconds, self._write)

    def connection_lost(self, _error):
        if self._next is not None:
            self._next.cancel()


async def main(rate: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Model(1 / rate), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
