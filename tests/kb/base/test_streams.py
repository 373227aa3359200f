import socket
import threading

import pytest

from kb.base import streams
from kb.base.streams import (
    HELD_BYTES,
    PIECES_A_SECOND,
    Outgoing,
    RequestThreads,
    Shares,
    Streams,
    after_read,
    before_read,
    sending,
)


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


def test_who_waits_for_a_whole_answer_lets_another_request_have_its_place():
    threads, counted = RequestThreads(1), Streams(1)
    counted.aside = threads.aside
    waits, written = threading.Event(), threading.Event()

    def ask():
        with counted.waiting():
            waits.set()
            assert written.wait(60)
        return "answer"

    with threads:
        # After some that had to queue, the library takes more of its threads for idle than are.
        assert [each.result(60) for each in [threads.submit(int) for _ in range(20)]] == [0] * 20
        asked = threads.submit(ask)
        queued = threads.submit(str, "queued before")
        assert waits.wait(60)
        assert queued.result(60) == "queued before"
        assert threads.submit(str, "later").result(60) == "later"
        assert counted.are_full
        written.set()
        assert asked.result(60) == "answer"
    assert not counted.are_full


def test_no_more_requests_are_answered_at_once_after_some_have_waited():
    threads, gate = RequestThreads(1), threading.Barrier(4)

    def ask():
        with threads.aside():
            gate.wait(60)
        return threading.get_ident()

    with threads:
        asked = [threads.submit(ask) for _ in range(4)]
        assert len({each.result(60) for each in asked}) == 4  # idle now

        def work():
            other = threads.submit(int)
            with pytest.raises(TimeoutError):
                other.result(0.1)
            return other

        assert threads.submit(work).result(60).result(60) == 0


def test_a_thread_that_has_no_place_of_the_server_gives_none_up():
    threads = RequestThreads(1)
    with threads, threads.aside():
        release = threading.Event()
        held = threads.submit(release.wait, 60)
        second = threads.submit(int)
        assert not second.done()
        release.set()
        assert held.result(60)
        assert second.result(60) == 0


@pytest.fixture
def shares(monkeypatch):
    made = Shares()
    monkeypatch.setattr(streams, "SHARES", made)
    return made


def test_a_stream_beyond_a_share_is_refused_until_another_ends(shares):
    held = [shares.take({"ann": 2}) for _ in range(2)]
    assert shares.take({"ann": 2}) is None
    assert shares.take({"bob": 2}) is not None
    held[0].close()
    held[0].close()  # which changes nothing
    assert shares.take({"ann": 2}) is not None
    assert shares.take({"ann": 2}) is None


def test_the_oldest_stream_of_the_same_gives_its_place_to_the_newest(shares):
    other, first, second = (shares.take({"ann": 3, "home": 3}, topic) for topic in (1, 2, 2))
    assert shares.take({"ann": 3, "home": 3}, 2) is not None
    assert [each.is_displaced for each in (other, first, second)] == [False, True, False]
    assert shares.take({"ann": 3}, 3) is None


def test_what_a_stream_is_of_may_be_known_later(shares):
    first = shares.take({"ann": 1})
    assert shares.take({"ann": 1}, 7) is None
    first.topic = 7
    assert shares.take({"ann": 1}, 7) is not None
    assert first.is_displaced


def test_nobody_is_displaced_for_a_stream_that_is_refused(shares):
    own = shares.take({"ann": 1, "home": 2}, 1)
    shares.take({"bob": 1, "home": 2}, 2)
    shares.take({"cat": 1, "work": 1}, 3)
    assert shares.take({"ann": 1, "work": 1}, 1) is None
    assert not own.is_displaced
