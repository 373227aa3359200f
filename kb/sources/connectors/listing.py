"""The addresses of a source: the listing of each kind, which of them belong to it, and which a site lets be read."""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

import httpx
import regex
from django.conf import settings
from lxml import etree
from protego import Protego

from kb.base.net.addresses import AllowList, FetchError, Guard, Owner, nobody, open_to, port_of
from kb.base.net.client import MIB, Deadline, Fetched, Politeness, WebClient, gunzip
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits, run_job
from kb.sources.connectors.markup import Candidate, normal, site_of, stored
from kb.sources.models import Source

MOST_PATTERNS: Final = 50
# What the expressions of a source may take: a moment in all, and a little for every address.
PATTERN_SECONDS: Final = 0.5
SECONDS_AN_ADDRESS: Final = 0.001


@lru_cache(maxsize=4)
def _politeness(seconds: float) -> Politeness:
    """One for the process, so that two sources of a host share it."""
    return Politeness(seconds)


def web_client(owner: Owner = nobody) -> WebClient:
    """A client by WEB_ALLOWED_HOSTS, WEB_USER_AGENT, WEB_DELAY_SECONDS, WEB_MAX_MB and WEB_SECONDS.

    `owner`: the user whose knowledge base it reads for.
    """
    return WebClient(
        guard=Guard(AllowList.parse(open_to(owner, settings.WEB_ALLOWED_HOSTS))),
        politeness=_politeness(settings.WEB_DELAY_SECONDS),
        user_agent=settings.WEB_USER_AGENT,
        max_bytes=settings.WEB_MAX_BYTES,
        seconds=settings.WEB_SECONDS,
    )


@lru_cache(maxsize=200)
def compiled(pattern: str) -> "regex.Pattern[str]":
    """An expression ready to use; raises regex.error for what is none."""
    return regex.compile(pattern)


@dataclass(slots=True)
class Scope:
    """The addresses of a source: at `site` (None: any), like one of `include`, if any, and like none of `exclude`."""

    site: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    _seconds_left: float = field(default=PATTERN_SECONDS, init=False, repr=False, compare=False)

    def accepts(self, url: str) -> bool:
        """Whether an address belongs; raises FetchError where expressions take too long, for all addresses together."""
        if self.site is not None and site_of(url) != self.site:
            return False
        self._seconds_left += SECONDS_AN_ADDRESS
        if any(self._matches(pattern, url) for pattern in self.exclude):
            return False
        return not self.include or any(self._matches(pattern, url) for pattern in self.include)

    def _matches(self, pattern: str, url: str) -> bool:
        if self._seconds_left <= 0:
            raise FetchError("slow_pattern", pattern=pattern)
        started = time.thread_time()
        try:
            # Other threads go on meanwhile.
            return compiled(pattern).search(url, timeout=self._seconds_left, concurrent=True) is not None
        except TimeoutError as error:
            raise FetchError("slow_pattern", pattern=pattern) from error
        finally:
            self._seconds_left = min(PATTERN_SECONDS, self._seconds_left - (time.thread_time() - started))


MAX_DELAY_S: Final = 30.0
# Whose rules are kept: entries of a feed may lead to thousands, each with a megabyte of them.
SITES: Final = 100
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
    """Reads what the robots.txt of a site allows (RFC 9309) once, and says of each address whether it may be read."""

    def __init__(self, client: WebClient, deadline: Deadline | None = None) -> None:
        self._client = client
        self._deadline = deadline
        self._agent = client.user_agent.partition("/")[0]
        self._rules: dict[str, Protego | None] = {}

    def check(self, url: httpx.URL) -> float:
        """The seconds that the site wants between requests; raises FetchError where the address must not be read."""
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
            fetched = self._client.fetch(f"{origin}/robots.txt", max_bytes=MIB, deadline=self._deadline)
        except FetchError as error:
            if error.code in {"gone", "forbidden"}:
                return Protego.parse("")
            if error.code in _ABOUT_THE_HOST:
                raise
            return None
        return Protego.parse(fetched.content.decode("utf-8-sig", errors="replace"))


