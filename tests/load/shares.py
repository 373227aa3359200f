"""What others notice while one user, visitor or server takes all it can get, as multiples of the same action alone.

Starts an installation of its own on the loopback, with servers that are slow or silent. Run alone as
`python -m tests.load.shares [background|waiting|streams ...]`; takes some minutes. The exit code is 0 where every promise held: a note becomes searchable in
at most twice its time, no connection is left ten seconds after its source was deleted, and health, searches and other
visitors' questions are answered throughout.
"""

import concurrent.futures
import contextlib
import io
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.streams_model import EVENTS
from tests.serving import ROOT, environment, free_port, serving

FOLDER_S, SILENT_S, MODEL_S, LONG_S = 25.0, 60.0, 8.0, 60.0
MOST_TIMES = 2.0
LEFT_AFTER_S = 10.0
BESIDE_S, ANSWERS_S = 10.0, 2.0
STREAMS = 256
WITHIN_S = 300.0
LONG = "LONG"
FURNISH = """
import json
from kb.access.services.api_keys import api_key_create
from kb.models import User
from tests.factories import make_document, make_kb, make_user
from tests.kb.assistants.making import make_assistant
made = {}
for name in ("greedy", "other"):
    user = make_user(name)
    kb = make_kb(user, name, language="en")
    make_document(kb, "The heater has a warranty of two years.")
    made[name] = {"kb": kb.pk, "key": api_key_create(user=user, name="load", scope="write")[1]}
    make_assistant(user, kb, name=name, slug=name, access="public")
print(json.dumps(made))
"""
MULTISTATUS = """<?xml version="1.0"?><d:multistatus xmlns:d="DAV:">{}</d:multistatus>"""
FOLDER = """<d:response><d:href>{}</d:href><d:propstat><d:prop><d:resourcetype><d:collection/></d:resourcetype></d:prop>
<d:status>HTTP/1.1 200 OK</d:status></d:propstat></d:response>"""


class Slow(ThreadingHTTPServer):
    """Folders that take their time, a host that never answers, and a chat model; each by its path."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        self.listing: set[object] = set()
        self.ended = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Its clients leave as they like."""


class Handler(BaseHTTPRequestHandler):
    """Of `Slow`."""

    protocol_version = "HTTP/1.1"
    server: Slow

    def do_PROPFIND(self) -> None:
        """Three further folders in every folder; noted for as long as the client's connection stands."""
        self.server.listing.add(self)
        try:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self._waits(FOLDER_S):
                paths = [self.path, *(f"{self.path.rstrip('/')}/{name}/" for name in "abc")]
                self._answer(207, MULTISTATUS.format("".join(map(FOLDER.format, paths))).encode(), "application/xml")
        finally:
            self.server.listing.discard(self)

    def do_GET(self) -> None:
        """Silence."""
        self._waits(SILENT_S)
        self.close_connection = True

    def do_POST(self) -> None:
        """An answer by a chat model, after a while, or little by little where the question asks for a long one."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if json.loads(body).get("stream"):
            self._stream(long=LONG in body)
        else:
            self._waits(MODEL_S)
            message = {"role": "assistant", "content": "Two years [1]."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._answer(200, json.dumps({"id": "1", "choices": [choice]}).encode(), "application/json")

    def _stream(self, *, long: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        deadline = time.monotonic() + (LONG_S if long else 0)
        self.wfile.write(EVENTS[0])
        while time.monotonic() < deadline and not self.server.ended.wait(0.5):
            self.wfile.write(EVENTS[1])
        end = b"data: [DONE]\n\n"
        self.wfile.write(f"{len(end):x}\r\n".encode() + end + b"\r\n0\r\n\r\n")

    def _answer(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _waits(self, seconds: float) -> bool:
        """Whether the client is still there after that time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.server.ended.is_set():
            self.connection.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                try:
                    if not self.connection.recv(1, socket.MSG_PEEK):
                        return False
                except ConnectionError:
                    return False
                time.sleep(0.1)  # it has sent something more
        self.connection.settimeout(None)
        return True

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Caller:
    """Whoever calls the installation with a key."""

    def __init__(self, url: str, kb: int, key: str) -> None:
        self.url, self.kb, self.key = url, kb, key
        self.client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=WITHIN_S)

    def post(self, path: str, **fields: Any) -> httpx.Response:
        """RuntimeError with what the server says where it refuses."""
        answer = self.client.post(f"/api/v1/{path}", json=fields)
        if answer.is_error:
            raise RuntimeError(answer.text)
        return answer

    def note(self) -> float:
        """Seconds until a new note is found."""
        word = f"unique{uuid.uuid4().hex}"
        began = time.monotonic()
        self.post(
            f"knowledge-bases/{self.kb}/documents/", text=f"The number of this note is {word}."
        ).raise_for_status()
        while time.monotonic() < began + WITHIN_S:
            results = self.search(word).json()["results"]
            if any(word in each["text"] for each in results):
                return time.monotonic() - began
            time.sleep(0.1)
        return float("inf")

    def search(self, query: str = "How long is the warranty?") -> httpx.Response:
        return self.post("search/", query=query, knowledge_base_ids=[self.kb], score_threshold=0)

    def health(self) -> httpx.Response:
        return self.client.get("/api/v1/health/").raise_for_status()


