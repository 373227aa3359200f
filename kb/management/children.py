"""The processes of `manage.py serve`: started together, restarted where one ends, and stopped together."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from django.core.management.base import CommandError

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS: Final = 20
MOST_ENDS: Final = 3
WITHIN_SECONDS: Final = 60.0
"""A child that ends more often within this time is ill, and to begin it again would only hide that."""


class Children:
    """Modules of this interpreter, each a process of a session of its own, so that a Ctrl-C reaches only this process.

    Args:
        commands: by name, what follows `python -m`.
        directory: that they run in.
        environment: that they run with.
        say: takes a line for the operator.
    """

    def __init__(
        self,
        commands: Mapping[str, list[str]],
        directory: Path,
        environment: Mapping[str, str],
        say: Callable[[str], object],
    ) -> None:
        self._commands, self._directory, self._environment, self._say = commands, directory, environment, say
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ends: dict[str, deque[float]] = defaultdict(deque)

    def start(self) -> None:
        for name in self._commands:
            self._begin(name)

    def require_alive(self) -> None:
        """While they begin: one that ends then would end again.

        Raises:
            CommandError: one has ended.
        """
        for name, child in self._running.items():
            if child.poll() is not None:
                raise CommandError(f"The {name} ended with code {child.returncode}; its last messages are above.")

    def revive(self) -> None:
        """Restarts those that have ended.

        Raises:
            CommandError: one has ended too often.
        """
        for name, child in self._running.items():
            if child.poll() is None:
                continue
            ends, now = self._ends[name], time.monotonic()
            ends.append(now)
            while ends[0] < now - WITHIN_SECONDS:
                ends.popleft()
            if len(ends) > MOST_ENDS:
                self.require_alive()
            self._say(f"The {name} ended with code {child.returncode}, and is restarted.")
            self._end_what_it_left(child)
            self._begin(name)

    def wait(self, seconds: float) -> list[int]:
        """The exit codes, once all have ended by themselves."""
        return [child.wait(seconds) for child in self._running.values()]

    def stop(self) -> None:
        """Asks all to finish what they do, then ends what is left of each with its own children."""
        for child in self._running.values():
            child.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            self._end_what_it_left(child)

    def _begin(self, name: str) -> None:
        self._running[name] = subprocess.Popen(  # noqa: S603 this interpreter
            [sys.executable, "-m", *self._commands[name]],
            cwd=self._directory,
            env=self._environment,
            start_new_session=True,
        )

    @staticmethod
    def _end_what_it_left(child: "subprocess.Popen[bytes]") -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@contextlib.contextmanager
def running(children: Children) -> Iterator[Children]:
    """Begins them, and ends them whatever happens."""
    try:
        children.start()
        yield children
    finally:
        for number in SIGNALS:  # one is enough: what follows takes at most STOP_SECONDS
            signal.signal(number, signal.SIG_IGN)
        children.stop()
