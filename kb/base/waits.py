"""Requests that wait for a server of somebody else: a quarter of the threads at most, so that the others answer on.

It needs no settings, since the library's clients are made before they are read.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.utils.translation import gettext as _

from kb.base.errors import ServiceError

RETRY_SECONDS: Final = 10
MOST: Final = max(1, int(os.environ.get("WEB_THREADS", "8")) // 4)


class TooManyWaits(ServiceError):
    """As many requests as may wait for other servers do so already, or one of the same user does."""


class OutsideWaits:
    """So many requests may wait at once, and one of a user."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[int | None] = []
        self._lock = threading.Lock()

    @contextmanager
    def one(self, user_id: int | None = None) -> Iterator[None]:
        """The block waits for another server; `user_id` None: for nobody who is known. Raises TooManyWaits."""
        with self._lock:
            if user_id is not None and user_id in self._waiting:
                raise TooManyWaits(
                    _("An earlier request of yours still waits for another server: try again in a moment.")
                )
            if len(self._waiting) >= self._most:
                raise TooManyWaits(
                    _("Too many requests wait for other servers at the moment: try again in a few seconds.")
                )
            self._waiting.append(user_id)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.remove(user_id)


OUTSIDE: Final = OutsideWaits(MOST)
