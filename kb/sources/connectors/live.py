"""What a page or a feed says at this moment, for a query that waits for it."""

import threading
import time
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from kb.base.net.backend import Deadline
from kb.base.net.client import Ask, WebClient
from kb.ingest.parser.sandbox import Limits
from kb.sources.connectors.content import READABLE, content_of_page
from kb.sources.connectors.feed import read_feed
from kb.sources.connectors.kinds import scope_of
from kb.sources.connectors.listing import Candidate
from kb.sources.connectors.robots import Robots
from kb.sources.models import WebSource

TTL_S: Final = 300.0
SOURCES: Final = 200
MAX_ENTRIES: Final = 100
LOOKED_AT: Final = 500
"""Entries of a feed, of which those count that the source wants."""
ENTRY_CHARACTERS, PAGE_CHARACTERS, TITLE_CHARACTERS = 20_000, 200_000, 500
"""What is kept in memory of what a source says."""
LIVE_KINDS: Final = frozenset({WebSource.Kind.PAGE, WebSource.Kind.FEED})


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """A page, or an entry of a feed, as text."""

    url: str
    title: str
    text: str
    published: datetime | None = None


class LiveCache:
    """Keeps what sources said for a few minutes, in this process.

    Args:
        ttl_s: for how long.
    """

    def __init__(self, ttl_s: float = TTL_S) -> None:
        self._ttl_s = ttl_s
        self._kept: dict[tuple[object, ...], tuple[float, tuple[LiveEntry, ...]]] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[object, ...]) -> tuple[LiveEntry, ...] | None:
        with self._lock:
            at, entries = self._kept.get(key, (0.0, None))
        return entries if entries is not None and time.monotonic() - at < self._ttl_s else None

    def put(self, key: tuple[object, ...], entries: tuple[LiveEntry, ...]) -> None:
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = (time.monotonic(), entries)
            while len(self._kept) > SOURCES:
                del self._kept[next(iter(self._kept))]

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


CACHE: Final = LiveCache()


def live_entries(
    source: WebSource, client: WebClient, *, seconds: float, limits: Limits | None = None, cache: LiveCache = CACHE
) -> tuple[LiveEntry, ...]:
    """The present entries of a page or a feed; of other kinds none, which cannot be read while somebody waits.

    Args:
        source: its kind and address are what counts.
        client: reads them.
        seconds: that all of it may take.
        limits: of the parser that reads a page; None: those of the sandbox, within `seconds`.
        cache: what is in it is not asked for again.

    Raises:
        FetchError: the address cannot be read, or not in that time.
        ParseError: no text can be read from the page.
    """
    if source.kind not in LIVE_KINDS:
        return ()
    key = (source.kind, source.url, tuple(source.include), tuple(source.exclude), source.max_pages)
    kept = cache.get(key)
    if kept is not None:
        return kept
    deadline = Deadline(seconds)
    if source.kind == WebSource.Kind.PAGE:
        entries = _page(source, client, deadline, limits)
    else:
        entries = _feed(source, client, deadline)
    cache.put(key, entries)
    return entries


def _feed(source: WebSource, client: WebClient, deadline: Deadline) -> tuple[LiveEntry, ...]:
    scope = scope_of(source)
    found = read_feed(client.fetch(source.url, Ask(deadline=deadline)), deadline=deadline, texts=LOOKED_AT)
    accepted = (candidate for candidate in found[:LOOKED_AT] if scope.accepts(candidate.url))
    entries = (_entry(candidate) for candidate in islice(accepted, min(source.max_pages, MAX_ENTRIES)))
    return tuple(entry for entry in entries if entry.text)


def _entry(candidate: Candidate) -> LiveEntry:
    text = candidate.text or candidate.title
    return LiveEntry(candidate.url, candidate.title, text[:ENTRY_CHARACTERS], candidate.published)


def _page(source: WebSource, client: WebClient, deadline: Deadline, limits: Limits | None) -> tuple[LiveEntry, ...]:
    robots = Robots(client, deadline)
    fetched = client.fetch(source.url, Ask(types=READABLE, deadline=deadline, before_hop=robots.check))
    limits = limits or Limits(seconds=deadline.remaining(source.url))
    content = content_of_page(fetched, limits)
    title = (content.title or source.name)[:TITLE_CHARACTERS]
    return (LiveEntry(fetched.url, title, content.text[:PAGE_CHARACTERS], content.published),)
