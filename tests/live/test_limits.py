"""The web server's own bounds, on a socket: what a client may send before any of the application runs, and how slowly."""

import contextlib
import hashlib
import itertools
import json
import select
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.disks import fill, small_disk
from tests.interleaving import until
from tests.live.processes import Server, running

URL = "/api/v1/search/"
LOGIN = "/admin/login/"
THREADS = 8  # as shipped
LARGE = 300_000_000
SECONDS = 60


def gunicorn(**changed):
    command = ("gunicorn", "--config", "python:config.gunicorn", "--bind", "127.0.0.1:{port}")
    return Server(*command, probe="/api/v1/health/", **changed)


@pytest.fixture(scope="module")
def server(world):
    with running(gunicorn(CLIENT_SECONDS="2")) as made:
        yield made


@pytest.fixture(scope="module")
def patient(world):
    """Cuts slow clients off so late that a test can look at them before."""
    with running(gunicorn(CLIENT_SECONDS="10", WEB_THREADS=str(THREADS))) as made:
        yield made


def talk(server, sent):
    """What the server answers to some bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer


def head(*lines, path="/api/v1/health/", method="GET"):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *lines, "", ""]).encode()


def status(answer):
    return int(answer.split(b" ", 2)[1])


def test_a_request_within_the_bounds_is_answered(server):
    assert status(talk(server, head("X-Long: " + "x" * 4_000))) == 200


def test_nobody_else_says_below_which_path_the_application_is(server):
    sent = head("SCRIPT_NAME: /elsewhere", path="/elsewhere/api/v1/health/")
    assert status(talk(server, sent)) == 404


@pytest.mark.parametrize(
    "sent",
    [
        head(path="/api/v1/health/?" + "x" * 9_000),
        head("X-Long: " + "x" * 9_000),
        head(*[f"X-{number}: x" for number in range(70)]),
    ],
    ids=["line", "field", "fields"],
)
def test_a_head_beyond_the_bounds_is_refused(server, sent):
    assert status(talk(server, sent)) in {400, 414, 431}


def test_a_client_that_stops_in_its_body_is_told_and_let_go(server, world):
    body = json.dumps({"query": "年假", "knowledge_base_ids": [world.kb.pk]}).encode()
    lines = [
        f"Authorization: Bearer {world.secret}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Accept-Language: en",
    ]

    answer = talk(server, head(*lines, path=URL, method="POST") + body[:10])

    assert status(answer) == 408, server.output()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "request_timeout"


def test_clients_that_stop_do_not_keep_others_waiting_for_ever(server, world):
    stalled = []
    lines = [f"Authorization: Bearer {world.secret}", "Content-Type: application/json", "Content-Length: 100"]
    try:
        for _ in range(12):  # more than there are threads
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            connection.sendall(head(*lines, path=URL, method="POST") + b"{")
            stalled.append(connection)

        assert status(talk(server, head())) == 200
    finally:
        for connection in stalled:
            connection.close()


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)


def form_head(length, *lines, path=LOGIN):
    return head(
        "Content-Type: multipart/form-data; boundary=b", f"Content-Length: {length}", *lines, path=path, method="POST"
    )


def beginning_of_a_form(field="file"):
    return f'--b\r\nContent-Disposition: form-data; name="{field}"; filename="a.bin"\r\n\r\n'.encode()


def temporary_files(server):
    """Those that the server's processes have open; gunicorn has one of its own, for its heartbeat."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for pid in [str(server.pid), *children]:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                name = str(file.readlink())
                if name.endswith(("(deleted)", ".upload")) and "wgunicorn" not in name:
                    yield name


@pytest.mark.parametrize("path", [LOGIN, "/i18n/setlang/", "/admin/ask/answer/", "/admin/nowhere/", URL])
@pytest.mark.parametrize("cookies", ["csrftoken=" + "a" * 32, "sessionid=" + "a" * 32], ids=["no-session", "invented"])
def test_a_large_body_of_a_stranger_is_refused_before_it_comes(server, path, cookies):
    with connect(server) as connection:
        connection.sendall(form_head(LARGE, f"Cookie: {cookies}", path=path) + beginning_of_a_form())
        connection.sendall(b"x" * 200_000)  # and no more: the answer waits for none of the rest

        answer = connection.recv(65_536)

        assert status(answer) == 413, server.output()
        assert b"connection: close" in answer.lower()
        assert list(temporary_files(server)) == []


def test_a_large_body_of_a_stranger_is_refused_without_the_database(committed):
    with running(gunicorn(DATABASE_URL="postgres://nobody@127.0.0.1:1/none")) as alone, connect(alone) as connection:
        connection.sendall(form_head(LARGE) + beginning_of_a_form() + b"x" * 200_000)

        assert status(connection.recv(65_536)) == 413, alone.output()


def test_a_large_body_with_a_wrong_key_is_refused_before_it_comes(server):
    with connect(server) as connection:
        connection.sendall(form_head(LARGE, "Authorization: Bearer wrong", path=URL) + b"x" * 200_000)

        assert status(connection.recv(65_536)) == 401, server.output()


@pytest.mark.parametrize("path", [LOGIN, URL])
def test_a_body_in_chunks_is_refused_before_it_comes(server, path):
    lines = ["Content-Type: application/json", "Transfer-Encoding: chunked"]
    with connect(server) as connection:
        connection.sendall(head(*lines, path=path, method="POST") + b"100000\r\n" + b"x" * 200_000)

        assert status(connection.recv(65_536)) == 411, server.output()


