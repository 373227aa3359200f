"""What a source would take, before it is saved."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from django.conf import settings

from kb.base.net.addresses import parse_url
from kb.base.net.backend import Deadline
from kb.base.net.client import Ask, WebClient
from kb.base.net.errors import FetchCode, FetchError
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits
from kb.sources.connectors.content import READABLE, PageContent, content_of_entry, content_of_page
from kb.sources.connectors.kinds import listing_of
from kb.sources.connectors.listing import Candidate
from kb.sources.connectors.robots import Robots
from kb.sources.models import WebSource

PREVIEW_SECONDS: Final = 20.0
LISTED: Final = 20
READ: Final = 3
EXCERPT_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class PreviewPage:
    """One address.

    Attributes:
        characters: of its text; None: it was not read for the preview.
        error: why it would not be taken; None: it would be.
    """

    url: str
    title: str = ""
    excerpt: str = ""
    characters: int | None = None
    published: datetime | None = None
    error: FetchError | ParseError | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """The first addresses of a source.

    Attributes:
        has_more: whether there are further ones.
        error: why the source as a whole cannot be read; None: it can.
    """

    pages: tuple[PreviewPage, ...] = ()
    has_more: bool = False
    error: FetchError | None = None


def web_source_preview(source: WebSource, client: WebClient, *, seconds: float = PREVIEW_SECONDS) -> Preview:
    """Reads the first addresses of a source, saved or not, and writes nothing.

    Args:
        source: what to read.
        client: reads it.
        seconds: after which it shows what there is until then.
    """
    deadline = Deadline(seconds)
    robots = Robots(client, deadline)
    listing = listing_of(source, client, robots, deadline=deadline)
    pages: list[PreviewPage] = []
    try:
        for candidate in listing:
            if len(pages) == LISTED:
                return Preview(tuple(pages), has_more=True)
            page, links = _look(candidate, client, robots, deadline, is_read=len(pages) < READ)
            listing.met(candidate, links)
            pages.append(page)
    except FetchError as error:
        return Preview(tuple(pages), error=error)
    return Preview(tuple(pages))


def _look(
    candidate: Candidate, client: WebClient, robots: Robots, deadline: Deadline, *, is_read: bool
) -> tuple[PreviewPage, tuple[str, ...]]:
    """An address, read or only looked up in robots.txt, and where it leads."""
    page = PreviewPage(candidate.url, candidate.title, published=candidate.published)
    try:
        if not is_read:
            if candidate.content is None:
                robots.check(parse_url(candidate.url))
            return page, ()
        content = _content(candidate, client, robots, deadline)
    except (FetchError, ParseError) as error:
        if error.code == FetchCode.SLOW_PATTERN:
            raise
        return replace(page, error=error), ()
    shown = replace(
        page,
        title=candidate.title or content.title,
        excerpt=content.text[:EXCERPT_CHARACTERS],
        characters=len(content.text),
        published=candidate.published or content.published,
    )
    return shown, content.links


def _content(candidate: Candidate, client: WebClient, robots: Robots, deadline: Deadline) -> PageContent:
    if candidate.content is not None:
        return content_of_entry(candidate, _limits(candidate.url, deadline))
    ask = Ask(types=READABLE, before_hop=robots.check, deadline=deadline)
    return content_of_page(client.fetch(candidate.url, ask), _limits(candidate.url, deadline))


def _limits(url: str, deadline: Deadline) -> Limits:
    return Limits(memory_bytes=settings.PARSE_MEMORY_BYTES, seconds=deadline.remaining(url))
