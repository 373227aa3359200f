"""SIGTERM under load: no request fails that a load balancer would have sent, no answer breaks off unsaid, no document is lost."""

import json
import signal
import threading

import pytest

from kb.base import draining
from kb.ingest.services.indexing import index_document, index_documents
from kb.models import Document
from kb.tasks import ingest_document
from tests.deployment.stack import KNOWLEDGE_BASE
from tests.factories import make_kb
from tests.kb.ingest.services.test_indexing import add as add_document
from tests.servers import ModelServer, Reply

CLIENTS = 4


@pytest.fixture
def ending():
    yield
    draining.forget()


def call(stack, method, path, **more):
    return stack.request(method, f"/api/v1/{path}", headers={"Authorization": f"Bearer {stack.key}"}, **more)


@pytest.mark.django_db(transaction=True)
def test_a_worker_without_time_takes_no_document_and_passes_it_on(settings, ending):
    settings.WORKER_GRACE_SECONDS = 0
    document = add_document(make_kb(), b"The warranty lasts for two years.")
    draining.begin()
    assert index_document(document.pk)
    assert index_documents([document.pk]) == [document.pk]
    document.refresh_from_db()
    assert (document.status, document.attempts) == ("pending", 0)


@pytest.mark.django_db(transaction=True)
def test_a_document_half_way_is_given_back_at_its_next_step(settings, ending, monkeypatch):
    settings.WORKER_GRACE_SECONDS = 0
    document = add_document(make_kb(), b"The warranty lasts for two years.")
    from kb.ingest.services import indexing

    parse = indexing._parse

    def parse_and_end(*args):
        draining.begin()
        return parse(*args)

    monkeypatch.setattr(indexing, "_parse", parse_and_end)
    assert index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, document.attempts, document.lease) == ("pending", 0, None)
    draining.forget()
    monkeypatch.undo()
    ingest_document(document.pk)
    assert Document.objects.get(pk=document.pk).status == "ready"


@pytest.mark.django_db(transaction=True)
def test_within_its_time_a_worker_finishes(settings, ending):
    settings.WORKER_GRACE_SECONDS = 60
    document = add_document(make_kb(), b"The warranty lasts for two years.")
    draining.begin()
    assert not index_document(document.pk)
    document.refresh_from_db()
    assert document.status == "ready"


@pytest.fixture(scope="module")
def _terminated_before(servers):
    """A server that is to take its time at SIGTERM has had its first by the time the stack ends its processes."""
    yield
    web = servers.processes.get("web")
    if web and web.poll() is None:
        web.terminate()
        servers.until(lambda: call(servers, "GET", "ready/").status_code == 503, "web")


@pytest.fixture
def web(servers, _terminated_before):
    """A server that goes on for long after SIGTERM, also one that a test before this has left running."""
    found = servers.processes.get("web")
    return found if found and found.poll() is None else servers.start_web(DRAIN_SECONDS="600")


@pytest.mark.django_db(transaction=True)
def test_documents_of_a_worker_that_ends_are_done_by_the_next(servers, web):
    worker = servers.start_worker(WORKER_GRACE_SECONDS="0")
    kb = call(servers, "POST", "knowledge-bases/", json={"name": "many", "language": "en"}).json()["id"]
    for number in range(20):
        # More than what is taken together with others, so that each is a step of its own.
        text = f"Document {number}. " + "The warranty lasts for two years. " * 600
        added = call(
            servers, "POST", f"knowledge-bases/{kb}/documents/", files={"file": (f"{number}.txt", text.encode())}
        )
        assert added.status_code in (201, 202), added.text
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0

    def states():
        rows = call(servers, "GET", f"knowledge-bases/{kb}/documents/?page_size=50").json()["results"]
        return [row["status"] for row in rows]

    assert len(states()) == 20
    assert not {"processing", "failed"} & set(states())
    servers.start_worker()
    servers.until(lambda: set(states()) == {"ready"}, "worker")


@pytest.mark.django_db(transaction=True)
def test_a_web_process_that_ends_fails_no_request_of_a_load_balancer(servers, web):
    told, statuses, errors = threading.Event(), [], []

    def ask():
        while not told.is_set():
            try:
                statuses.append(call(servers, "GET", "knowledge-bases/").status_code)
            except OSError as error:
                errors.append(error)

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    servers.until(lambda: len(statuses) > 20, "web")
    web.send_signal(signal.SIGTERM)
    servers.until(lambda: call(servers, "GET", "ready/").status_code == 503, "web")
    before = len(statuses)
    servers.until(lambda: len(statuses) > before + CLIENTS, "web")  # what comes meanwhile is answered
    told.set()
    for client in clients:
        client.join()
    web.send_signal(signal.SIGTERM)  # a second one does not wait
    assert web.wait(60) == 0
    assert set(statuses) == {200}
    assert errors == []


@pytest.fixture
def asking(servers):
    """Starts a web server whose chat model writes a piece now and then, and asks it for a stream."""
    with ModelServer() as model:

        def ask(pieces, **variables):
            model.always("chat", Reply(["Two ", *["more "] * pieces, "years [1]."], pause_s=0.1))
            web = servers.start_web(LLM_BASE_URL=model.base_url, LLM_MODEL="slow", DRAIN_SECONDS="1", **variables)
            bases = call(servers, "GET", "knowledge-bases/").json()["results"]
            body = {
                "query": "How long is the warranty?",
                "knowledge_base_ids": [each["id"] for each in bases if each["name"] == KNOWLEDGE_BASE],
                "overrides": {"score_threshold": 0},
                "stream": True,
            }
            return web, events_of(call(servers, "POST", "ask/", json=body, stream=True))

        yield ask


def events_of(response):
    """Each event's name and data, as it arrives."""
    assert response.status_code == 200, response.text
    name = ""
    with response:
        for line in response.iter_lines(chunk_size=1, delimiter=b"\n"):
            field, _, value = line.decode().partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("pieces", "grace", "last"),
    [(15, "60", "done"), (600, "2", "error")],
    ids=["is finished", "says that it breaks off"],
)
def test_a_streamed_answer_under_way(asking, pieces, grace, last):
    web, events = asking(pieces, WEB_GRACE_SECONDS=grace)
    assert next(name for name, _ in events if name == "delta")
    web.send_signal(signal.SIGTERM)
    name, data = list(events)[-1]
    assert web.wait(60) == 0
    assert name == last
    if last == "done":
        assert data["answer"].startswith("Two more")
    else:
        assert (data["code"], bool(data["detail"]), bool(data["remedy"])) == ("unavailable", True, True)
