"""One piece of work a key at a time: whoever asks meanwhile waits for the same result."""

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

Land = Callable[[T], None]
"""Hands the result to all who wait; the work may go on after that, for example to publish it."""


class SingleFlight(Generic[T]):
    """Runs work off the callers' threads, once a key.

    Args:
        executor: runs the work.
    """

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
