"""Driving two at once: one is held at a stage until the other has come as far as it can."""

import threading
import time

from django.db import connection, connections

PATIENCE = 60


class Running(threading.Thread):
    """A call in a thread of its own, with its error."""

    def __init__(self, function, *arguments):
        super().__init__()
        self._call = (function, arguments)
        self.error = None
        self.start()

    def run(self):
        function, arguments = self._call
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            connections.close_all()

    def outcome(self):
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.error


class Gate:
    """Holds the first call of a function, before it begins or after it has returned, until it is opened."""

    def __init__(self, monkeypatch, owner, name, *, after=False):
        self._reached, self._opened = threading.Event(), threading.Event()
        real, calls = getattr(owner, name), iter([True])

        def held(*arguments, **keywords):
            if not next(calls, False):
                return real(*arguments, **keywords)
            result = real(*arguments, **keywords) if after else None
            self._reached.set()
            assert self._opened.wait(PATIENCE)
            return result if after else real(*arguments, **keywords)

        monkeypatch.setattr(owner, name, held)

    def wait(self):
        assert self._reached.wait(PATIENCE)

    def open(self):
        self._opened.set()


def until(condition):
    """Asks again and again, a moment apart, for what another thread or process is about to bring about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.005)


def until_somebody_waits_for_a_lock():
    until(_somebody_waits_for_a_lock)


def _somebody_waits_for_a_lock():
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS ({waiting})")
        return cursor.fetchone()[0]
