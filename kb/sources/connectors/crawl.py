"""A bounded walk from page to page of one site, the nearest first."""

from collections import deque
from collections.abc import Iterable, Iterator

from kb.base.net.client import WebClient
from kb.sources.connectors.listing import Candidate, Order, normal
from kb.sources.connectors.robots import Robots


class CrawlListing:
    """The first page and those that it leads to.

    Known pages that no link leads to any more are asked too, at the end: they may still be there.
    It is complete where no page was left out for their number.
    """

    def __init__(self, client: WebClient, robots: Robots, order: Order) -> None:  # noqa: ARG002 - as every listing
        self.is_complete = False
        self._order = order
        first = normal(order.url) or order.url
        self._waiting = deque([Candidate(first)])
        self._met = {first}

    def __iter__(self) -> Iterator[Candidate]:
        self.is_complete = True
        for count, candidate in enumerate(self._candidates()):
            if count == self._order.max_pages:
                self.is_complete = False
                return
            yield candidate

    def _candidates(self) -> Iterator[Candidate]:
        while self._waiting:
            yield self._waiting.popleft()
        for url in self._order.known:
            if url not in self._met and self._order.scope.accepts(url):
                yield Candidate(url, depth=self._order.max_depth)

    def met(self, candidate: Candidate, links: Iterable[str]) -> None:
        """Queues the links of a page, if it is not as deep as the crawl goes; of more than are read, the first to come."""
        if candidate.depth >= self._order.max_depth:
            return
        for url in links:
            if len(self._met) > self._order.max_pages:  # one more than is read tells that it is not complete
                return
            if url not in self._met and self._order.scope.accepts(url):
                self._met.add(url)
                self._waiting.append(Candidate(url, depth=candidate.depth + 1))