def test_a_head_without_an_end_is_refused(server):
    assert status(talk(server, b"GET / HTTP/1.1\r\n" + b"X-Long: x\r\n" * 4_000)) == 431


def drip(connections, stop):
    """Sends a byte over each connection again and again, faster than a bound on the pause between two would notice."""
    while not stop.wait(0.2):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(b"a")


def kinds_of_drippers(world):
    key = f"Authorization: Bearer {world.secret}"
    path = f"/api/v1/knowledge-bases/{world.kb.pk}/documents/"
    return {
        "head": b"GET / HTTP/1.1\r\nX-Long: ",
        "body": form_head(1_000),
        "body-with-a-key": head(key, "Content-Type: application/json", "Content-Length: 1000", path=URL, method="POST"),
        "upload-with-a-key": form_head(1_000_000, key, path=path) + beginning_of_a_form(),
    }


def test_clients_that_drip_keep_nobody_waiting_and_are_cut_off(patient, world):
    """Of all kinds at once, of each more than could hold all threads; they are cut off only after so many seconds."""
    stop = threading.Event()
    with contextlib.ExitStack() as closing:
        drippers = {}
        for kind, sent in kinds_of_drippers(world).items():
            drippers[kind] = [closing.enter_context(connect(patient)) for _ in range(4 * THREADS)]
            for connection in drippers[kind]:
                connection.sendall(sent)
        dripping = threading.Thread(target=drip, args=[[*itertools.chain(*drippers.values())], stop])
        dripping.start()
        closing.callback(dripping.join)
        closing.callback(stop.set)

        answers = [talk(patient, head()) for _ in range(THREADS)]

        assert [status(answer) for answer in answers] == [200] * THREADS
        for kind, connections in drippers.items():
            assert select.select(connections, [], [], 0)[0] == [], kind
        for connection in itertools.chain(*drippers.values()):  # each of them is, within the time that a test waits
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(65_536):
                    pass


def test_an_upload_that_goes_on_slowly_is_taken_in(server, world, new_key, committed):
    from kb.models import ApiKey, Document

    _key, secret = new_key(scope=ApiKey.Scope.WRITE)
    name, text = "slow.txt", "慢慢来。".encode() * 10_000
    body = beginning_of_a_form().replace(b"a.bin", name.encode()) + text + b"\r\n--b--\r\n"
    path = f"/api/v1/knowledge-bases/{world.kb.pk}/documents/"
    with connect(server) as connection:
        connection.sendall(form_head(len(body), f"Authorization: Bearer {secret}", path=path))
        for start in range(0, len(body), len(body) // 8 + 1):
            connection.sendall(body[start : start + len(body) // 8 + 1])
            time.sleep(0.5)  # together twice as long as a client has that sends nothing
        answer = connection.recv(65_536)

    assert status(answer) == 201, (answer, server.output())
    with committed():
        assert Document.objects.get(source=name).sha256 == hashlib.sha256(text).hexdigest()


def test_a_client_that_asks_first_is_told_to_send_or_is_refused(server, world):
    path = f"/api/v1/knowledge-bases/{world.kb.pk}/documents/"
    key = f"Authorization: Bearer {world.secret}"
    with connect(server) as known, connect(server) as stranger:
        known.sendall(form_head(100_000, key, "Expect: 100-continue", path=path))
        stranger.sendall(form_head(100_000, "Expect: 100-continue", path=path))

        assert status(known.recv(65_536)) == 100
        assert status(stranger.recv(65_536)) == 413


def test_requests_sent_ahead_are_answered_in_turn(server, world):
    body = json.dumps({"query": "年假", "knowledge_base_ids": [world.kb.pk]}).encode()
    lines = ["Host: 127.0.0.1", f"Authorization: Bearer {world.secret}", "Content-Type: application/json"]
    search = "\r\n".join([f"POST {URL} HTTP/1.1", *lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

    answer = talk(server, search + search + head())

    assert answer.count(b"HTTP/1.1 200") == 3, answer


@pytest.fixture(scope="module")
def small(world):
    """A server whose temporary files lie on a small disk, and the folder of that disk."""
    with small_disk(16) as folder, running(gunicorn(ZHIKU_DATA_DIR=str(folder))) as made:
        yield made, folder


@pytest.fixture
def upload(world, new_key):
    """Makes the head of an upload of so many bytes."""
    secret = new_key(scope="write")[1]
    path = f"/api/v1/knowledge-bases/{world.kb.pk}/documents/"
    lines = (f"Authorization: Bearer {secret}", "Content-Type: multipart/form-data; boundary=x")
    return lambda length: head(*lines, f"Content-Length: {length}", path=path, method="POST")


def test_an_upload_that_the_disk_has_no_room_for_is_refused_before_it_is_sent(small, upload):
    server, folder = small
    assert status(talk(server, upload(30_000_000))) == 507
    filler = fill(folder)
    answer = talk(server, upload(300_000))
    filler.unlink()
    assert status(answer) == 507
    assert b'"disk_full"' in answer


def test_an_upload_during_which_the_disk_gets_full_is_answered(small, upload):
    server, folder = small
    before = shutil.disk_usage(folder).used
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(upload(2_000_000) + b"x" * 500_000)
        until(lambda: shutil.disk_usage(folder).used > before + 400_000)
        filler = fill(folder)
        with contextlib.suppress(OSError):
            connection.sendall(b"x" * 1_500_000)
        assert status(connection.recv(65_536)) == 507
    filler.unlink()
    assert status(talk(server, head())) == 200
