"""What the robots.txt of each site allows (RFC 9309)."""

from typing import Final

import httpx
from protego import Protego

from kb.base.net.addresses import FetchError, port_of
from kb.base.net.client import MIB, Ask, Deadline, WebClient

MAX_DELAY_S: Final = 30.0
# Whose rules are kept: entries of a feed may lead to thousands, each with a megabyte of them.
SITES: Final = 100
_ABSENT: Final = frozenset({"gone", "forbidden"})
# What is wrong with the host is no fault of its robots.txt.
_ABOUT_THE_HOST: Final = frozenset(
    {
        "forbidden_address",
        "bad_port",
        "unknown_host",
        "unreachable",
        "tls_failed",
        "timeout",
        "too_many_requests",
    }
)


class Robots:
    """Reads the rules of a site once, and says of each address whether it may be read."""

    def __init__(self, client: WebClient, deadline: Deadline | None = None) -> None:
        self._client = client
        self._deadline = deadline
        self._agent = client.user_agent.partition("/")[0]
        self._rules: dict[str, Protego | None] = {}

    def check(self, url: httpx.URL) -> float:
        """The seconds that the site wants between two requests.

        Raises:
            FetchError: the address must not be read, or nobody knows whether it may.
        """
        origin = f"{url.scheme}://{url.netloc.decode('ascii')}"
        if origin not in self._rules:
            self._rules[origin] = self._read(origin)
            if len(self._rules) > SITES:
                del self._rules[next(iter(self._rules))]
        rules = self._rules[origin]
        if rules is None:
            raise FetchError("robots_unreadable", host=f"{url.host}:{port_of(url)}")
        if not rules.can_fetch(str(url), self._agent):
            raise FetchError("robots")
        return min(float(rules.crawl_delay(self._agent) or 0.0), MAX_DELAY_S)

    def _read(self, origin: str) -> Protego | None:
        """None where the server fails to say: everything is to be left alone then."""
        try:
            fetched = self._client.fetch(f"{origin}/robots.txt", Ask(max_bytes=MIB, deadline=self._deadline))
        except FetchError as error:
            if error.code in _ABSENT:
                return Protego.parse("")
            if error.code in _ABOUT_THE_HOST:
                raise
            return None
        return Protego.parse(fetched.content.decode("utf-8-sig", errors="replace"))
