"""Who reads streams, asks and searches in tests.benchmarks.streams: one process with an event loop, which costs little.

Reads what to do as JSON from its standard input, and prints what it measured as JSON.
"""

import asyncio
import contextlib
import itertools
import json
import sys
import time
from pathlib import Path

RAMP_A_SECOND = 20
PROBES = 40
SEARCHERS = 2


def memory(pid: int) -> int:
    """KiB that a process holds."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


class Clients:
    """Of one server, with one key, over one knowledge base; see `tests.benchmarks.streams` for the fields of `plan`."""

    def __init__(self, plan):
        self.port, self.key, self.kb, self.pid = plan["port"], plan["key"], plan["kb"], plan["pid"]
        self.questions = itertools.cycle(plan["questions"])
        self.seconds, self.streams, self.rounds = plan["seconds"], plan["streams"], plan["rounds"]
        self.pieces = 0

    def request(self, path, question, **more):
        fields = {"query": question, "knowledge_base_ids": [self.kb], "overrides": {"score_threshold": 0}, **more}
        body = json.dumps(fields).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {self.key}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def searches(self, times):
        """Searches one after the other until it is cancelled; seconds of each."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.closing(writer):
            while True:
                started = time.perf_counter()
                writer.write(self.request("/api/v1/search/", next(self.questions), top_k=5))
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                body = json.loads(await reader.readexactly(length))
                times.append(time.perf_counter() - started)
                if not head.startswith(b"HTTP/1.1 200") or not body["results"]:
                    raise RuntimeError(head + str(body).encode())

    async def first_token(self):
        """Seconds from a question to its first piece, without those of its search."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.closing(writer):
            started = time.perf_counter()
            writer.write(self.request("/api/v1/ask/", f"{next(self.questions)} briefly", stream=True))
            first = name = None
            while True:
                line = await reader.readline()
                if not line:
                    raise RuntimeError("a stream broke off")
                if line.startswith(b"event: "):
                    name = line[7:].strip()
                    if name == b"delta" and first is None:
                        first = time.perf_counter() - started
                elif line.startswith(b"data: ") and name in {b"done", b"error"}:
                    times = json.loads(line[6:])["timings_ms"]
                    return first - (times["total"] - times["answer"]) / 1_000

    async def plain(self):
        """Seconds of a request that only finds out who asks, and lists what they may see."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.closing(writer):
            started = time.perf_counter()
            head = ["GET /api/v1/knowledge-bases/ HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {self.key}"]
            writer.write("\r\n".join([*head, "Connection: close", "", ""]).encode())
            answer = await reader.read()
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(answer)
            return time.perf_counter() - started

    async def stream(self, written):
        """Reads an answer for as long as it goes on."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.closing(writer):
            writer.write(self.request("/api/v1/ask/", next(self.questions), stream=True))
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head + await reader.read(2_000))
            await reader.readuntil(b"event: delta\n")
            written.set()
            while data := await reader.read(65_536):
                self.pieces += data.count(b"event: delta")
                if b"event: error" in data or b"event: done" in data:
                    raise RuntimeError(data.decode())
            raise RuntimeError("a stream broke off")

    @contextlib.asynccontextmanager
    async def open_streams(self):
        async with asyncio.TaskGroup() as group:
            tasks = []
            for _ in range(self.streams):
                written = asyncio.Event()
                tasks.append(group.create_task(self.stream(written)))
                await asyncio.gather(written.wait(), asyncio.sleep(1 / RAMP_A_SECOND))
            yield
            for task in tasks:
                task.cancel()

    async def measure(self):
        """What searches, first tokens and plain requests take, in seconds, and the process's memory in KiB."""
        found = {"searches": [], "first": [], "plain": []}
        pieces, started = self.pieces, time.perf_counter()
        searching = [asyncio.create_task(self.searches(found["searches"])) for _ in range(SEARCHERS)]
        await asyncio.wait(searching, timeout=self.seconds, return_when=asyncio.FIRST_EXCEPTION)
        found["pieces_a_second"] = (self.pieces - pieces) / (time.perf_counter() - started)
        for each in searching:
            if each.done():
                each.result()
            each.cancel()
        for _ in range(PROBES):
            found["first"].append(await self.first_token())
            found["plain"].append(await self.plain())
        found["kib"] = memory(self.pid)
        return found

    async def run(self):
        """By turns with and without open streams; a first round warms up."""
        without, with_streams = [], []
        for number in range(self.rounds + 1):
            quiet = await self.measure()
            async with self.open_streams():
                busy = await self.measure()
            if number:
                without.append(quiet)
                with_streams.append(busy)
        return {"without": without, "with": with_streams}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(Clients(json.load(sys.stdin)).run())))
