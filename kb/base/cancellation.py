"""Work that waits for others and may be cancelled meanwhile: what it waits for is stopped then, and the work raises.

A worker opens a `Watch` for its work (`kb.jobs.leases.watching`). Code that waits says how the wait is stopped; the threads
of the work need its context for that. Where there is no watch, as in a request, nothing here has any effect.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class Watch:
    """What some work waits for now; `error` makes what the work raises once it is cancelled."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._stops: list[Callable[[], object]] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The work of this context; a fault that its cancellation has caused is its cancellation."""
        token = _watch.set(self)
        try:
            yield
        except Exception:
            self.check()
            raise
        finally:
            _watch.reset(token)

    def cancel(self) -> None:
        """Stops what the work waits for, and whatever it would wait for after that."""
        with self._lock:  # nothing is stopped whose wait is over
            self._cancelled.set()
            for stop in self._stops:
                stop()

    def check(self) -> None:
        if self._cancelled.is_set():
            raise self._error()

    @contextmanager
    def stopping_by(self, stop: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self.check()
            self._stops.append(stop)
        try:
            yield
        finally:
            with self._lock:
                self._stops.remove(stop)
            self.check()

    def sleep(self, seconds: float) -> None:
        self._cancelled.wait(seconds)
        self.check()


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def interruptible(stop: Callable[[], object]) -> Iterator[None]:
    """A wait that `stop` ends from another thread, at once and without raising; the work's error is raised then."""
    watch = _watch.get()
    with nullcontext() if watch is None else watch.stopping_by(stop):
        yield


def sleep(seconds: float) -> None:
    """As `time.sleep`, until the work is cancelled."""
    watch = _watch.get()
    (time if watch is None else watch).sleep(seconds)


def abandonable(work: Callable[[], T], discard: Callable[[T], object] = lambda _: None) -> T:
    """What `work` returns, which nothing can stop: cancelled work leaves it to a thread, whose result is discarded."""
    if _watch.get() is None:
        return work()
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed to the one who waits
            with suppress(InvalidStateError):
                outcome.set_exception(error)
            return
        try:
            outcome.set_result(result)
        except InvalidStateError:
            discard(result)

    with interruptible(outcome.cancel):
        threading.Thread(target=run, name="abandonable", daemon=True).start()
        return outcome.result()
