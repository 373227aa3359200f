"""Many streamed answers at once on the web server as it is shipped: none holds what other requests need."""

import contextlib
import itertools
import json
import socket
from types import SimpleNamespace

import pytest

from tests.live.processes import Server, running
from tests.servers import ModelServer, Reply

THREADS = 8  # as shipped
MANY = 40
QUESTION = "年假有几天？"


HANGING = Reply(["五天", "。[1]"], hang_after=1)
"""One piece, and then no more until it is released."""


def web_server(model, **changed):
    command = ("gunicorn", "--config", "python:config.gunicorn", "--bind", "127.0.0.1:{port}")
    variables = {"LLM_BASE_URL": model.base_url, "LLM_MODEL": "m", **changed}
    return Server(*command, probe="/api/v1/health/", **variables)


@pytest.fixture
def model():
    with ModelServer() as made:
        made.always("chat", HANGING)
        yield made


@pytest.fixture
def serving(world, model):
    """Starts a web server that asks the model."""
    with contextlib.ExitStack() as stack:
        yield lambda **changed: stack.enter_context(running(web_server(model, **changed)))
        model.release()  # or the server waits for it


@pytest.fixture(scope="module")
def _shared(world):
    with ModelServer() as model, running(web_server(model)) as server:
        yield server, model


@pytest.fixture
def server(_shared):
    """A web server for tests that leave it as it is."""
    return _shared[0]


@pytest.fixture
def its_model(_shared):
    """The model of `server`."""
    model = _shared[1]
    model.forget()
    model.always("chat", HANGING)
    yield model
    model.release()


class Stream:
    """A client that has asked, and reads no further than it is told to."""

    def __init__(self, server, world, *lines, question=QUESTION):
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self._file = self._socket.makefile("rb")
        self._server, self._world, self._lines = server, world, lines
        self.ask(question)

    def ask(self, question):
        body = {
            "query": question,
            "knowledge_base_ids": [self._world.kb.pk],
            "overrides": {"score_threshold": 0},
            "stream": True,
        }
        self.send("/api/v1/ask/", json.dumps(body).encode())
        self.status = int(self._file.readline().split()[1])
        self.headers = {}
        for line in iter(self._file.readline, b"\r\n"):
            name, _, value = line.decode().strip().partition(": ")
            self.headers[name.lower()] = value

    def send(self, path, body):
        head = [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {self._world.secret}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *self._lines,
        ]
        self._socket.sendall("\r\n".join([*head, "", ""]).encode() + body)

    def body(self):
        """Of an answer with a length."""
        return json.loads(self._file.read(int(self.headers["content-length"])))

    def events(self):
        """Each event's name and data, until the answer ends."""
        name = ""
        while size := int(self._file.readline(), 16):
            piece = self._file.read(size + len("\r\n")).decode()
            for line in piece.splitlines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)
        self._file.readline()

    def until(self, wanted):
        return next(data for name, data in self.events() if name == wanted)

    def close(self):
        self._file.close()
        self._socket.close()


@pytest.fixture
def opening(world):
    """Opens a stream of a server, which is closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda server, *lines, **how: stack.enter_context(
            contextlib.closing(Stream(server, world, *lines, **how))
        )


def until(holds):
    """Asks the server again until it does; each time is a request."""
    assert any(holds() for _ in range(2_000))


def test_more_streams_than_threads_and_connections_leave_others_theirs(server, opening, its_model, committed):
    from django.db import connection

    streams = [opening(server) for _ in range(MANY)]
    for stream in streams:
        assert stream.until("delta") == {"text": "五天"}

    other = opening(server, "Connection: close")
    other.until("delta")
    with committed(), connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        (connections,) = cursor.fetchone()
    assert connections < MANY / 2
    assert its_model.calls["chat"] == MANY + 1  # none waits for a connection to the model either

    its_model.release()
    assert [stream.until("done")["answer"][:2] for stream in streams] == ["五天"] * MANY


def test_after_a_stream_its_connection_takes_the_next_request(server, opening, its_model):
    its_model.always("chat", Reply(["五天", "。[1]"]))
    stream = opening(server)
    first = [name for name, _ in stream.events()]
    stream.ask("病假有工资吗？")
    assert stream.status == 200
    assert [name for name, _ in stream.events()] == first
    assert (first[0], first[-1]) == ("sources", "done")


def test_a_stream_beyond_the_bound_is_refused_before_it_searches(serving, opening, model):
    server = serving(WEB_STREAMS="2")
    streams = [opening(server) for _ in range(2)]
    for stream in streams:
        stream.until("delta")

    refused = opening(server, "Accept-Language: en")

    assert (refused.status, refused.headers["retry-after"]) == (503, "30")
    body = refused.body()
    assert body["code"] == "too_many_streams"
    assert body["detail"].startswith("The server is writing as many answers")
    assert body["remedy"]
    assert model.calls["chat"] == 2


def test_a_client_that_goes_away_frees_its_place_and_the_model(serving, opening, model):
    model.always("chat", Reply(["五天"] * 100_000, pause_s=0.02))
    server = serving(WEB_STREAMS="1")
    left = opening(server)
    left.until("delta")
    assert opening(server).status == 503

    left.close()

    assert model.disconnected.wait(60)
    until(lambda: opening(server).status == 200)


LANGUAGES = list(itertools.islice(itertools.cycle(["zh-hans", "en"]), THREADS + 4))


@pytest.fixture(scope="module")
def ended(world):
    """A web server that got SIGTERM after a stream was done and while others were written."""
    with ModelServer() as model, contextlib.ExitStack() as closing:
        model.once("chat", Reply(["五天", "。[1]"]))
        model.always("chat", Reply(["五天"] * 100_000, pause_s=0.1))
        variables = {"WEB_GRACE_SECONDS": "2", "LOG_LEVEL": "INFO", "LOG_FORMAT": "json"}
        server = closing.enter_context(running(web_server(model, **variables)))

        def opened(*lines):
            return closing.enter_context(contextlib.closing(Stream(server, world, *lines)))

        done = list(opened("X-Request-ID: stream-1").events())
        streams = [opened(f"Accept-Language: {language}") for language in LANGUAGES]
        for stream in streams:
            stream.until("delta")
        code = server.stop()
        last = [list(stream.events())[-1] for stream in streams]
        model.release()
        yield SimpleNamespace(code=code, done=done, last=last, output=server.output())


def test_on_sigterm_all_streams_say_that_they_break_off_in_the_language_of_their_readers(ended):
    assert ended.code == 0
    said = {"zh-hans": "服务器", "en": "The server is being restarted"}
    for language, (name, data) in zip(LANGUAGES, ended.last, strict=True):
        assert (name, data["code"]) == ("error", "unavailable")
        assert data["detail"].startswith(said[language]), data


def test_a_stream_is_one_line_of_the_log_with_its_caller(ended, world):
    assert ended.done[-1][0] == "done"
    lines = [json.loads(line) for line in ended.output.splitlines() if '"zhiku.access"' in line]
    (line,) = [each for each in lines if each.get("request_id") == "stream-1"]
    assert (line["route"], line["status"], line["user"]) == ("api/v1/ask/", 200, world.owner.pk)
