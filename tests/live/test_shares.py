"""What waits for servers of others, or is kept by one visitor, leaves the web server as it is shipped to everybody else."""

import contextlib
import json
import select
import socket
import uuid

import pytest
import requests

from kb.assistants.chat.answers import VISITOR_STREAMS
from tests.live.processes import Server, running
from tests.servers import ModelServer, Reply

SECONDS = 60
LOGINS, PAGES, QUESTIONS, RESUMED, STREAMS = 16, 8, 8, 16, 12


class Silent:
    """Takes connections and answers nobody."""

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._taken = []
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        return self

    def __exit__(self, *_):
        self._listener.close()
        self.let_go()

    def let_go(self):
        for each in self._taken:
            each.close()
        self._taken.clear()

    def take(self):
        self._listener.settimeout(SECONDS)
        self._taken.append(self._listener.accept()[0])

    def take_all(self):
        """Those that have come meanwhile, too."""
        while select.select([self._listener], [], [], 0)[0]:
            self.take()

    @property
    def holds_all(self):
        """Whether nobody whom it took has given up."""
        for each in self._taken:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while each.recv(65_536):
                    pass
                return False
        return bool(self._taken)


@pytest.fixture(scope="module")
def provider():
    with Silent() as made:
        yield made


@pytest.fixture(scope="module")
def site():
    with Silent() as made:
        yield made


@pytest.fixture(scope="module")
def model():
    with ModelServer() as made:
        yield made


@pytest.fixture(scope="module")
def server(world, provider, site, model):
    variables = {
        "LLM_BASE_URL": model.base_url,
        "LLM_MODEL": "m",
        "OIDC_ISSUER": f"http://{provider.host}",
        "OIDC_CLIENT_ID": "c",
        "OIDC_CLIENT_SECRET": "s",
        "WEB_ALLOWED_HOSTS": site.host,
        "WEB_STREAMS": str(STREAMS),
    }
    command = ("gunicorn", "--config", "python:config.gunicorn", "--bind", "127.0.0.1:{port}")
    with running(Server(*command, probe="/api/v1/health/", **variables)) as made:
        yield made
        model.release()


class Asking:
    """Requests under way over connections of their own."""

    def __init__(self, server):
        self._port = server.port
        self._open = []

    def send(self, method, path, body=None, *lines):
        data = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *lines]
        head += ["Content-Type: application/json", f"Content-Length: {len(data)}"] if data else []
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=SECONDS)
        connection.sendall("\r\n".join([*head, "", ""]).encode() + data)
        self._open.append(connection)
        return connection

    def statuses(self):
        self.answers = [each.makefile("rb").read() for each in self._open]
        return [int(each.split(b" ", 2)[1]) for each in self.answers]

    def close(self):
        for each in self._open:
            each.close()


@pytest.fixture
def asking(server):
    with contextlib.closing(Asking(server)) as made:
        yield made


@pytest.fixture
def key(world):
    return f"Authorization: Bearer {world.secret}"


def assert_others_are_answered(server, world):
    assert requests.get(f"{server.url}/api/v1/health/", timeout=SECONDS).status_code == 200
    found = requests.post(
        f"{server.url}/api/v1/search/",
        json={"query": "年假有几天？", "knowledge_base_ids": [world.kb.pk]},
        headers={"Authorization": f"Bearer {world.secret}"},
        timeout=SECONDS,
    )
    assert found.status_code == 200


def test_sign_ins_with_a_silent_provider(server, world, provider, asking):
    for _ in range(LOGINS):
        asking.send("GET", "/admin/oidc/login/")
    provider.take()
    assert_others_are_answered(server, world)
    provider.take_all()
    assert provider.holds_all
    provider.let_go()
    assert {*asking.statuses()} <= {502, 503}  # so that none of them waits on


def test_documents_by_address_of_a_silent_host(server, world, site, asking, new_key):
    _, secret = new_key(scope="write")
    for _ in range(PAGES):
        path = f"/api/v1/knowledge-bases/{world.kb.pk}/documents/"
        asking.send("POST", path, {"url": f"http://{site.host}/page"}, f"Authorization: Bearer {secret}")
    site.take()
    assert_others_are_answered(server, world)
    site.take_all()
    assert site.holds_all
    site.let_go()


@pytest.mark.parametrize("kind", ["api", "openai"])
def test_questions_whose_answers_are_not_streamed(server, world, model, assistant, asking, key, kind):
    model.forget()
    model.always("chat", Reply("五天。[1]", hang=True))
    question = {
        "api": (
            "/api/v1/ask/",
            {"query": "年假有几天？", "knowledge_base_ids": [world.kb.pk], "overrides": {"score_threshold": 0}},
        ),
        "openai": (
            "/v1/chat/completions",
            {"model": assistant.slug, "messages": [{"role": "user", "content": "年假有几天？"}]},
        ),
    }[kind]
    for _ in range(QUESTIONS):
        asking.send("POST", *question, key)
    assert model.wait_for_calls(QUESTIONS, 20), (model.calls, [each.recv(3000) for each in asking._open])
    assert_others_are_answered(server, world)
    model.release()
    assert asking.statuses() == [200] * QUESTIONS, (asking.answers[0], server.output()[-6000:])


@pytest.fixture(scope="module")
def assistant(world, committed):
    from tests.kb.assistants.making import make_assistant

    with committed():
        from django.db import connections

        made = make_assistant(world.owner, world.kb, name="年假", access="public", settings={"profile": ""})
        connections.close_all()
    return made


class Visitor:
    def __init__(self, server, assistant):
        self.path = f"/chat/{assistant.slug}"
        entered = requests.post(f"{server.url}{self.path}/enter/", json={"visit": ""}, timeout=SECONDS)
        assert entered.status_code == 200, entered.text
        self.line = f"X-Visit: {entered.json()['visit']}"

    @property
    def question(self):
        return ("POST", f"{self.path}/ask/", {"question": "年假有几天？", "sending_id": str(uuid.uuid4())}, self.line)


def event(stream, name):
    """The data of the next event of this name."""
    for line in stream:
        if line.strip() == f"event: {name}".encode():
            return json.loads(next(stream).partition(b": ")[2])
    raise AssertionError(f"no event {name}")


def test_streams_of_one_answer_that_one_visitor_resumes(server, assistant, model, asking):
    model.forget()
    model.always("chat", Reply(["五天", "。[1]"], hang_after=1))
    one, other = Visitor(server, assistant), Visitor(server, assistant)
    message_id = event(asking.send(*one.question).makefile("rb"), "sources")["message_id"]
    resumed = []
    for _ in range(RESUMED):
        resumed.append(asking.send("GET", f"{one.path}/answers/{message_id}/?seen=0", None, one.line).makefile("rb"))
        assert resumed[-1].readline().split()[1] == b"200"
        if len(resumed) > VISITOR_STREAMS:  # the newest has the place of the oldest, which ends once it looks
            assert event(resumed[-1 - VISITOR_STREAMS], "error")["code"] == "too_many_streams"

    asked = asking.send(*other.question).makefile("rb")

    assert asked.readline().split()[1] == b"200"
    assert event(asked, "delta")["text"] == "五天"
    model.release()
