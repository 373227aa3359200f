"""Work that waits for others and may be cancelled meanwhile: what it waits for is stopped then, and the work raises.

A worker opens a `Watch` for its work (`kb.jobs.leases.watching`). Code that waits says how the wait is stopped; the threads
of the work need its context for that. Where there is no watch, as in a request, nothing here has any effect.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class Watch:
    """What some work waits for now; `error` makes what the work raises once it is cancelled."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error
        self._cancelled = threading.Event()
        self.lock = threading.Lock()
        self.stops: list[Callable[[], object]] = []

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
        with self.lock:  # nothing is stopped whose wait is over
            self._cancelled.set()
            for stop in self.stops:
                stop()

    def check(self) -> None:
        if self._cancelled.is_set():
            raise self._error()


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def interruptible(stop: Callable[[], object]) -> Iterator[None]:
    """A wait that `stop` ends from another thread, at once and without raising; the work's error is raised then."""
    watch = _watch.get()
    if watch is None:
        yield
        return
    with watch.lock:
        watch.check()
        watch.stops.append(stop)
    try:
        yield
    finally:
        with watch.lock:
            watch.stops.remove(stop)
        watch.check()


def sleep(seconds: float) -> None:
    """As `time.sleep`, until the work is cancelled."""
    cancelled = threading.Event()
    with interruptible(cancelled.set):
        cancelled.wait(seconds)


def abandonable(work: Callable[[], T], discard: Callable[[T], object] = lambda _: None) -> T:
    """What `work` returns, which nothing can stop: cancelled work leaves it to a thread, whose result is discarded."""
    if _watch.get() is None:
        return work()
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed to the one who waits
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(error)
        else:
            if outcome.set_running_or_notify_cancel():
                outcome.set_result(result)
            else:
                discard(result)

    with interruptible(outcome.cancel):
        threading.Thread(target=run, name="abandonable", daemon=True).start()
        return outcome.result()
