"""What a provider publishes of itself, its addresses and keys: asked once in ten minutes, and of one that is down not at all."""

import time
from collections.abc import Callable, Hashable
from typing import Any, Final

from kb.signin.http import Unreachable

KEPT_SECONDS: Final = 600.0
# How old an answer is at least that is asked for again since it lacks something, such as a new key.
REFRESH_SECONDS: Final = 60.0
DOWN_SECONDS: Final = 30.0


class Metadata:
    """Answers of this process; a provider that is unreachable is taken for that for DOWN_SECONDS."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        self._kept: dict[Hashable, tuple[float, Any]] = {}
        self._failures: dict[Hashable, tuple[float, Unreachable]] = {}

    def read(self, key: Hashable, ask: Callable[[], Any], *, refresh: bool = False) -> Any:
        """What `ask` returns, or has returned; raises as it does, and Unreachable where it did a short while ago."""
        read_at, answer = self._kept.get(key, (0.0, None))
        if answer is not None and self._clock() - read_at < (REFRESH_SECONDS if refresh else KEPT_SECONDS):
            return answer
        failed_at, failure = self._failures.get(key, (0.0, None))
        if failure is not None and self._clock() - failed_at < DOWN_SECONDS:
            raise Unreachable(str(failure)) from failure.__cause__
        try:
            answer = ask()
        except Unreachable as error:
            self._failures[key] = self._clock(), error
            raise
        self._kept[key] = self._clock(), answer
        return answer


METADATA: Final = Metadata()