@dataclass
class Listing:
    """Iterates over the candidates of a source, at most as many as it may have: of a page, its address alone.

    Iteration raises FetchError where the listing itself cannot be read.

    Attributes:
        known: addresses of it that are stored already.
        deadline: for reading the listing itself, where somebody waits.
        alive: is called before each part of a listing that is read, which may take long; what it raises ends the listing.
        position: where another listing goes on, as JSON holds it, once this one was ended; None: from its beginning.
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
    position: Any = None
    is_complete: bool = True

    def __iter__(self) -> Iterator[Candidate]:
        yield Candidate(self.url)

    def met(self, candidate: Candidate, links: Iterable[str]) -> None:
        """Is called with the links of a candidate that was read; most listings have no use for it."""


MAX_SITEMAPS: Final = 500
MAX_BYTES: Final = 50 * MIB
# Of one file, as the protocol says.
MAX_ADDRESSES: Final = 50_000
# For what is read of a feed that has come; a proper one takes a small part of that.
FEED_SECONDS: Final = 20.0
# The pages that a file lists, the further sitemaps, and whether it lists more of them than it may.
Sitemap = tuple[list[str], list[str], bool]


@dataclass
class CrawlListing(Listing):
    """The first page, those that it leads to, then known pages that no link leads to; incomplete if too many."""

    def __post_init__(self) -> None:
        first = normal(self.url) or self.url
        self._waiting = deque([Candidate(first)])
        self._met = {first}

    def __iter__(self) -> Iterator[Candidate]:
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
        """Queues the links of a page, unless it is as deep as the crawl goes; the first ones, if there are too many."""
        if candidate.depth >= self.max_depth:
            return
        for url in links:
            if len(self._met) > self.max_pages:  # one more than is read tells that it is not complete
                return
            if url not in self._met and self.scope.accepts(url):
                self._met.add(url)
                self._waiting.append(Candidate(url, depth=candidate.depth + 1))


class SitemapListing(Listing):
    """The addresses of a sitemap (sitemaps.org) and those that it names; incomplete if one is unread or too many."""

    def __iter__(self) -> Iterator[Candidate]:
        seen: set[str] = set()
        before = self.position["seen"] if self.position else 0
        for url in self._addresses(lambda: before + len(seen)):
            if url in seen or not self.scope.accepts(url):
                continue
            if before + len(seen) == self.max_pages:
                self.is_complete = False
                return
            seen.add(url)
            yield Candidate(url)
        if not before and not seen:
            raise FetchError("empty_listing")

    def _addresses(self, count: Callable[[], int]) -> Iterator[str]:
        start = self.position or {"waiting": [self.url], "known": [self.url], "is_complete": True}
        waiting, known, self.is_complete = deque(start["waiting"]), set(start["known"]), start["is_complete"]
        while waiting:
            # Sitemap by sitemap: what is read of one again was visited, and is passed over.
            self.position = {"waiting": [*waiting], "known": [*known], "seen": count(), "is_complete": self.is_complete}
            url = waiting.popleft()
            try:
                pages, sitemaps, is_cut = self._read(url)
            except FetchError:
                if url == self.url:
                    raise
                self.is_complete = False
                continue
            yield from pages
            further = [each for each in dict.fromkeys(sitemaps) if each not in known]
            taken = further[: MAX_SITEMAPS - len(known)]
            self.is_complete &= not is_cut and len(taken) == len(further)
            known.update(taken)
            waiting.extend(taken)

    def _read(self, url: str) -> Sitemap:
        self.alive()
        fetched = self.client.fetch(url, max_bytes=MAX_BYTES, deadline=self.deadline)
        content = gunzip(fetched.content, MAX_BYTES)
        is_plain = fetched.media_type == "text/plain" and not content.lstrip().startswith(b"<")
        return plain_sitemap(content) if is_plain else xml_sitemap(content, fetched.url)


def xml_sitemap(content: bytes, base: str) -> Sitemap:
    """The addresses of an XML sitemap or of an index of sitemaps; raises FetchError for what is neither."""
    options = {"resolve_entities": False, "no_network": True, "load_dtd": False, "recover": True}
    events = etree.iterparse(BytesIO(content), events=("end",), remove_comments=True, remove_pis=True, **options)
    found: dict[str, list[str]] = {"url": [], "sitemap": []}
    root, address, seen = "", "", 0
    try:
        for _, element in events:
            root = _local(element.tag)
            parent = element.getparent()
            if root == "loc" and parent is not None and _local(parent.tag) in found:
                address = address or (element.text or "").strip()
            elif root in found:
                seen += 1
                if seen > MAX_ADDRESSES:
                    return found["url"], found["sitemap"], True
                if address and (url := normal(address, base)) is not None:
                    found[root].append(url)
                address = ""
            # Forgets an element and those before it, which have been read: millions of empty ones would fill the memory
            element.clear()
            while element.getprevious() is not None:
                del parent[0]
    except etree.XMLSyntaxError as error:
        raise FetchError("not_a_sitemap") from error
    if root not in {"urlset", "sitemapindex"}:
        raise FetchError("not_a_sitemap")
    return found["url"], found["sitemap"], False


def plain_sitemap(content: bytes) -> Sitemap:
    """A text of one address a line."""
    lines = content.decode("utf-8", errors="replace").lstrip("\ufeff").splitlines()
    return list(filter(None, map(normal, lines[:MAX_ADDRESSES]))), [], len(lines) > MAX_ADDRESSES


def _local(tag: object) -> str:
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


class FeedListing(Listing):
    """The entries of a feed, in its order; never complete, since an entry that has left the feed is still published."""

    def __iter__(self) -> Iterator[Candidate]:
        self.is_complete = False
        entries = read_feed(self.client.fetch(self.url, deadline=self.deadline), deadline=self.deadline)
        kept = [entry for entry in entries if self.scope.accepts(entry.url)]
        if not kept:
            raise FetchError("empty_listing")
        yield from kept[: self.max_pages]


def read_feed(fetched: Fetched, *, deadline: Deadline | None = None, texts: int = 0) -> list[Candidate]:
    """The entries of a feed, each address once, read in the sandbox; of the first `texts` with their text.

    An entry that carries its content is taken as it is; of one with a summary only, the page that it leads to is read.
    A deadline is given where somebody waits. Raises FetchError for what is no feed, or takes too much time or memory.
    """
    left = FEED_SECONDS if deadline is None else min(FEED_SECONDS, deadline.remaining(fetched.url))
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
            raise FetchError("not_a_feed")
        found = [_candidate(each, fetched.url) for each in answer]
    except (ParseError, KeyError, TypeError, ValueError) as error:
        raise FetchError("slow_feed") from error
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


LISTINGS: Final[dict[str, type[Listing]]] = {
    Source.Kind.PAGE: Listing,
    Source.Kind.SITEMAP: SitemapListing,
    Source.Kind.CRAWL: CrawlListing,
    Source.Kind.FEED: FeedListing,
}
ONE_SITE: Final = frozenset({Source.Kind.SITEMAP, Source.Kind.CRAWL})


def scope_of(source: Source) -> Scope:
    """Sitemaps and crawls stay at their host; entries of a feed lead wherever they lead."""
    if source.kind == Source.Kind.PAGE:
        return Scope()
    return Scope(site_of(source.url) if source.kind in ONE_SITE else None, tuple(source.include), tuple(source.exclude))


def listing_of(
    source: Source,
    client: WebClient,
    *,
    known: tuple[str, ...] = (),
    deadline: Deadline | None = None,
    alive: Callable[[], None] = lambda: None,
    position: Any = None,
) -> Listing:
    """The candidates of a source, saved or not; the other arguments as in `Listing`."""
    kind = LISTINGS[source.kind]
    return kind(
        client, source.url, scope_of(source), source.max_pages, source.max_depth, known, deadline, alive, position
    )
