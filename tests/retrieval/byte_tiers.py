"""A shared tier in memory, and a clock that is set by hand."""

from threading import Event


class DictTier:
    """What several caches of a test share.

    Attributes:
        asked: the keys of all look-ups.
        away: it has nothing and keeps nothing.
        stored: set once it has been given anything.
    """

    def __init__(self):
        self.entries, self.asked, self.away, self.stored = {}, [], False, Event()

    def get(self, key):
        self.asked.append(key)
        return None if self.away else self.entries.get(key)

    def put(self, key, value, ttl_s):
        if not self.away:
            self.entries[key] = value
            self.stored.set()
        return not self.away


class Clock:
    def __init__(self, now=1_000_000.0):
        self.now = now

    def __call__(self):
        return self.now
