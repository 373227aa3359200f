"""A page read at once, and the first pages of a source of the web, for who makes one."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.core.files.base import ContentFile

from kb.base.errors import Rejected
from kb.base.net.addresses import FetchError, Owner, nobody, parse_url
from kb.base.net.client import Deadline, WebClient
from kb.content.models import Document
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits
from kb.sources.connectors.listing import Robots, listing_of, web_client
from kb.sources.connectors.markup import READABLE, Candidate, PageContent, content_of_entry, content_of_page
from kb.sources.connectors.web.pages import metadata_of
from kb.sources.models import Source
from kb.sources.services.sources import error_of

SECONDS = 30.0


def page_read(
    *,
    url: str,
    title: str = "",
    metadata: dict[str, Any] | None = None,
    client: WebClient | None = None,
    owner: Owner = nobody,
    **details: Any,
) -> dict[str, Any]:
    """Reads a page now: what `document_add` takes beside the knowledge base and the user, with further `details`.

    The page gives the title where none is given, and its address and dates to the metadata. Raises Rejected where it
    cannot be read, or must not be. `owner`: as of `web_client`.
    """
    deadline = Deadline(SECONDS)
    client = client or web_client(owner)
    try:
        content = _content(Candidate(url), client, Robots(client, deadline), deadline)
    except (FetchError, ParseError) as error:
        raise Rejected("url_refused", error_of(error)) from error
    published = content.published.isoformat(timespec="seconds") if content.published else ""
    return {
        "source_type": Document.SourceType.WEB,
        **details,
        "file": ContentFile(content.data),
        "name": content.name,
        "title": title or content.title,
        "metadata": {**(metadata or {}), **metadata_of(url, published)},
    }


PREVIEW_SECONDS: Final = 20.0
LISTED: Final = 20
READ: Final = 3
EXCERPT_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class PreviewItem:
    """One item, with the number of characters of its text if it was read for this, and why it would not be taken, if so."""

    key: str
    url: str = ""
    title: str = ""
    size: int | None = None
    excerpt: str = ""
    characters: int | None = None
    published: datetime | None = None
    error: FetchError | ParseError | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """The first items of a source, and why it as a whole cannot be read, if so."""

    items: tuple[PreviewItem, ...] = ()
    has_more: bool = False
    error: FetchError | None = None


def web_preview(source: Source, client: WebClient, *, seconds: float = PREVIEW_SECONDS) -> Preview:
    """Reads the first addresses of a source, saved or not, and looks the next ones up in robots.txt, within `seconds`."""
    deadline = Deadline(seconds)
    robots = Robots(client, deadline)
    listing = listing_of(source, client, deadline=deadline)
    pages: list[PreviewItem] = []
    try:
        for candidate in listing:
            if len(pages) == LISTED:
                return Preview(tuple(pages), has_more=True)
            page = PreviewItem(candidate.url, candidate.url, candidate.title, published=candidate.published)
            links: tuple[str, ...] = ()
            try:
                if len(pages) < READ:
                    content = _content(candidate, client, robots, deadline)
                    links, text = content.links, content.text
                    page = replace(
                        page,
                        title=candidate.title or content.title,
                        excerpt=text[:EXCERPT_CHARACTERS],
                        characters=len(text),
                        published=candidate.published or content.published,
                    )
                elif candidate.content is None:
                    robots.check(parse_url(candidate.url))
            except (FetchError, ParseError) as error:
                page = replace(page, error=error)
            listing.met(candidate, links)
            pages.append(page)
    except FetchError as error:
        return Preview(tuple(pages), error=error)
    return Preview(tuple(pages))


def _content(candidate: Candidate, client: WebClient, robots: Robots, deadline: Deadline) -> PageContent:
    fetched = (
        client.fetch(candidate.url, types=READABLE, before_hop=robots.check, deadline=deadline)
        if candidate.content is None
        else None
    )
    limits = Limits(memory_bytes=settings.PARSE_MEMORY_BYTES, seconds=deadline.remaining(candidate.url))
    return content_of_entry(candidate, limits) if fetched is None else content_of_page(fetched, limits)
