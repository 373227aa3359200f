"""One address."""

from collections.abc import Iterable, Iterator

from kb.base.net.client import WebClient
from kb.sources.connectors.listing import Candidate, Order
from kb.sources.connectors.robots import Robots


class PageListing:
    """The one candidate that the address itself is."""

    def __init__(self, client: WebClient, robots: Robots, order: Order) -> None:  # noqa: ARG002 - as every listing
        self.is_complete = True
        self._order = order

    def __iter__(self) -> Iterator[Candidate]:
        yield Candidate(self._order.url)

    def met(self, candidate: Candidate, links: Iterable[str]) -> None:
        """A page stands for itself; where it leads is of no concern."""