class Visitor:
    """An anonymous visitor of an assistant's chat."""

    def __init__(self, url: str, slug: str) -> None:
        self.url, self.slug = url, slug
        self.client = httpx.Client(base_url=f"{url}/chat/{slug}/", timeout=WITHIN_S)
        self.visit = self.client.post("enter/", json={}).raise_for_status().json()["visit"]
        self.client.headers["X-Visit"] = self.visit

    @contextlib.contextmanager
    def asking(self, question: str) -> Iterator[Iterator[str]]:
        fields = {"question": question, "sending_id": str(uuid.uuid4())}
        with self.client.stream("POST", "ask/", json=fields) as answer:
            answer.raise_for_status()
            yield answer.iter_lines()

    def first_event(self) -> float:
        """Seconds from a question to the first piece of its answer."""
        began = time.monotonic()
        try:
            with self.asking("How long is the warranty?") as lines:
                next(line for line in lines if line == "event: delta")
        except httpx.HTTPStatusError:
            return float("inf")
        return time.monotonic() - began

    def resumed(self, message_id: int) -> socket.socket:
        """A stream of an answer from its beginning, of which nobody reads anything."""
        place = httpx.URL(self.url)
        opened = socket.create_connection((place.host, place.port), timeout=WITHIN_S)
        path = f"/chat/{self.slug}/answers/{message_id}/?seen=0"
        opened.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.host}\r\nX-Visit: {self.visit}\r\n\r\n".encode())
        return opened


def typical(action: Callable[[], object], times: int = 5) -> float:
    """The median of its seconds."""
    return statistics.median(seconds_of(action) for _ in range(times))


