"""What the client makes of a server that answers late, wrongly or not at all; over real sockets."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from kb.ingest.remote_parsers import protocol
from kb.ingest.remote_parsers.docling.client import DoclingServe
from kb.ingest.remote_parsers.protocol import RemoteFailure
from tests.docling_server import answer, cut, docling_server, endless, task

MIB = 1024**2


@pytest.fixture
def server():
    with docling_server() as started:
        yield started


class Client:
    """Converts a file, and notes how long it would have slept."""

    def __init__(self, url, tmp_path, *, seconds=60.0, max_bytes=MIB, api_key=""):
        self.slept, self.waited, self.answer = [], 0, tmp_path / "answer"
        self.file = tmp_path / "机密.pdf"
        self.file.write_bytes(b"%PDF-1.7 content")
        self.parser = DoclingServe(url, api_key, seconds, max_bytes=max_bytes, sleep=self.slept.append)

    def wait(self):
        self.waited += 1

    def convert(self):
        self.parser.convert(self.file, "pdf", self.answer, on_wait=self.wait)
        return self.answer.read_bytes()

    def failure(self):
        with pytest.raises(RemoteFailure) as caught:
            self.convert()
        return caught.value


@pytest.fixture
def client(server, tmp_path):
    return Client(server.url, tmp_path)


def test_a_file_is_handed_in_asked_after_and_fetched(server, client):
    server.script["poll"] += [task("pending"), task("started")]
    assert b'"json_content"' in client.convert()
    assert server.asked == ["submit", "poll", "poll", "poll", "result"]
    assert client.waited == len(server.asked)


def test_the_server_learns_the_format_and_the_key_and_no_name(server, tmp_path):
    Client(server.url, tmp_path, api_key="secret").convert()
    [form] = server.bodies
    assert b"%PDF-1.7 content" in form
    assert b'filename="document.pdf"' in form
    assert b'name="to_formats"\r\n\r\njson' in form
    assert "机密".encode() not in form
    assert set(server.keys) == {"secret"}


@pytest.mark.parametrize("stage", ["submit", "poll", "result"])
@pytest.mark.parametrize("fault", [answer(b"", 500), answer(b"", 503), cut], ids=["500", "503", "cut"])
def test_what_passes_is_tried_again(server, client, stage, fault):
    server.script[stage] += [fault, fault]
    client.convert()
    assert server.asked.count(stage) == 3
    assert [body.count(b"%PDF-1.7 content") for body in server.bodies] == [1] * len(server.bodies)


@pytest.mark.parametrize("stage", ["submit", "poll", "result"])
def test_what_does_not_pass_is_an_outage(server, client, stage):
    server.default[stage] = answer(b"", 500)
    failure = client.failure()
    assert (failure.reason, failure.is_outage) == (protocol.bad_status(500), True)
    assert server.asked.count(stage) == 4


def test_a_busy_server_is_asked_again_when_it_says(server, client):
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)
    server.script["submit"] += [answer(b"", 429, **{"retry-after": "17"}), answer(b"", 429, **{"retry-after": later})]
    client.convert()
    assert 17 <= client.slept[0] < 18
    assert 30 < client.slept[1] < 42


def test_a_server_that_stays_busy_is_left_alone(server, client):
    server.default["submit"] = answer(b"", 429)
    assert client.failure().reason == protocol.BUSY


def test_no_server_is_an_outage(server, client):
    server.stop()
    failure = client.failure()
    assert (failure.reason, failure.is_outage) == (protocol.UNREACHABLE, True)


def test_a_server_that_dies_in_the_middle_is_an_outage(server, client):
    def die(request):
        request.connection.close()
        request.close_connection = True

    server.default["poll"] = die
    assert client.failure().reason == protocol.UNREACHABLE


def test_an_endless_answer_is_cut_off(server, client):
    server.default["result"] = endless
    failure = client.failure()
    assert (failure.reason, failure.is_outage) == (protocol.too_large(MIB), True)
    assert not client.answer.exists()


def test_a_task_that_never_ends_takes_no_longer_than_allowed(server, tmp_path):
    server.default["poll"] = task("started")
    client = Client(server.url, tmp_path, seconds=0.3)
    assert client.failure().reason == protocol.too_slow(0.3)


def test_an_answer_that_trickles_takes_no_longer_than_allowed(server, tmp_path):
    def trickle(request):
        request.send_response(200)
        request.end_headers()
        request.close_connection = True
        try:
            while True:
                request.wfile.write(b" ")
        except OSError:
            return

    server.default["result"] = trickle
    client = Client(server.url, tmp_path, seconds=0.5, max_bytes=1024 * MIB)
    assert client.failure().reason == protocol.too_slow(0.5)


def test_a_result_that_is_gone_is_not_waited_for(server, client):
    server.default["result"] = answer(b'{"detail": "Task not found."}', 404)
    assert client.failure().reason == protocol.GONE
    assert server.asked == ["submit", "poll", "result"]


@pytest.mark.parametrize(
    ("fault", "reason", "is_outage"),
    [
        (task("failure"), protocol.REFUSED, False),
        (task("unheard of"), protocol.MALFORMED, True),
        (task("pending", "../../admin"), protocol.MALFORMED, True),
        (answer(b"<html>"), protocol.MALFORMED, True),
        (answer(b"[" * 100_000), protocol.MALFORMED, True),
        (answer({"detail": "key"}, 401), protocol.bad_status(401), True),
        (answer({"detail": "format"}, 422), protocol.bad_status(422), False),
        (answer(b"", 302, location="http://169.254.169.254/"), protocol.bad_status(302), True),
    ],
)
def test_other_answers_are_no_documents(server, client, fault, reason, is_outage):
    server.default["submit"] = fault
    failure = client.failure()
    assert (failure.reason, failure.is_outage) == (reason, is_outage)
    assert server.asked == ["submit"]


def test_whoever_waits_can_give_up(server, client):
    server.default["poll"] = task("started")

    class Ended(Exception):
        pass

    def wait():
        client.waited += 1
        if client.waited == 3:
            raise Ended

    client.wait = wait
    with pytest.raises(Ended):
        client.convert()


@pytest.mark.parametrize("url", ["", "not a url", "ftp://127.0.0.1/", "http://[::1"])
def test_an_address_that_is_none_is_an_outage(url, tmp_path):
    assert Client(url, tmp_path).failure().is_outage


def test_a_ping_says_what_answers(server, client):
    assert client.parser.ping() == "Docling Serve"
    server.default["health"] = answer(b"", 503)
    with pytest.raises(RemoteFailure):
        client.parser.ping()
