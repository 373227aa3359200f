"""How long work may take and where it runs: a search's budget, calls of models that may hang, and one piece of work a key at a time."""

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, Self, TypeVar

from retrieval.errors import CircuitOpen, ModelTimeout, ModelUnavailable, _, message_of

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

FAILURES_TO_OPEN = 3
SECONDS_OPEN = 30.0


class InlineExecutor(Executor):
    """Runs in the caller's thread, so that channels see what its open transaction has written."""

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        future.set_result(function(*args, **kwargs))
        return future


class Threads(Executor):
    """A thread for each job, for which the process does not wait when it ends; its log lines and spans are the caller's.

    RuntimeError: the system has no thread for it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        job: Future[R] = Future()

        def run() -> None:
            try:
                job.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - handed to the one who waits
                job.set_exception(error)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(run,), name=self.name, daemon=True).start()
        return job


class NoRoom(Exception):
    """All threads of an executor are taken."""


class Share(Executor):
    """At most so many jobs at once in the threads of an executor: each takes some of the `room` that is left, or raises NoRoom."""

    def __init__(self, executor: Executor, most: int) -> None:
        self._executor, self.room = executor, threading.BoundedSemaphore(most)

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        if not self.room.acquire(blocking=False):
            raise NoRoom
        try:
            job = self._executor.submit(function, *args, **kwargs)
        except BaseException:
            self.room.release()
            raise
        job.add_done_callback(lambda _: self.room.release())
        return job


@dataclass(frozen=True, slots=True)
class Budget:
    """The time that a search may take, in seconds of `time.monotonic`."""

    started: float
    channels_end: float  # when the channels must have answered, so that time is left for the stages after them
    end: float  # when the answer is due

    @classmethod
    def of(cls, seconds: float) -> Self:
        now = time.monotonic()
        return cls(now, now + seconds - min(0.4 * seconds, 1.0), now + seconds)

    def remaining(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def channel_deadline(self, timeout_ms: int | None) -> float:
        """When a channel with a time limit of its own must have answered."""
        return self.channels_end if timeout_ms is None else min(self.channels_end, self.started + timeout_ms / 1_000)


class CircuitBreaker:
    """Closed until a number of failures in a row; then open for a while, after which one call tries again.

    A library would count what a call raises. Here the one who waits notices that a call hangs, so it reports failures.

    Source: Nygard, "Release It!", 2007.
    """

    def __init__(
        self,
        failures_to_open: int = FAILURES_TO_OPEN,
        seconds_open: float = SECONDS_OPEN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures_to_open = failures_to_open
        self._seconds_open = seconds_open
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._is_trying = False
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Whether a call may be made now; the first after the pause keeps the others out until it has ended."""
        with self._lock:
            if self._failures < self._failures_to_open:
                return True
            now = self._clock()
            if now < self._open_until:
                return False
            self._open_until = now + self._seconds_open
            self._is_trying = True
            return True

    def succeeded(self) -> None:
        with self._lock:
            self._failures = 0
            self._is_trying = False

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._is_trying = False
            if self._failures >= self._failures_to_open:
                self._open_until = self._clock() + self._seconds_open

    def undecided(self) -> None:
        """A call ended that says nothing of the model; if it was the one that tries again, another one may."""
        with self._lock:
            if self._is_trying:
                self._open_until = self._clock()
                self._is_trying = False


class ModelGuard:
    """Calls one model: so many at once, each until its deadline, and none for a while after it has failed repeatedly.

    A call that hangs keeps its slot and its thread until it returns; the process and its exit do not wait for it.

    `name` is the model's, for messages; `slots` calls may run at once. The model may take `patience_s` seconds: a
    caller with less time does not make it a failure, or whoever is in a hurry would take the model from all others.
    """

    def __init__(
        self, name: str, *, slots: int, breaker: CircuitBreaker | None = None, patience_s: float = 0.0
    ) -> None:
        self.name = name
        self.breaker = breaker or CircuitBreaker()
        self._slots = threading.BoundedSemaphore(slots)
        self._threads = Threads(f"model {name}")
        self._patience_s = patience_s
        self._running: dict[Future[Any], float] = {}
        self._last_fault = ""

    def call(self, function: Callable[[], R], deadline: float) -> R:
        """What the function returns or raises, at the latest at `deadline` (of `time.monotonic`).

        Raises CircuitOpen where the model has failed repeatedly a short while ago, and ModelTimeout where it did not
        answer in time.
        """
        if not self.breaker.allows():
            raise CircuitOpen(
                _(
                    "model {name!r} failed repeatedly and is not asked for {seconds:.0f} s; the last time: "
                    "{last_fault}",
                    name=self.name,
                    seconds=SECONDS_OPEN,
                    last_fault=self._last_fault,
                )
            )
        if not self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._timed_out(ModelTimeout(too_late(self.name)), time.monotonic())
        started = time.monotonic()
        try:
            outcome = self._threads.submit(function)
        except RuntimeError as error:  # the system has no more threads, which is no fault of the model
            self._slots.release()
            self.breaker.undecided()
            raise ModelTimeout(too_late(self.name)) from error
        self._running[outcome] = started
        outcome.add_done_callback(self._ended)
        if not wait([outcome], timeout=max(0.0, deadline - time.monotonic())).done:
            raise self._timed_out(ModelTimeout(too_late(self.name)), started)
        try:
            result = outcome.result()
        except ModelTimeout as error:
            self._timed_out(error, started)
            raise
        except ModelUnavailable as error:
            self._failed(error)
            raise
        self.breaker.succeeded()
        return result

    def _failed(self, error: ModelUnavailable) -> ModelUnavailable:
        self._last_fault = message_of(error)
        self.breaker.failed()
        return error

    def _timed_out(self, error: ModelTimeout, started: float) -> ModelUnavailable:
        """Counts against the model where a call has run for as long as it may, be it another one that keeps the slot."""
        if time.monotonic() - min([started, *list(self._running.values())]) >= self._patience_s:
            return self._failed(error)
        self.breaker.undecided()
        return error

    def _ended(self, outcome: "Future[Any]") -> None:
        self._running.pop(outcome, None)
        self._slots.release()


def too_late(model: str) -> str:
    """What a search says of a model that it has waited for in vain, whoever has given up first."""
    return _("model {model!r} did not answer in time: check its load, or allow more time", model=model)


# Hands the result to all who wait; the work may go on after that, for example to publish it.
Land = Callable[[T], None]


class SingleFlight(Generic[T]):
    """Runs work off the callers' threads, once a key."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Future[T]] = {}

    def join(self, key: Hashable, work: Callable[[Land[T]], None]) -> Future[T]:
        """The result of the work under way for `key`, or of `work`, which starts now and calls what it is given once."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                flight = Future()
                self._executor.submit(self._fly, key, flight, work)
                # Only now: a flight that the executor refused would never land, and all who ask would wait for it.
                self._flights[key] = flight
            return flight

    def _fly(self, key: Hashable, flight: Future[T], work: Callable[[Land[T]], None]) -> None:
        def land(result: T) -> None:
            self._over(key)
            flight.set_result(result)

        try:
            work(land)
        except Exception as error:
            if flight.done():
                logger.exception("the work for %s failed after it had its result", key)
            else:
                self._fail(key, flight, error)
        else:
            if not flight.done():
                self._fail(key, flight, RuntimeError(f"the work for {key} ended without a result"))

    def _fail(self, key: Hashable, flight: Future[T], error: Exception) -> None:
        self._over(key)
        flight.set_exception(error)

    def _over(self, key: Hashable) -> None:
        with self._lock:
            del self._flights[key]
