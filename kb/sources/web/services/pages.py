"""What became of one address of a web source: its row, and the document that it is kept as."""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.core.files.base import ContentFile
from django.db import transaction
from django.utils import timezone

from kb.base.errors import AlreadyThere, Rejected
from kb.base.net.addresses import parse_url
from kb.base.net.backend import Deadline
from kb.base.net.client import Ask, Fetched, WebClient
from kb.base.net.errors import FetchCode, FetchError
from kb.base.net.settings import web_client
from kb.base.text import storable
from kb.content.models import Document
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits
from kb.ingest.services.documents import document_add, document_replace_file, documents_delete
from kb.sources.connectors.content import READABLE, PageContent, content_of_entry, content_of_page
from kb.sources.connectors.kinds import listing_of
from kb.sources.connectors.listing import Candidate
from kb.sources.connectors.robots import Robots
from kb.sources.models import WebPage, WebPageChange, WebSource
from kb.sources.web.services.sources import error_of
from retrieval.messages import message_of

TITLE_CHARACTERS = 500
Hold = Callable[[], AbstractContextManager[None]]
"""A transaction in which the run is still this worker's; leaves with an exception where it is not."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was read of an address.

    Attributes:
        name: of the file.
        published: ISO 8601; blank: unknown.
        text_hash: and `text_key`: as of `PageContent`.
        etag: and `last_modified`, `version`: as of `WebPage`.
    """

    name: str
    title: str
    published: str
    text_hash: str
    text_key: str
    etag: str
    last_modified: str
    version: str

    @classmethod
    def of(cls, candidate: Candidate, content: PageContent, fetched: Fetched) -> "Found":
        published = candidate.published or content.published
        return cls(
            name=content.name,
            title=storable(candidate.title or content.title)[:TITLE_CHARACTERS],
            published=published.isoformat(timespec="seconds") if published else "",
            text_hash=content.text_hash,
            text_key=content.text_key,
            etag=storable(fetched.etag),
            last_modified=storable(fetched.last_modified),
            version=candidate.version,
        )

    @property
    def seen(self) -> dict[str, Any]:
        """The fields of a page that was read without a fault."""
        validators = {"etag": self.etag, "last_modified": self.last_modified, "version": self.version}
        return {**_NO_ERROR, "fetched_at": timezone.now(), **validators}


