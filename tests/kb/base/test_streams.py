import socket
import threading

import pytest

from kb.base import streams
from kb.base.streams import HELD_BYTES, PIECES_A_SECOND, Outgoing, Streams, after_read, before_read, sending


@pytest.fixture
def ends():
    """Both ends of a connection: the server's and the client's, who never waits."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        yield ours, theirs


def come(client):
    try:
        return client.recv(1_000_000)
    except BlockingIOError:
        return b""


def test_what_is_sent_while_more_is_in_hand_waits_for_it(ends):
    ours, client = ends
    outgoing = Outgoing(ours)
    with sending(outgoing):
        outgoing.sendall(b"sources")
        assert come(client) == b"sources"
        after_read()
        outgoing.sendall(b"one ")
        outgoing.sendall(b"two")
        assert come(client) == b""
        before_read()
        assert come(client) == b"one two"
        after_read()
        outgoing.sendall(b"end")
        assert come(client) == b""
    assert come(client) == b"end"


def test_no_more_is_held_than_fits(ends):
    ours, client = ends
    outgoing = Outgoing(ours)
    outgoing.hold()
    outgoing.sendall(b"x" * HELD_BYTES)
    assert come(client) == b""
    outgoing.sendall(b"y")
    assert come(client) == b"x" * HELD_BYTES + b"y"


def test_a_client_that_has_gone_is_no_fault_of_what_is_read(ends):
    ours, client = ends
    outgoing = Outgoing(ours)
    outgoing.hold()
    outgoing.sendall(b"one")
    client.close()
    assert outgoing.release()
    with pytest.raises(BrokenPipeError):
        outgoing.sendall(b"two")


def test_the_end_of_a_stream_says_that_its_client_has_gone(ends):
    ours, client = ends

    def stream():
        outgoing = Outgoing(ours)
        with sending(outgoing):
            after_read()
            outgoing.sendall(b"one")

    client.close()
    with pytest.raises(BrokenPipeError):
        stream()


def test_only_the_thread_of_a_stream_holds_back(ends):
    ours, client = ends
    outgoing = Outgoing(ours)
    with sending(outgoing):
        other = threading.Thread(target=after_read)
        other.start()
        other.join()
        outgoing.sendall(b"one")
        assert come(client) == b"one"
    after_read()
    outgoing.sendall(b"two")
    assert come(client) == b"two"


def test_the_more_streams_the_longer_each_rests(ends, monkeypatch):
    counted, rests = Streams(500), []
    monkeypatch.setattr(streams, "STREAMS", counted)
    monkeypatch.setattr(streams.time, "sleep", rests.append)
    outgoing = Outgoing(ends[0])
    with sending(outgoing):
        before_read()  # nothing is held before the first piece, which is not to wait
        for _ in range(200):
            counted.begin()
        after_read()
        outgoing.sendall(b"one")
        before_read()
    assert rests == [200 / PIECES_A_SECOND]


def test_streams_are_full_at_their_bound():
    counted = Streams(2)
    counted.begin()
    assert not counted.are_full
    counted.begin()
    assert counted.are_full
    counted.end()
    assert not counted.are_full
