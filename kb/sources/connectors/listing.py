"""What every kind of source is: addresses one after the other, each with what is known of it beforehand."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import httpx
import regex

from kb.base.net.addresses import URL_CHARACTERS, port_of
from kb.base.net.client import Deadline, WebClient
from kb.base.net.errors import FetchCode, FetchError

MOST_PATTERNS: Final = 50
# What the expressions of a source may take: a moment in all, and a little for every address.
PATTERN_SECONDS: Final = 0.5
SECONDS_AN_ADDRESS: Final = 0.001
_TRACKING: Final = regex.compile(r"utm_\w+|fbclid|gclid|mc_[ce]id")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An address that may become a document.

    Attributes:
        title: blank: its content says.
        content: HTML that came with the listing, so that the address itself is not asked; None: it is to be asked.
        text: of the content, or of the summary in a feed, where it was asked for.
        version: of what the listing says of it; while it is the same, so is the content. Blank: unknown.
        published: None: unknown.
        depth: links from the first page.
    """

    url: str
    title: str = ""
    content: str | None = None
    text: str = ""
    version: str = ""
    published: datetime | None = None
    depth: int = 0


@dataclass(slots=True)
class Scope:
    """Which addresses belong to a source.

    Attributes:
        site: the host, with its port where it is not the usual one; None: any.
        include: regular expressions, one of which an address must match; none: any.
        exclude: those of which it may match none.
    """

    site: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    _seconds_left: float = field(default=PATTERN_SECONDS, init=False, repr=False, compare=False)

    def accepts(self, url: str) -> bool:
        """Whether an address belongs to the source.

        Raises:
            FetchError: an expression takes too long to tell, or those of many addresses do together.
        """
        if self.site is not None and site_of(url) != self.site:
            return False
        self._seconds_left += SECONDS_AN_ADDRESS
        if any(self._matches(pattern, url) for pattern in self.exclude):
            return False
        return not self.include or any(self._matches(pattern, url) for pattern in self.include)

    def _matches(self, pattern: str, url: str) -> bool:
        if self._seconds_left <= 0:
            raise FetchError(FetchCode.SLOW_PATTERN, pattern=pattern)
        started = time.thread_time()
        try:
            # Other threads go on meanwhile.
            return compiled(pattern).search(url, timeout=self._seconds_left, concurrent=True) is not None
        except TimeoutError as error:
            raise FetchError(FetchCode.SLOW_PATTERN, pattern=pattern) from error
        finally:
            self._seconds_left = min(PATTERN_SECONDS, self._seconds_left - (time.thread_time() - started))


@dataclass
class Listing(ABC):
    """Iterates over the candidates of a source, at most as many as it may have.

    Attributes:
        known: addresses of it that are kept already.
        deadline: for reading the listing itself, where somebody waits.
        alive: is called before each part of a listing that is read, which may take long.
        is_complete: after the last: whether a known address that was not among them is there no more.
    """

    client: WebClient
    url: str
    scope: Scope
    max_pages: int
    max_depth: int = 0
    known: tuple[str, ...] = ()
    deadline: Deadline | None = None
    alive: Callable[[], None] = lambda: None
    is_complete: bool = False

    @abstractmethod
    def __iter__(self) -> Iterator[Candidate]:
        """Yields candidates.

        Raises:
            FetchError: the listing itself cannot be read.
        """

    def met(self, candidate: Candidate, links: Iterable[str]) -> None:  # noqa: B027 - most have no use for it
        """Is called with the links of a candidate that was read."""


def normal(url: str, base: str = "") -> str | None:
    """One spelling of an address: no fragment, no usual port, no tracking parameters; None for what is no web address."""
    try:
        parsed = httpx.URL(base).join(url.strip()) if base else httpx.URL(url.strip())
        if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.userinfo:
            return None
        query = parsed.query.decode("ascii")
        if _TRACKING.search(query):
            kept = [pair for pair in parse_qsl(query, keep_blank_values=True) if not _TRACKING.fullmatch(pair[0])]
            query = urlencode(kept)
        changes: dict[str, Any] = {"fragment": None, "query": query.encode() or None}
        spelt = str(parsed.copy_with(**changes))
    except (httpx.InvalidURL, ValueError):
        return None
    return spelt if len(spelt) <= URL_CHARACTERS else None


def site_of(url: str) -> str:
    """A host without a leading www., with its port where that is not the usual one; blank for no address."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return ""
    host = parsed.host.removeprefix("www.")
    usual = parsed.scheme in {"http", "https"} and port_of(parsed) in {80, 443}
    return host if usual else f"{host}:{parsed.port}"


@lru_cache(maxsize=200)
def compiled(pattern: str) -> "regex.Pattern[str]":
    """An expression ready to use.

    Raises:
        regex.error: it is none.
    """
    return regex.compile(pattern)
