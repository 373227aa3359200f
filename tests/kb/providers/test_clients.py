import ssl

import pytest

from kb.base.net.client import public_tls
from kb.base.streams import Outgoing, sending
from kb.providers import clients
from kb.providers.clients import ModelConnection, http_client, openai_client
from kb.providers.endpoints import Endpoint
from kb.providers.recommended import Role
from tests.web_server import CERTIFICATE, Page, WebServer

HOST = "named.example.org"
TEXT = "The archive opens at nine. " * 10_000  # of many TLS records


@pytest.fixture
def server():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with WebServer(tls=context) as web:
        web.pages["/v1"] = Page(TEXT)
        yield web


@pytest.fixture
def trusted(monkeypatch):
    """The server's certificate, as that of an intranet's authority, which a process reads once."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    public_tls.cache_clear()
    yield
    public_tls.cache_clear()


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("client_of", [http_client, openai_client])
def test_a_server_behind_tls_is_read_whole(server, monkeypatch, client_of):
    monkeypatch.setattr(clients, "addresses_of", lambda *_, **__: ["127.0.0.1"])
    address = f"https://{HOST}:{server.port}/v1"
    endpoint = Endpoint(Role.CHAT, "openai", "m", base_url=address, slug="m", name="m")
    with client_of(endpoint) as client:
        assert [client.get(address).text for _ in range(2)] == [TEXT, TEXT]  # the second over the same connection


class Records:
    """A connection on which some records have arrived, and from which one is read at a time, as with TLS."""

    def __init__(self, *records):
        self.records = [*records]

    def read(self, max_bytes, _timeout=None):
        return self.records.pop(0)[:max_bytes]

    def get_extra_info(self, name):
        assert name == "is_readable"
        return bool(self.records)


def test_what_has_arrived_is_read_together():
    stream = ModelConnection(Records(b"one ", b"two ", b"three"))
    assert stream.read(100) == b"one two three"


def test_the_end_of_a_connection_takes_nothing_with_it():
    stream = ModelConnection(Records(b"one ", b"", b""))
    assert stream.read(100) == b"one "
    assert stream.read(100) == b""


def test_what_was_read_before_is_sent_before_the_next_wait():
    sent = []

    class Client:
        def sendall(self, data):
            sent.append(data)

    class Waits(Records):
        def read(self, max_bytes, timeout=None):
            sent.append(b"<waits>")
            return super().read(max_bytes, timeout)

    stream, outgoing = ModelConnection(Waits(b"one")), Outgoing(Client())
    with sending(outgoing):
        outgoing.sendall(stream.read(100))
        outgoing.sendall(b" and more")
        stream._stream.records.append(b"two")
        outgoing.sendall(stream.read(100))
    assert [each for each in sent if each] == [b"<waits>", b"one and more", b"<waits>", b"two"]
