"""Sitemaps (sitemaps.org): lists of addresses, lists of such lists, packed or not."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from lxml import etree

from kb.base.net.client import MIB, Ask, gunzip
from kb.base.net.errors import FetchCode, FetchError
from kb.sources.connectors.listing import Candidate, Listing, normal

MAX_SITEMAPS: Final = 500
MAX_BYTES: Final = 50 * MIB
# Of one file, as the protocol says.
MAX_ADDRESSES: Final = 50_000


@dataclass(frozen=True, slots=True)
class Sitemap:
    """One file: the pages it lists, and the further sitemaps; `is_cut` where it lists more of them than it may."""

    pages: tuple[str, ...] = ()
    sitemaps: tuple[str, ...] = ()
    is_cut: bool = False


class SitemapListing(Listing):
    """The addresses of a sitemap and of those that it names.

    It is complete where each of them could be read and none was left out for their number.
    """

    def __iter__(self) -> Iterator[Candidate]:
        self.is_complete = True
        seen: set[str] = set()
        for url in self._addresses():
            if url in seen or not self.scope.accepts(url):
                continue
            if len(seen) == self.max_pages:
                self.is_complete = False
                return
            seen.add(url)
            yield Candidate(url)
        if not seen:
            raise FetchError(FetchCode.EMPTY_LISTING)

    def _addresses(self) -> Iterator[str]:
        waiting, known = deque([self.url]), {self.url}
        while waiting:
            url = waiting.popleft()
            try:
                sitemap = self._read(url)
            except FetchError:
                if url == self.url:
                    raise
                self.is_complete = False
                continue
            self.is_complete &= not sitemap.is_cut
            yield from sitemap.pages
            further = [each for each in dict.fromkeys(sitemap.sitemaps) if each not in known]
            taken = further[: MAX_SITEMAPS - len(known)]
            self.is_complete &= len(taken) == len(further)
            known.update(taken)
            waiting.extend(taken)

    def _read(self, url: str) -> Sitemap:
        self.alive()
        fetched = self.client.fetch(url, Ask(max_bytes=MAX_BYTES, deadline=self.deadline))
        content = gunzip(fetched.content, MAX_BYTES)
        is_plain = fetched.media_type == "text/plain" and not content.lstrip().startswith(b"<")
        return plain_sitemap(content) if is_plain else xml_sitemap(content, fetched.url)


def xml_sitemap(content: bytes, base: str) -> Sitemap:
    """The addresses of an XML sitemap or of an index of sitemaps.

    Raises:
        FetchError: it is neither.
    """
    events = etree.iterparse(
        BytesIO(content),
        events=("end",),
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        recover=True,
        remove_comments=True,
        remove_pis=True,
    )
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
                    return Sitemap(tuple(found["url"]), tuple(found["sitemap"]), is_cut=True)
                if address and (url := normal(address, base)) is not None:
                    found[root].append(url)
                address = ""
            # Forgets an element and those before it, which have been read: millions of empty ones would fill the memory
            element.clear()
            while element.getprevious() is not None:
                del parent[0]
    except etree.XMLSyntaxError as error:
        raise FetchError(FetchCode.NOT_A_SITEMAP) from error
    if root not in {"urlset", "sitemapindex"}:
        raise FetchError(FetchCode.NOT_A_SITEMAP)
    return Sitemap(tuple(found["url"]), tuple(found["sitemap"]))


def plain_sitemap(content: bytes) -> Sitemap:
    """A text of one address a line."""
    lines = content.decode("utf-8", errors="replace").lstrip("\ufeff").splitlines()
    return Sitemap(
        tuple(url for line in lines[:MAX_ADDRESSES] if (url := normal(line)) is not None),
        is_cut=len(lines) > MAX_ADDRESSES,
    )


def _local(tag: object) -> str:
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""
