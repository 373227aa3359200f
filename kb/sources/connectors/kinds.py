"""The listing of each kind of source."""

from collections.abc import Callable
from typing import Final

from kb.base.net.backend import Deadline
from kb.base.net.client import WebClient
from kb.sources.connectors.crawl import CrawlListing
from kb.sources.connectors.feed import FeedListing
from kb.sources.connectors.listing import Listing, Order, Scope, site_of
from kb.sources.connectors.page import PageListing
from kb.sources.connectors.robots import Robots
from kb.sources.connectors.sitemap import SitemapListing
from kb.sources.models import WebSource

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
    site = site_of(source.url) if source.kind in ONE_SITE else None
    return Scope(site, tuple(source.include), tuple(source.exclude))


def listing_of(
    source: WebSource,
    client: WebClient,
    robots: Robots,
    *,
    known: tuple[str, ...] = (),
    deadline: Deadline | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Listing:
    """The candidates of a source, saved or not; the other arguments as in `Order`."""
    order = Order(source.url, scope_of(source), source.max_pages, source.max_depth, known, deadline, alive)
    return LISTINGS[source.kind](client, robots, order)
