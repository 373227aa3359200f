import gc
import json
import socket
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from retrieval.embedders.openai_http import OpenAIEmbedder
from retrieval.errors import ModelUnavailable


class EmbeddingServer(ThreadingHTTPServer):
    """Answers with the replies that a test queued, then with a correct one."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests = []
        self.headers_seen = []
        self.replies = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, body=None, *, status=200, headers=()):
        self.replies.append((status, dict(headers), body if isinstance(body, bytes) else json.dumps(body).encode()))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, request))
        self.server.headers_seen.append(dict(self.headers))
        if self.server.replies:
            status, headers, body = self.server.replies.pop(0)
        else:
            status, headers, body = 200, {}, json.dumps(correct(request["input"])).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Keeps the test output clean."""


def correct(texts):
    return {"data": [{"index": place, "embedding": vector(text)} for place, text in enumerate(texts)]}


def vector(text):
    return [float(len(text)), 1.0, 0.0]


def data(*rows):
    return {"data": [{"index": place, "embedding": row} for place, row in enumerate(rows)]}


@pytest.fixture
def server():
    running = EmbeddingServer()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture
def waits():
    return []


@pytest.fixture
def embedder(server, waits):
    return OpenAIEmbedder("openai:m", base_url=server.url + "/", api_key="key", batch_size=2, sleep=waits.append)


def test_documents_are_embedded_in_batches_and_normalised(server, embedder):
    vectors = embedder.embed_documents(["a", "bb", "ccc"])

    expected = np.array([vector("a"), vector("bb"), vector("ccc")])
    assert vectors == pytest.approx(expected / np.linalg.norm(expected, axis=1, keepdims=True))
    assert vectors.dtype == np.float32
    assert server.requests == [
        ("/v1/embeddings", {"model": "m", "input": ["a", "bb"], "encoding_format": "float"}),
        ("/v1/embeddings", {"model": "m", "input": ["ccc"], "encoding_format": "float"}),
    ]


def test_the_key_is_sent_as_a_bearer_token(server, embedder):
    embedder.embed_query("a")

    assert server.headers_seen[0]["Authorization"] == "Bearer key"


def test_without_a_key_no_authorization_is_sent(server):
    embedder = OpenAIEmbedder("openai:m", base_url=server.url)
    embedder.embed_query("a")

    assert "Authorization" not in server.headers_seen[0]


def test_rows_are_put_in_the_order_of_their_index(server, embedder):
    server.reply({"data": [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]})

    assert embedder.embed_documents(["first", "second"]).tolist() == [[1, 0], [0, 1]]


def test_rows_without_an_index_keep_their_order(server, embedder):
    server.reply({"data": [{"embedding": [1, 0]}, {"embedding": [0, 1]}]})

    assert embedder.embed_documents(["first", "second"]).tolist() == [[1, 0], [0, 1]]


def test_an_empty_text_is_sent_as_a_space(server, embedder):
    embedder.embed_documents(["", "a"])

    assert server.requests[0][1]["input"] == [" ", "a"]


def test_a_query_gets_its_model_s_instruction_and_a_document_none(server):
    embedder = OpenAIEmbedder("openai:BAAI/bge-large-zh-v1.5", base_url=server.url)
    embedder.embed_query("年假")
    embedder.embed_documents(["年假"])

    assert [request["input"] for _, request in server.requests] == [
        ["为这个句子生成表示以用于检索相关文章：年假"],
        ["年假"],
    ]
    assert server.requests[0][1]["model"] == "BAAI/bge-large-zh-v1.5"


def test_the_dimension_is_asked_for_once(server, embedder):
    assert (embedder.dimension, embedder.dimension) == (3, 3)
    assert len(server.requests) == 1


def test_the_dimension_is_known_after_an_embedding(server, embedder):
    embedder.embed_query("a")

    assert embedder.dimension == 3
    assert len(server.requests) == 1


def test_no_documents_give_no_rows(embedder):
    assert embedder.embed_documents([]).shape == (0, 3)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_passing_failure_is_tried_again(server, embedder, waits, status):
    server.reply(status=status)
    server.reply(status=status)

    assert embedder.embed_documents(["a"]).shape == (1, 3)
    assert len(server.requests) == 3
    assert 0.5 <= waits[0] <= 1.0
    assert 1.0 <= waits[1] <= 1.5


def test_attempts_for_documents_are_bounded(server, embedder, waits):
    for _ in range(6):
        server.reply(status=503)

    with pytest.raises(ModelUnavailable, match=r"failed 5 times \(HTTP 503\): see whether it runs"):
        embedder.embed_documents(["a"])
    assert len(waits) == 4


def test_attempts_for_a_query_are_fewer(server, embedder, waits):
    server.reply(status=503)
    server.reply(status=503)

    with pytest.raises(ModelUnavailable, match="failed 2 times"):
        embedder.embed_query("a")
    assert len(waits) == 1


