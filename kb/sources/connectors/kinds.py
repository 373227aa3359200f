"""The listing of each kind of source."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kb.base.net.client import Deadline, WebClient
from kb.sources.connectors.feed import FeedListing
from kb.sources.connectors.listing import Candidate, Listing, Scope, normal, site_of
from kb.sources.connectors.sitemap import SitemapListing
from kb.sources.models import WebSource


@dataclass
class CrawlListing(Listing):
    """The first page and those that it leads to.

    Known pages that no link leads to any more are asked too, at the end: they may still be there.
    It is complete where no page was left out for their number.
    """

    def __post_init__(self) -> None:
        first = normal(self.url) or self.url
        self._waiting = deque([Candidate(first)])
        self._met = {first}

    def __iter__(self) -> Iterator[Candidate]:
        self.is_complete = True
        for count, candidate in enumerate(self._candidates()):
            if count == self.max_pages:
                self.is_complete = False
                return
            yield candidate

    def _candidates(self) -> Iterator[Candidate]:
        while self._waiting:
            yield self._waiting.popleft()
        for url in self.known:
            if url not in self._met and self.scope.accepts(url):
                yield Candidate(url, depth=self.max_depth)

    def met(self, candidate: Candidate, links: Iterable[str]) -> None:
        """Queues the links of a page, if it is not as deep as the crawl goes; of more than are read, the first to come."""
        if candidate.depth >= self.max_depth:
            return
        for url in links:
            if len(self._met) > self.max_pages:  # one more than is read tells that it is not complete
                return
            if url not in self._met and self.scope.accepts(url):
                self._met.add(url)
                self._waiting.append(Candidate(url, depth=candidate.depth + 1))


class PageListing(Listing):
    def __iter__(self) -> Iterator[Candidate]:
        self.is_complete = True
        yield Candidate(self.url)


LISTINGS: Final[dict[str, type[Listing]]] = {
    WebSource.Kind.PAGE: PageListing,
    WebSource.Kind.SITEMAP: SitemapListing,
    WebSource.Kind.CRAWL: CrawlListing,
    WebSource.Kind.FEED: FeedListing,
}
ONE_SITE: Final = frozenset({WebSource.Kind.SITEMAP, WebSource.Kind.CRAWL})


def scope_of(source: WebSource) -> Scope:
    """Sitemaps and crawls stay at their host; entries of a feed lead wherever they lead."""
    if source.kind == WebSource.Kind.PAGE:
        return Scope()
    return Scope(site_of(source.url) if source.kind in ONE_SITE else None, tuple(source.include), tuple(source.exclude))


def listing_of(
    source: WebSource,
    client: WebClient,
    *,
    known: tuple[str, ...] = (),
    deadline: Deadline | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Listing:
    """The candidates of a source, saved or not; the other arguments as in `Listing`."""
    limits = (source.max_pages, source.max_depth)
    return LISTINGS[source.kind](client, source.url, scope_of(source), *limits, known, deadline, alive)