def seconds_of(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


class Report:
    """Prints each finding, and remembers whether a promise broke."""

    def __init__(self) -> None:
        self.broken = False
        print("| | alone | then | times |\n|---|---|---|---|")

    def row(self, name: str, alone: float, then: float, *, most: float | None = None) -> None:
        self.broken |= most is not None and then > most * alone
        print(f"| {name} | {alone:.2f} s | {then:.2f} s | {then / alone:.1f} |", flush=True)

    def promise(self, name: str, held: bool) -> None:
        self.broken |= not held
        print(f"| {name} | | | {'yes' if held else 'NO'} |", flush=True)


def background(report: Report, slow: Slow, greedy: Caller, other: Caller) -> None:
    """Two sources whose server is slow and an archive of files that are hard to read; another user's note meanwhile."""
    alone = statistics.median(other.note() for _ in range(3))
    address = f"http://127.0.0.1:{slow.server_port}/dav/"
    fields = {"knowledge_base_id": greedy.kb, "kind": "webdav"}
    sources = [greedy.post("sources/", name=name, settings={"url": f"{address}{name}/"}, **fields) for name in "xy"]
    ids = [each.json()["id"] for each in sources]
    for each in ids:
        greedy.client.post(f"/api/v1/sources/{each}/run/")
    wait_until(lambda: bool(slow.listing))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for number in range(10):
            files.writestr(f"{number}.md", f"{number} " + "![" * 125_000)
    documents = f"/api/v1/knowledge-bases/{greedy.kb}/documents/"
    greedy.client.post(documents, files={"file": ("hard.zip", archive.getvalue())}).raise_for_status()
    report.row("another user's note is found", alone, other.note(), most=MOST_TIMES)
    for each in ids:
        greedy.client.delete(f"/api/v1/sources/{each}/").raise_for_status()
    left = wait_until(lambda: not slow.listing)
    report.promise(f"no connection left {left:.1f} s after the sources were deleted", left <= LEFT_AFTER_S)


def waiting(report: Report, outside: str, greedy: Caller, other: Caller) -> None:
    """Requests that wait for servers that do not answer, one kind after the other."""
    beside(report, "16 logins at a silent provider", [lambda: httpx.get(f"{greedy.url}/admin/oidc/login/")] * 16, other)
    path = f"knowledge-bases/{greedy.kb}/documents/"
    silent = [lambda n=n: greedy.post(path, url=f"{outside}/silent/{n}") for n in range(8)]
    beside(report, "8 documents of a silent host", silent, other)
    question = {"query": "How long is the warranty?", "knowledge_base_ids": [greedy.kb]}
    beside(report, "8 answers in one piece", [lambda: greedy.post("ask/", **question)] * 8, other)


def beside(report: Report, name: str, requests: Sequence[Callable[[], object]], other: Caller) -> None:
    """Health and searches while the requests wait."""
    alone = {"health": typical(other.health), "search": typical(other.search)}
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        pending = [pool.submit(each) for each in requests]
        worst = {"health": 0.0, "search": 0.0}
        began = time.monotonic()
        while time.monotonic() < began + BESIDE_S and any(not each.done() for each in pending):
            for what, action in (("health", other.health), ("search", other.search)):
                worst[what] = max(worst[what], seconds_of(action))
            time.sleep(0.2)
        for what, seconds in worst.items():
            report.row(f"{what} at worst, beside {name}", alone[what], seconds)
            report.promise(f"{what} answers throughout", seconds < ANSWERS_S)


def streams(report: Report, url: str) -> None:
    """Many resumed streams of one visitor, and another's question."""
    visitor, other = Visitor(url, "greedy"), Visitor(url, "other")
    alone = statistics.median(other.first_event() for _ in range(3))
    with visitor.asking(f"How long is the warranty? {LONG}") as lines, contextlib.ExitStack() as opened:
        message_id = next(
            json.loads(line[6:])["message_id"] for line in lines if line.startswith("data: ") and "message_id" in line
        )
        for _ in range(STREAMS):
            opened.enter_context(contextlib.closing(visitor.resumed(message_id)))
        time.sleep(1.0)
        then = other.first_event()
        report.row(f"another visitor's first word, beside {STREAMS} resumed streams", alone, then)
        report.promise("another visitor's question is answered", then < ANSWERS_S)


def wait_until(condition: Callable[[], bool]) -> float:
    """Seconds until it is so; infinity where it is not within `WITHIN_S`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + WITHIN_S:
            return float("inf")
        time.sleep(0.1)
    return time.monotonic() - began


def main() -> None:
    """Run and print; exit code 1 where a promise broke."""
    folder = Path(tempfile.mkdtemp(prefix="zhiku-shares-"))
    slow = Slow()
    threading.Thread(target=slow.serve_forever, daemon=True).start()
    port = free_port()
    url, outside = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{slow.server_port}"
    variables = environment(folder) | {
        "OIDC_ISSUER": f"{outside}/oidc",
        "OIDC_CLIENT_ID": "zhiku",
        "OIDC_CLIENT_SECRET": "secret",
        "WEB_ALLOWED_HOSTS": "127.0.0.1",
        "LLM_BASE_URL": f"{outside}/v1",
        "LLM_MODEL": "slow",
        "CACHE_ENABLED": "false",
        "RERANKER_MODEL": "",
    }
    try:
        with serving(port, variables, "--workers", "2", "--no-mcp"):
            command = [sys.executable, "manage.py", "shell", "-v", "0", "-c", FURNISH]
            told = subprocess.run(
                command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=True
            ).stdout
            made = json.loads(told.splitlines()[-1])
            greedy, other = (Caller(url, **made[name]) for name in ("greedy", "other"))
            report = Report()
            parts: dict[str, Callable[[], None]] = {
                "background": lambda: background(report, slow, greedy, other),
                "waiting": lambda: waiting(report, outside, greedy, other),
                "streams": lambda: streams(report, url),
            }
            for name in sys.argv[1:] or parts:
                parts[name]()
    finally:
        slow.ended.set()
        slow.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    if report.broken:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
