"""Answers that this process streams, each in a thread of its own: how many there are and may be, and how often they write.

A piece of a few characters costs the system more than the program, to receive it and to send it. So what has arrived
together is sent together, and a thread that has sent something rests before it looks for more: so long that all streams
together wake PIECES_A_SECOND times a second. It needs no settings, since gunicorn asks before they are read.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Of a web process, at once: each holds a thread and a connection to the chat model. Answers that are not streamed are
# among them while their model writes.
MOST: Final = int(os.environ.get("WEB_STREAMS", "256"))
PIECES_A_SECOND: Final = 1_000
HELD_BYTES: Final = 64 * 1024


class Streams:
    """Counts those that have threads of their own; under a server that gives them none it stays at zero.

    Attributes:
        aside: lets another request have the place of this thread while its block runs; set by the server.
    """

    def __init__(self, most: int) -> None:
        self._most, self._open = most, 0
        self._lock = threading.Lock()
        self.aside: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def are_full(self) -> bool:
        """Asked before the work that a stream begins with, so that a few more may begin than are meant to."""
        return self._open >= self._most

    @property
    def rest_s(self) -> float:
        """How long the thread of a stream rests when it has sent something."""
        return self._open / PIECES_A_SECOND

    def begin(self) -> None:
        with self._lock:
            self._open += 1

    def end(self) -> None:
        with self._lock:
            self._open -= 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block waits for a whole answer as a stream waits for the next piece of one."""
        self.begin()
        try:
            with self.aside():
                yield
        finally:
            self.end()


STREAMS: Final = Streams(MOST)


class Share:
    """A stream among those of its reader.

    Attributes:
        topic: what it is of, once that is known.
        is_displaced: another stream of the same has its place, and this one is to end.
    """

    def __init__(self, whose: Collection[Hashable] = (), topic: Hashable = None) -> None:
        self.whose, self.topic = whose, topic
        self.is_displaced = False

    def close(self) -> None:
        SHARES.remove(self)


class Shares:
    """Who reads which streams of this process."""

    def __init__(self) -> None:
        self._open: list[Share] = []
        self._lock = threading.Lock()

    def take(self, limits: Mapping[Hashable, int], topic: Hashable = None) -> Share | None:
        """A place among the streams of those whom `limits` names, None where one has as many as that already.

        It is then that of the oldest one of the same topic, if there is one, which ends.
        """
        with self._lock:
            displaced: set[Share] = set()
            for who, most in limits.items():
                others = [each for each in self._open if who in each.whose and each not in displaced]
                if len(others) >= most:
                    oldest = next((each for each in others if topic is not None and each.topic == topic), None)
                    if oldest is None:
                        return None
                    displaced.add(oldest)
            for each in displaced:
                each.is_displaced = True
                self._open.remove(each)
            share = Share(tuple(limits), topic)
            self._open.append(share)
            return share

    def remove(self, share: Share) -> None:
        with self._lock:
            if share in self._open:
                self._open.remove(share)


SHARES: Final = Shares()


class RequestThreads(ThreadPoolExecutor):
    """Threads of which so many answer requests at once; those that wait `aside` are not among them."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._places = threading.Semaphore(most)
        self._most, self._aside = most, 0
        self._here = threading.local()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        return super().submit(self._in_place, function, *args, **kwargs)

    def _in_place(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._places:
            self._here.has_place = True
            try:
                return function(*args, **kwargs)
            finally:
                self._here.has_place = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        if not getattr(self._here, "has_place", False):  # such as the thread of a stream
            yield
            return
        with self._shutdown_lock:
            self._aside += 1
            self._max_workers = max(self._max_workers, self._most + self._aside)
        self._places.release()
        while self._idle_semaphore.acquire(blocking=False):
            pass  # it counts threads that have found more work among the idle ones
        with suppress(RuntimeError):  # the system has no more threads, or the process ends
            super().submit(int)  # begins a thread, if there are not enough
        try:
            yield
        finally:
            self._places.acquire()
            with self._shutdown_lock:
                self._aside -= 1


class Started(Generator[T, None, None]):
    """A stream whose first item is read already: closing it runs its `finally` clauses also where nobody has read any."""

    def __init__(self, stream: Generator[T, None, None]) -> None:
        self._stream = stream
        self._first = [next(stream)]

    def send(self, value: None, /) -> T:
        return self._first.pop() if self._first else self._stream.send(value)

    def throw(self, *error: Any) -> T:
        self._first.clear()
        return self._stream.throw(*error)


class Outgoing:
    """The socket of a client who is sent a stream; it holds back what is sent while the thread has more in hand."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._held = bytearray()
        self._holds = False
        self.failure: OSError | None = None  # of a client who has gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def sendall(self, data: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        if self._holds and len(self._held) < HELD_BYTES:
            self._held += data
        else:
            self._client.sendall(bytes(self._held) + data)
            self._held.clear()

    def hold(self) -> None:
        self._holds = True

    def release(self) -> bool:
        """Sends what is held, if anything is; a client that has gone is reported by the next `sendall`.

        It is called amid the reading of another connection, whose fault that is not.
        """
        self._holds = False
        if not self._held:
            return False
        try:
            self.sendall(b"")
        except OSError as error:
            self.failure = error
        return True


_of_thread = threading.local()


@contextmanager
def sending(outgoing: Outgoing) -> Iterator[None]:
    """What this thread reads meanwhile between `before_read` and `after_read` is for this client."""
    _of_thread.outgoing = outgoing
    try:
        yield
        outgoing.release()
        if outgoing.failure is not None:
            raise outgoing.failure
    finally:
        _of_thread.outgoing = None


def before_read() -> None:
    """Called before a thread waits for the next part of an answer that it may be streaming."""
    outgoing: Outgoing | None = getattr(_of_thread, "outgoing", None)
    if outgoing is not None and outgoing.release():
        time.sleep(STREAMS.rest_s)


def after_read() -> None:
    """Called when the part is there."""
    outgoing: Outgoing | None = getattr(_of_thread, "outgoing", None)
    if outgoing is not None:
        outgoing.hold()
