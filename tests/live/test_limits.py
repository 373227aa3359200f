"""The web server's own bounds, on a socket: what a client may send before any of the application runs, and how slowly."""

import json
import socket

import pytest

from tests.live.processes import Server, running

URL = "/api/v1/search/"


@pytest.fixture(scope="module")
def server(world):
    made = Server(
        "gunicorn",
        "--config",
        "python:config.gunicorn",
        "--bind",
        "127.0.0.1:{port}",
        probe="/api/v1/health/",
        CLIENT_SECONDS="1",
    )
    with running(made):
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
