"""Pace of requests: how often we ask one host, and how slowly a client may send."""

import os
import threading
import time
from collections.abc import Callable
from typing import Final

# For a request's head; for each further piece of its body; and for a client to take a piece of the answer.
CLIENT_SECONDS: Final = float(os.environ.get("CLIENT_SECONDS", "20"))


# Bytes a second that have to come of a body, over each CLIENT_SECONDS.
CLIENT_MIN_RATE: Final = int(os.environ.get("CLIENT_MIN_RATE", "1000"))


HOSTS: Final = 1_000


class Politeness:
    """Keeps requests to one host apart, those of all threads together.

    Args:
        seconds: between two requests to a host, at least.
        clock: and `sleep`: of the process.
    """

    def __init__(
        self,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._free_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def wait(self, host: str, at_least: float = 0.0) -> None:
        """Returns when the host may be asked.

        Args:
            host: its name and port.
            at_least: seconds between two requests that the host itself asks for.
        """
        gap = max(self._seconds, at_least)
        with self._lock:
            now = self._clock()
            turn = max(now, self._free_at.get(host, now))
            self._free_at[host] = turn + gap
            if len(self._free_at) > HOSTS:
                self._free_at = {name: free for name, free in self._free_at.items() if free > now}
        if turn > now:
            self._sleep(turn - now)
