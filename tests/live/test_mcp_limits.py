"""Clients of the MCP server that send slowly: they keep nobody waiting, and are cut off."""

import contextlib
import itertools
import select
import socket
import threading

import pytest
import requests

from tests.live.processes import Server, running

THREADS = 8
SECONDS = 60


@pytest.fixture(scope="module")
def server(world):
    made = Server("manage", "mcp", "--http", "--port", "{port}", probe="/health", CLIENT_SECONDS="5", METRICS_PORT="")
    with running(made):
        yield made


def head(*lines):
    return "\r\n".join(["POST /mcp HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


def kinds_of_drippers(world):
    body = ("Content-Type: application/json", "Accept: application/json, text/event-stream", "Content-Length: 1000")
    return {
        "head": b"POST /mcp HTTP/1.1\r\nX-Long: ",
        "body": head(*body),
        "body-with-a-key": head(f"Authorization: Bearer {world.secret}", *body),
    }


def drip(connections, stop):
    while not stop.wait(0.2):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(b"a")


def test_clients_that_drip_keep_nobody_waiting_and_are_cut_off(server, world):
    """Of all kinds at once, of each more than could hold all threads."""
    stop = threading.Event()
    with contextlib.ExitStack() as closing:
        drippers = {}
        for kind, sent in kinds_of_drippers(world).items():
            drippers[kind] = [
                closing.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS))
                for _ in range(4 * THREADS)
            ]
            for connection in drippers[kind]:
                connection.sendall(sent)
        dripping = threading.Thread(target=drip, args=[[*itertools.chain(*drippers.values())], stop])
        dripping.start()
        closing.callback(dripping.join)
        closing.callback(stop.set)

        asked = requests.post(f"{server.url}/mcp", timeout=SECONDS)

        assert asked.status_code == 401
        for kind in ("head", "body-with-a-key"):  # one without a key has its answer
            assert select.select(drippers[kind], [], [], 0)[0] == [], kind
        for connection in itertools.chain(*drippers.values()):
            with contextlib.suppress(ConnectionError):
                while connection.recv(65_536):
                    pass