@dataclass(frozen=True, slots=True)
class PageWriter:
    """Writes what a run has found out about addresses.

    Attributes:
        hold: see `Hold`.
        gone_before: a page that has been gone since then loses its document.
    """

    source: WebSource
    hold: Hold
    gone_before: datetime

    def find(self, url: str) -> WebPage | None:
        rows = WebPage.objects.select_related("document")
        found: WebPage | None = rows.filter(source=self.source, url_hash=hash_of(url)).first()
        return found

    def keep(self, candidate: Candidate, content: PageContent, fetched: Fetched) -> str | None:
        """Keeps what was read; of a page whose text has not changed, only that it was read.

        Returns:
            What to count it as: "added", "unchanged", "duplicate" or "failed"; None: the change of a document is held, and
            decided on when the run ends.
        """
        found = Found.of(candidate, content, fetched)
        with self.hold():
            page = self.locked(candidate.url)
            if page.document_id is None:
                return self._add(page, found, content.data)
            if page.content_hash == found.text_hash:
                save_page(page, state=WebPage.State.UNCHANGED, text_key=found.text_key, **found.seen)
                return "unchanged"
            values = {"text_key": found.text_key, "data": content.data, "details": asdict(found)}
            WebPageChange.objects.update_or_create(page=page, defaults=values)
            save_page(page, fetched_at=timezone.now())
        return None

    def unchanged(self, candidate: Candidate, fetched: Fetched | None = None) -> str:
        """Notes that a page is as it was; `fetched` None: it was not even asked for."""
        fields: dict[str, Any] = _NO_ERROR | {"fetched_at": timezone.now(), "version": candidate.version}
        if fetched is not None:
            fields |= {"etag": storable(fetched.etag), "last_modified": storable(fetched.last_modified)}
        with self.hold():
            save_page(self.locked(candidate.url), state=WebPage.State.UNCHANGED, **fields)
        return "unchanged"

    def fail(self, candidate: Candidate, error: FetchError | ParseError) -> str | None:
        """Notes why a page could not be read; the document stays as it was, unless the page is gone."""
        if isinstance(error, FetchError) and error.code == FetchCode.GONE:
            return self.gone(candidate.url, error)
        state = WebPage.State.REFUSED if error.code == FetchCode.ROBOTS else WebPage.State.FAILED
        with self.hold():
            save_page(self.locked(candidate.url), state=state, fetched_at=timezone.now(), **error_fields(error))
        return state.value

    def gone(self, url: str, error: FetchError | None = None) -> str | None:
        """Notes that a page is not there.

        Returns:
            "gone"; None: it has been gone for so long that its document goes when the run ends.
        """
        with self.hold():
            page = self.locked(url)
            since = page.gone_at if page.state == WebPage.State.GONE and page.gone_at else timezone.now()
            WebPageChange.objects.filter(page=page).delete()
            fields = error_fields(error) if error else _NO_ERROR
            fields = fields | {"gone_at": since, "shown_key": "", "fetched_at": timezone.now()}
            save_page(page, state=WebPage.State.GONE, **fields)
        return None if page.document_id is not None and since <= self.gone_before else "gone"

    def locked(self, url: str) -> WebPage:
        page: WebPage
        page, _created = WebPage.objects.select_for_update().get_or_create(
            source=self.source, url_hash=hash_of(url), defaults={"url": url}
        )
        return page

    def replace(self, page: WebPage, found: Found, data: bytes, *, gives_way: bool) -> str:
        """Gives the document of a page its new text.

        Args:
            page: locked, in a transaction of the run.
            found: what it says now.
            data: the file.
            gives_way: whether the document is deleted where another of the knowledge base has the same text already.

        Returns:
            What to count it as: "changed", "deleted" or "failed".

        Raises:
            AlreadyThere: another document has the text, and this one does not give way.
        """
        document = Document.objects.select_for_update().get(pk=page.document_id)
        changes: dict[str, Any] = {"metadata": document.metadata | self._metadata(page, found)}
        if document.title == page.title:  # a curator's own title stays
            changes["title"] = found.title
        try:
            with transaction.atomic():
                document_replace_file(document=document, file=ContentFile(data), name=found.name, **changes)
        except AlreadyThere as error:
            if not gives_way:
                raise
            documents_delete(Document.objects.filter(pk=document.pk))
            page.document = None
            self._refuse(page, error, found)
            return "deleted"
        except Rejected as error:
            self._refuse(page, error, found)
            return "failed"
        self._kept(page, found)
        return "changed"

    def _add(self, page: WebPage, found: Found, data: bytes) -> str:
        try:
            with transaction.atomic():
                page.document = document_add(
                    knowledge_base=self.source.knowledge_base,
                    file=ContentFile(data),
                    name=found.name,
                    user=self.source.created_by,
                    title=found.title,
                    metadata=self._metadata(page, found),
                    tags=list(self.source.tags),
                    source_type=Document.SourceType.WEB,
                )
        except (AlreadyThere, Rejected) as error:
            self._refuse(page, error, found)
            return "duplicate" if isinstance(error, AlreadyThere) else "failed"
        self._kept(page, found)
        return "added"

    def _metadata(self, page: WebPage, found: Found) -> dict[str, str]:
        metadata = {"url": page.url, "fetched_at": timezone.now().isoformat(timespec="seconds")}
        return metadata | ({"published": found.published} if found.published else {})

    def _kept(self, page: WebPage, found: Found) -> None:
        fields = {"content_hash": found.text_hash, "text_key": found.text_key, "title": found.title}
        save_page(page, state=WebPage.State.KEPT, **fields, **found.seen)

    def _refuse(self, page: WebPage, error: AlreadyThere | Rejected, found: Found) -> None:
        """Notes why what a page holds is not kept."""
        if isinstance(error, AlreadyThere):
            other = Document.objects.filter(pk=error.document_id).first()
            state, reason = (
                WebPage.State.DUPLICATE,
                error_fields(FetchError(FetchCode.DUPLICATE, title=str(other or ""))),
            )
        else:
            reason = {"error": message_of(error), "error_code": error.code, "error_params": {}}
            state = WebPage.State.FAILED
        save_page(page, state=state, **(found.seen | reason))


def hash_of(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


_NO_ERROR: dict[str, Any] = {"error": "", "error_code": "", "error_params": {}, "gone_at": None, "shown_key": ""}


def error_fields(error: FetchError | ParseError) -> dict[str, Any]:
    return {"error": str(error), "error_code": error.code.value, "error_params": dict(error.params)}


def save_page(page: WebPage, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(page, name, value)
    page.save()


SECONDS = 30.0


def page_read(
    *,
    url: str,
    title: str = "",
    metadata: dict[str, Any] | None = None,
    client: WebClient | None = None,
    **details: Any,
) -> dict[str, Any]:
    """Reads a page now, so that it can be taken in as a file like any other.

    Args:
        url: of the page.
        title: blank: the page's.
        metadata: beside the address and when it was read and published.
        client: None: as the installation is configured.
        details: further ones of `document_add`.

    Returns:
        What `document_add` takes beside the knowledge base and the user.

    Raises:
        Rejected: it cannot be read, or must not be.
    """
    deadline = Deadline(SECONDS)
    client = client or web_client()
    try:
        content = _content(Candidate(url), client, Robots(client, deadline), deadline)
    except (FetchError, ParseError) as error:
        raise Rejected("url_refused", error_of(error)) from error
    found = {"url": url, "fetched_at": timezone.now().isoformat(timespec="seconds")}
    if content.published:
        found["published"] = content.published.isoformat(timespec="seconds")
    return {
        "source_type": Document.SourceType.WEB,
        **details,
        "file": ContentFile(content.data),
        "name": content.name,
        "title": title or content.title,
        "metadata": {**(metadata or {}), **found},
    }


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
    listing = listing_of(source, client, deadline=deadline)
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
    fetched = None
    if candidate.content is None:
        fetched = client.fetch(candidate.url, Ask(types=READABLE, before_hop=robots.check, deadline=deadline))
    limits = Limits(memory_bytes=settings.PARSE_MEMORY_BYTES, seconds=deadline.remaining(candidate.url))
    return content_of_entry(candidate, limits) if fetched is None else content_of_page(fetched, limits)