def test_a_server_that_is_down_is_tried_again_then_reported(waits):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else may listen there
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        embedder = OpenAIEmbedder("openai:m", base_url=address, sleep=waits.append)
        with pytest.raises(ModelUnavailable, match=r"ConnectError.*check EMBEDDING_BASE_URL"):
            embedder.embed_query("a")
    assert len(waits) == 1


def test_retry_after_in_seconds_is_respected(server, embedder, waits):
    server.reply(status=429, headers={"Retry-After": "7"})

    embedder.embed_documents(["a"])

    assert waits == [7.0]


def test_retry_after_as_a_date_is_respected(server, embedder, waits):
    moment = datetime.now(UTC) + timedelta(seconds=40)
    server.reply(status=503, headers={"Retry-After": format_datetime(moment, usegmt=True)})

    embedder.embed_documents(["a"])

    assert waits == [pytest.approx(40, abs=10)]


def test_retry_after_in_the_past_means_now(server, embedder, waits):
    server.reply(status=503, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})

    embedder.embed_documents(["a"])

    assert waits == [0.0]


def test_a_retry_after_that_means_nothing_is_ignored(server, embedder, waits):
    server.reply(status=503, headers={"Retry-After": "soon"})

    embedder.embed_documents(["a"])

    assert 0.5 <= waits[0] <= 1.0


def test_a_query_does_not_wait_longer_than_its_caller_would(server, embedder, waits):
    server.reply(status=429, headers={"Retry-After": "30"})

    with pytest.raises(ModelUnavailable, match=r"asks to wait 30 s \(HTTP 429\): try again then"):
        embedder.embed_query("a")
    assert waits == []


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_reported_at_once(server, embedder, status):
    server.reply({"error": {"message": "unknown thing"}}, status=status)

    with pytest.raises(
        ModelUnavailable, match=rf"HTTP {status}.*unknown thing.*check EMBEDDING_BASE_URL, EMBEDDING_API_KEY"
    ):
        embedder.embed_documents(["a"])
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"<html>", "is not JSON"),
        ([], "does not follow"),
        ({}, "does not follow"),
        ({"data": [1]}, "does not follow"),
        ({"data": [{"index": 0}]}, "does not follow"),
        ({"data": [{"index": "x", "embedding": [1]}]}, "does not follow"),
        (data([1, 0], [1]), "does not follow"),
        (data(["a"], ["b"]), "does not follow"),
        (data(None, None), "holds no vectors"),
        (data([], []), "holds no vectors"),
        (data([1, 0]), "has 1 vectors for 2 texts"),
        (data([1, 0], [0, 1], [1, 1]), "has 3 vectors for 2 texts"),
        ({"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}, "has 1 vectors for 2 texts"),
        ({"data": [{"index": 1, "embedding": [1]}, {"index": 2, "embedding": [1]}]}, "has 2 vectors for 2 texts"),
    ],
)
def test_an_unusable_answer_is_reported(server, embedder, body, fault):
    server.reply(body)

    with pytest.raises(ModelUnavailable, match=f"{fault}.*: see whether it serves 'm'"):
        embedder.embed_documents(["a", "b"])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.0])
def test_a_vector_without_direction_is_reported(server, embedder, number):
    server.reply(data([number, 0.0]))

    with pytest.raises(ModelUnavailable, match="zero or not finite"):
        embedder.embed_query("a")


def test_a_change_of_dimension_is_reported(server, embedder):
    embedder.embed_query("a")
    server.reply(data([1, 0]))

    with pytest.raises(ModelUnavailable, match="has 2 dimensions after 3 before"):
        embedder.embed_query("a")


def test_a_missing_base_url_is_reported_on_use_not_on_construction():
    embedder = OpenAIEmbedder("openai:m", base_url="")

    with pytest.raises(ModelUnavailable, match=r"model 'openai:m' has no server: set EMBEDDING_BASE_URL"):
        embedder.embed_query("a")


@pytest.mark.parametrize("url", ["example.org/v1", "ftp://example.org", "http://[broken"])
def test_a_malformed_base_url_is_reported(url, waits):
    embedder = OpenAIEmbedder("openai:m", base_url=url, sleep=waits.append)

    with pytest.raises(ModelUnavailable, match="EMBEDDING_BASE_URL"):
        embedder.embed_query("a")


def test_a_dropped_embedder_closes_its_connections(server):
    embedder = OpenAIEmbedder("openai:m", base_url=server.url)
    embedder.embed_query("a")

    del embedder
    gc.collect()  # an open socket would raise a ResourceWarning here


def test_threads_share_the_embedder(server, embedder):
    results = []
    threads = [threading.Thread(target=lambda: results.append(embedder.embed_query("a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 8
    assert all(np.array_equal(result, results[0]) for result in results)


def test_tokens_are_estimated(embedder):
    assert embedder.count_tokens("知识库 test") == 5
