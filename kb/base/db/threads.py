"""Threads beside a request's own."""

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import connections

P = ParamSpec("P")
R = TypeVar("R")


class ConnectionReturningExecutor(ThreadPoolExecutor):
    """Threads that give their database connection back to the pool after each job.

    A job's log lines and spans belong to the request that asked for it.
    """

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        def job() -> R:
            try:
                return function(*args, **kwargs)
            finally:
                connections.close_all()

        return super().submit(contextvars.copy_context().run, job)
