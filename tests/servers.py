"""A real HTTP server on the loopback that plays the models: chat completions, embeddings and reranking.

Use it as a context manager; unscripted, it answers every request properly::

    with ModelServer() as server:
        server.always("chat", Reply("It is in the handbook."))   # every answer from now on; text, pieces or a function
        server.once("chat", Reply(status=429), Reply(hang=True))  # the next answers, before those
        client = OpenAIGenerator(base_url=server.base_url, ...)   # POST base_url/chat/completions, /embeddings, /rerank
        assert server.calls["chat"] == 1
        assert server.requests[0].body["messages"][0]["content"] == "..."

Reranking is also served at `server.root_url`/rerank. A request with `texts` is answered in the form of TEI, one with
`documents` in that of Jina and Cohere, and one with `input` in that of DashScope, below its own path. What hangs does so until `release()` or the end of the `with` block; after
`stop()` the address refuses connections.
"""

import hashlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

ENDPOINTS = {
    "chat/completions": "chat",
    "embeddings": "embeddings",
    "rerank": "rerank",
    "services/rerank/text-rerank/text-rerank": "rerank",
}
PIECE = 4


@dataclass(frozen=True)
class Request:
    """`endpoint` is "chat", "embeddings" or "rerank"."""

    endpoint: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Reply:
    """One scripted answer.

    Attributes:
        content: None for a proper answer of the server's own; or a function of the request's body that returns: for
            chat a text or its pieces, for embeddings vectors, for reranking scores in the order of the documents. What
            it would return can stand here too. Nothing checks their number: too few, NaN and the like go out as given.
        status: of HTTP; another than 200 answers with an error object.
        raw: sent as the body as it is, in place of `content`.
        headers: further ones.
        delay_s: before the answer.
        hang: no answer before the release.
        hang_after: a stream hangs after so many pieces.
        break_after: the connection is cut after so many pieces of a stream; any other answer is cut off as a whole.
        finish: False ends a stream without a finish reason and without `[DONE]`.
        pause_s: between a stream's pieces.
        trickle_s: between the bytes of an answer that is not a stream.
        usage: what the answer says of its tokens; of a stream only where the request asks for it.
    """

    content: Any = None
    status: int = 200
    raw: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    hang: bool = False
    hang_after: int | None = None
    break_after: int | None = None
    finish: bool = True
    pause_s: float = 0.0
    trickle_s: float = 0.0
    usage: dict[str, int] | None = None


