"""Driving two at once: one is held at a stage until the other has come as far as it can."""

import threading

from django.db import connections

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
