"""RSS and Atom feeds: entries that carry their text, or lead to it."""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from kb.base.net.client import Ask, Deadline, Fetched
from kb.base.net.errors import FetchCode, FetchError
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits, run_job
from kb.sources.connectors.listing import Candidate, Listing, normal, stored

# For what is read of a feed that has come; a proper one takes a small part of that.
SECONDS: Final = 20.0


class FeedListing(Listing):
    """The entries of a feed, in its order.

    It is never complete: an entry that has left the feed is still published.
    """

    def __iter__(self) -> Iterator[Candidate]:
        entries = read_feed(self.client.fetch(self.url, Ask(deadline=self.deadline)), deadline=self.deadline)
        kept = [entry for entry in entries if self.scope.accepts(entry.url)]
        if not kept:
            raise FetchError(FetchCode.EMPTY_LISTING)
        yield from kept[: self.max_pages]


def read_feed(fetched: Fetched, *, deadline: Deadline | None = None, texts: int = 0) -> list[Candidate]:
    """The entries of a feed, each address once; they are read in the sandbox.

    An entry that carries its content is taken as it is; of one with a summary only, the page that it leads to is read.

    Args:
        fetched: the feed.
        deadline: for reading it, where somebody waits.
        texts: of how many entries the text is wanted too.

    Raises:
        FetchError: it is no feed, or takes too much time or memory.
    """
    left = SECONDS if deadline is None else min(SECONDS, deadline.remaining(fetched.url))
    try:
        with stored(fetched.content) as path:
            answer = run_job(
                "feed",
                path,
                limits=Limits(seconds=left),
                texts=texts,
                media_type=fetched.media_type,
                charset=fetched.charset,
                url=fetched.url,
            )
        if answer is None:
            raise FetchError(FetchCode.NOT_A_FEED)
        found = [_candidate(each, fetched.url) for each in answer]
    except (ParseError, KeyError, TypeError, ValueError) as error:
        raise FetchError(FetchCode.SLOW_FEED) from error
    entries: dict[str, Candidate] = {}
    for candidate in filter(None, found):
        entries.setdefault(candidate.url, candidate)
    return list(entries.values())


def _candidate(entry: Mapping[str, Any], base: str) -> Candidate | None:
    """None for an entry of which nothing can be read."""
    own, summary, title = str(entry["own"]), str(entry["summary"]), str(entry["title"])
    link = normal(str(entry["link"]), base) if entry["link"] else None
    if link is None:
        own = own or summary
        name, feed = str(entry["id"]) or title, normal(base)
        if not (own and name and feed):
            return None
        link = f"{feed}#{hashlib.sha256(name.encode()).hexdigest()[:16]}"  # it leads nowhere
    return Candidate(
        url=link,
        title=title,
        content=own or None,
        text=str(entry["text"]),
        version=str(entry["version"]),
        published=datetime.fromisoformat(entry["published"]) if entry["published"] else None,
    )