class ModelServer:
    """See the module's description.

    Args:
        dimension: of the embeddings.
        port: 0: any that is free.

    Attributes:
        requests: those received, oldest first; `calls` counts them by endpoint.
        models: the names that it lists; `listed` has the headers of the requests for them.
        disconnected: set when a client has gone before it had its whole answer.
    """

    def __init__(self, dimension: int = 8, port: int = 0) -> None:
        self.dimension = dimension
        self.requests: list[Request] = []
        self.models = ["chat-model", "text-embedding-small", "bge-reranker"]
        self.listed: list[dict[str, str]] = []
        self.disconnected = threading.Event()
        self.released = threading.Event()
        self._arrived = threading.Condition()
        self._next: dict[str, list[Reply]] = {name: [] for name in ENDPOINTS.values()}
        self._usual: dict[str, Reply] = {name: Reply() for name in ENDPOINTS.values()}
        self._http = _Server(self, port)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self.root_url = f"http://127.0.0.1:{self._http.server_port}"
        self.base_url = f"{self.root_url}/v1"

    def __enter__(self) -> "ModelServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def calls(self) -> Counter[str]:
        return Counter(request.endpoint for request in list(self.requests))

    def once(self, endpoint: str, *replies: Reply) -> None:
        """The next answers, each once."""
        self._next[endpoint].extend(replies)

    def always(self, endpoint: str, reply: Reply) -> None:
        """Every answer that `once` does not state."""
        self._usual[endpoint] = reply

    def release(self) -> None:
        """Lets go of what hangs; from now on nothing does."""
        self.released.set()

    def forget(self) -> None:
        """All that was asked and what it would answer; nothing hangs until the next `release()`."""
        self.release()
        self.released.clear()
        self.requests.clear()
        self.listed.clear()
        for endpoint in self._usual:
            self._next[endpoint].clear()
            self._usual[endpoint] = Reply()

    def wait_for_calls(self, count: int, timeout_s: float = 10.0) -> bool:
        """Whether so many requests have arrived in all."""
        with self._arrived:
            return self._arrived.wait_for(lambda: len(self.requests) >= count, timeout_s)

    def stop(self) -> None:
        """Ends the server and its connections; every further one is refused."""
        self.release()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.cut_connections()
        self._http.server_close()

    def _take(self, request: Request) -> Reply:
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
            queued = self._next[request.endpoint]
            return queued.pop(0) if queued else self._usual[request.endpoint]


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for the threads, so that none outlives its test

    def __init__(self, models: ModelServer, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.models = models
        self.lock = threading.Lock()
        self.connections: set[socket.socket] = set()

    def cut_connections(self) -> None:
        with self.lock:
            for connection in self.connections:
                _cut(connection)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections.add(self.connection)

    def finish(self) -> None:
        with self.server.lock:
            self.server.connections.discard(self.connection)
        super().finish()

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.server.models.disconnected.set()

    def do_GET(self) -> None:
        """The list of models as OpenAI's servers have it, and as TEI says which it serves."""
        models, path = self.server.models, self.path.removeprefix("/v1")
        models.listed.append(dict(self.headers))
        if path == "/models":
            self._send(json.dumps({"data": [{"id": name} for name in models.models]}).encode(), 200)
        elif self.path == "/info":
            self._send(json.dumps({"model_id": models.models[0]}).encode(), 200)
        else:
            self._send(b"{}", 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.removeprefix("/v1").strip("/")
        if path not in ENDPOINTS:
            self._send(b"{}", 404)
            return
        endpoint = ENDPOINTS[path]
        reply = self.server.models._take(Request(endpoint, self.path, dict(self.headers), body))
        released = self.server.models.released
        if reply.hang:
            released.wait()
        elif reply.delay_s:
            released.wait(reply.delay_s)
        streams = endpoint == "chat" and body.get("stream")
        if reply.break_after is not None and not streams:
            self._cut()
        elif reply.raw is not None or reply.status != 200:
            error = {"error": {"message": f"scripted {reply.status}", "type": "scripted"}}
            self._send(json.dumps(error).encode() if reply.raw is None else reply.raw, reply.status, reply)
        elif streams:
            usage = reply.usage if (body.get("stream_options") or {}).get("include_usage") else None
            self._stream(reply, _pieces(_answer(reply, body, lambda _: "An answer from the model.")), usage)
        else:
            answer = _ANSWERS[endpoint](reply, body, self.server.models)
            if reply.usage and isinstance(answer, dict):
                answer["usage"] = reply.usage
            self._send(json.dumps(answer).encode(), 200, reply)

    def _send(self, body: bytes, status: int, reply: Reply = Reply()) -> None:
        self.send_response(status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not reply.trickle_s:
            self.wfile.write(body)
            return
        for byte in body:
            self.wfile.write(bytes([byte]))
            self.server.models.released.wait(reply.trickle_s)

    def _stream(self, reply: Reply, pieces: Iterable[str], usage: dict[str, int] | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for count, piece in enumerate(pieces):
            if count == reply.hang_after:
                self.server.models.released.wait()
            if count == reply.break_after:
                self._cut()
                return
            self._event(json.dumps(_chunk({"role": "assistant", "content": piece}, None)))
            if reply.pause_s:
                self.server.models.released.wait(reply.pause_s)
        if reply.finish:
            self._event(json.dumps(_chunk({}, "stop")))
            if usage:
                self._event(json.dumps({**_chunk({}, None), "choices": [], "usage": usage}))
            self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _cut(self) -> None:
        _cut(self.connection)
        self.close_connection = True

    def _event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")

    def log_message(self, *args: object) -> None:
        """Keeps the test output clean."""


def embedding(text: str, dimension: int) -> list[float]:
    """The server's own vector of a text: the same for the same text, of no meaning, not normalised."""
    digest = hashlib.shake_128(text.encode()).digest(dimension)
    return [byte / 128 - 1 + 1 / 256 for byte in digest]


def overlap(query: str, text: str) -> float:
    """The server's own relevance of a text: the share of the query's characters that it holds."""
    characters = set(query.lower()) - {" "}
    return len(characters & set(text.lower())) / max(1, len(characters))


def _answer(reply: Reply, body: Any, proper: Callable[[Any], Any]) -> Any:
    if callable(reply.content):
        return reply.content(body)
    return proper(body) if reply.content is None else reply.content


def _pieces(answer: str | Iterable[str]) -> Iterable[str]:
    if not isinstance(answer, str):
        return answer
    starts = [*range(0, len(answer), PIECE), len(answer)]
    return [answer[start:end] for start, end in pairwise(starts)]


def _chat(reply: Reply, body: Any, _: ModelServer) -> Any:
    answer = _answer(reply, body, lambda _: "An answer from the model.")
    text = answer if isinstance(answer, str) else "".join(answer)
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "chat-1", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}


def _chunk(delta: dict[str, str], finish_reason: str | None) -> Any:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "chat-1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


def _embeddings(reply: Reply, body: Any, models: ModelServer) -> Any:
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    vectors = _answer(reply, body, lambda _: [embedding(text, models.dimension) for text in texts])
    return {"object": "list", "data": [{"index": place, "embedding": row} for place, row in enumerate(vectors)]}


def _rerank(reply: Reply, body: Any, _: ModelServer) -> Any:
    if "input" in body:
        answer = _rerank(reply, {**body["input"], **body["parameters"], "model": body["model"]}, _)
        return {"output": {"results": answer["results"]}, "request_id": "1"}
    tei = "texts" in body
    texts = body["texts"] if tei else [doc if isinstance(doc, str) else doc["text"] for doc in body["documents"]]
    scores = _answer(reply, body, lambda _: [overlap(body["query"], text) for text in texts])
    best_first = sorted(enumerate(scores), key=lambda item: -item[1])
    if tei:
        return [{"index": place, "score": score} for place, score in best_first]
    rows = [{"index": place, "relevance_score": score} for place, score in best_first[: body.get("top_n")]]
    return {"model": body.get("model"), "results": rows}


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was faster


_ANSWERS: dict[str, Callable[[Reply, Any, ModelServer], Any]] = {
    "chat": _chat,
    "embeddings": _embeddings,
    "rerank": _rerank,
}
