"""RSS and Atom feeds: entries that carry their text, or lead to it."""

import calendar
import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, Final

import feedparser

from kb.ingest.connectors.listing import Candidate, Order, normal
from kb.ingest.connectors.robots import Robots
from kb.net.client import Ask, Fetched, WebClient
from kb.net.errors import FetchCode, FetchError

TITLE_CHARACTERS: Final = 500


class FeedListing:
    """The entries of a feed, in its order.

    It is never complete: an entry that has left the feed is still published.
    """

    def __init__(self, client: WebClient, robots: Robots, order: Order) -> None:  # noqa: ARG002 - the feed is for us
        self.is_complete = False
        self._client = client
        self._order = order

    def __iter__(self) -> Iterator[Candidate]:
        entries = read_feed(self._client.fetch(self._order.url, Ask(deadline=self._order.deadline)))
        kept = [entry for entry in entries if self._order.scope.accepts(entry.url)]
        if not kept:
            raise FetchError(FetchCode.EMPTY_LISTING)
        yield from kept[: self._order.max_pages]

    def met(self, candidate: Candidate, links: Iterable[str]) -> None:
        """A feed names its entries itself."""


def read_feed(fetched: Fetched) -> list[Candidate]:
    """The entries of a feed, each address once.

    An entry that carries its content is taken as it is; of one with a summary only, the page that it leads to is read.

    Raises:
        FetchError: it is no feed.
    """
    # A stream: of bytes the library would first try whether they name a file.
    parsed = feedparser.parse(
        BytesIO(fetched.content),
        response_headers={"content-type": _content_type(fetched), "content-location": fetched.url},
    )
    if not parsed.get("version"):
        raise FetchError(FetchCode.NOT_A_FEED)
    entries: dict[str, Candidate] = {}
    for entry in parsed.entries:
        candidate = _candidate(entry, fetched.url)
        if candidate is not None:
            entries.setdefault(candidate.url, candidate)
    return list(entries.values())


def _candidate(entry: Any, base: str) -> Candidate | None:
    """None for an entry of which nothing can be read."""
    summary = str(entry.get("summary", ""))
    own = "\n".join(str(part.get("value", "")) for part in entry.get("content", ()))
    title = " ".join(str(entry.get("title", "")).split())[:TITLE_CHARACTERS]
    link = normal(str(entry.get("link", "")), base) if entry.get("link") else None
    if link is None:
        own = own or summary
        link = _address(str(entry.get("id", "")) or title, base) if own else None
    if link is None:
        return None
    stated = "\0".join((title, own, summary, str(_stated(entry, "updated")), str(_stated(entry, "published"))))
    return Candidate(
        url=link,
        title=title,
        content=own or None,
        summary=summary,
        version=hashlib.sha256(stated.encode("utf-8", "replace")).hexdigest(),
        published=_moment(_stated(entry, "published_parsed") or _stated(entry, "updated_parsed")),
    )


def _address(name: str, base: str) -> str | None:
    """What stands for the address of an entry that leads nowhere."""
    feed = normal(base)
    return f"{feed}#{hashlib.sha256(name.encode()).hexdigest()[:16]}" if feed and name else None


def _stated(entry: Any, name: str) -> Any:
    """As the feed has it: the library would put one date in the place of another, and warn that it soon will not."""
    return dict.get(entry, name)


def _moment(parts: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(calendar.timegm(parts), UTC) if parts else None
    except (TypeError, ValueError, OverflowError):
        return None


def _content_type(fetched: Fetched) -> str:
    return f"{fetched.media_type}; charset={fetched.charset}" if fetched.charset else fetched.media_type
