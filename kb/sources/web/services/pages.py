"""What a run notes of the addresses of a web source, each with the document that it is kept as; a page read at once."""

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, cast

from django.conf import settings
from django.core.files.base import ContentFile
from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from kb.base.db.transactions import lock_knowledge_bases
from kb.base.errors import AlreadyThere, Rejected
from kb.base.net.addresses import FetchError, parse_url
from kb.base.net.client import Deadline, Fetched, WebClient
from kb.base.text import storable
from kb.content.models import Document
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits
from kb.ingest.services.documents import document_add, document_replace_file, documents_delete
from kb.jobs.leases import Job, LeaseLost
from kb.sources.connectors.listing import Robots, listing_of, web_client
from kb.sources.connectors.markup import READABLE, Candidate, PageContent, content_of_entry, content_of_page
from kb.sources.models import WebPage, WebPageChange, WebSource
from kb.sources.web.services.sources import WEB_SOURCES, error_of, next_run
from retrieval.errors import message_of

TITLE_CHARACTERS = 500
_NO_ERROR: dict[str, Any] = {"error": "", "error_code": "", "error_params": {}, "gone_at": None, "shown_key": ""}


class Run(Job[WebSource]):
    """A worker's hold on a source, which counts and writes what became of addresses.

    A page that has been gone since `gone_before` loses its document.
    """

    def __init__(self, source: WebSource, lease: uuid.UUID) -> None:
        super().__init__(WEB_SOURCES, source, lease)
        self.source = source
        self.counts = Counter[str](source.counts)
        grace = timedelta(hours=settings.WEB_DELETE_AFTER_HOURS)
        self.started_at = cast(datetime, source.started_at)  # the claim has set it
        self.gone_before = max(filter(None, (self.started_at - grace, source.accepted_at)))

    @classmethod
    def claim(cls, source_id: int) -> "Run | None":
        job = WEB_SOURCES.claim(Q(pk=source_id), started_at=Coalesce(F("started_at"), timezone.now()))
        return cls(job.row, job.lease) if job else None

    def report(self) -> None:
        """Writes how far the run is, and renews the lease; raises `LeaseLost` where the run is no longer this worker's."""
        self.renew(counts=dict(self.counts))

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A transaction in which nobody else has the run; raises as `report`. The knowledge base is locked first."""
        with transaction.atomic():
            lock_knowledge_bases([self.source.knowledge_base_id])
            if not self.own.select_for_update(no_key=True).exists():
                raise LeaseLost
            yield

    def end(self, status: WebSource.Status, **fields: Any) -> None:
        source = WebSource.objects.filter(pk=self.source.pk).first()  # its schedule may have been changed meanwhile
        if source is None:
            raise LeaseLost
        ended = {"counts": dict(self.counts), "finished_at": timezone.now(), "next_run_at": next_run(source)}
        self.leave(status, attempts=0, **ended, **fields)
        WebPageChange.objects.filter(page__source=self.source.pk).delete()

    def keep(self, candidate: Candidate, content: PageContent, fetched: Fetched) -> str | None:
        """Stores what was read; of a page whose text has not changed, only that it was read.

        Returns what to count it as: "added", "unchanged", "duplicate" or "failed"; None where the change of a document
        is held, and decided on when the run ends.
        """
        published = candidate.published or content.published
        found = {
            "name": content.name,
            "title": storable(candidate.title or content.title)[:TITLE_CHARACTERS],
            "published": published.isoformat(timespec="seconds") if published else "",
            "text_hash": content.text_hash,
            "text_key": content.text_key,
            "etag": storable(fetched.etag),
            "last_modified": storable(fetched.last_modified),
            "version": candidate.version,
        }
        with self.holding():
            page = self.locked(candidate.url)
            if page.document_id is None:
                return self._add(page, found, content.data)
            if page.content_hash == content.text_hash:
                save_page(page, state=WebPage.State.UNCHANGED, text_key=content.text_key, **_seen(found))
                return "unchanged"
            values = {"text_key": content.text_key, "data": content.data, "details": found}
            WebPageChange.objects.update_or_create(page=page, defaults=values)
            save_page(page, fetched_at=timezone.now())
        return None

    def unchanged(self, candidate: Candidate, fetched: Fetched | None = None) -> str:
        """Notes that a page is as it was; `fetched` None: it was not even asked for."""
        fields = {**_NO_ERROR, "version": candidate.version}
        if fetched is not None:
            fields |= {"etag": storable(fetched.etag), "last_modified": storable(fetched.last_modified)}
        return self._note(candidate, WebPage.State.UNCHANGED, fields)

    def fail(self, candidate: Candidate, error: FetchError | ParseError) -> str | None:
        """Notes why a page could not be read; the document stays as it was, unless the page is gone."""
        if isinstance(error, FetchError) and error.code == "gone":
            return self.gone(candidate.url, error)
        state = WebPage.State.REFUSED if error.code == "robots" else WebPage.State.FAILED
        return self._note(candidate, state, error_fields(error))

    def _note(self, candidate: Candidate, state: WebPage.State, fields: Mapping[str, Any]) -> str:
        with self.holding():
            save_page(self.locked(candidate.url), state=state, fetched_at=timezone.now(), **fields)
        return state.value

    def gone(self, url: str, error: FetchError | None = None) -> str | None:
        """Notes that a page is not there; returns "gone", or None where its document goes when the run ends."""
        with self.holding():
            page = self.locked(url)
            since = page.gone_at if page.state == WebPage.State.GONE and page.gone_at else timezone.now()
            WebPageChange.objects.filter(page=page).delete()
            fields = error_fields(error) if error else _NO_ERROR
            fields = fields | {"gone_at": since, "shown_key": "", "fetched_at": timezone.now()}
            save_page(page, state=WebPage.State.GONE, **fields)
        return None if page.document_id is not None and since <= self.gone_before else "gone"

    def locked(self, url: str) -> WebPage:
        pages = WebPage.objects.select_for_update()
        return cast(WebPage, pages.get_or_create(source=self.source, url_hash=hash_of(url), defaults={"url": url})[0])

    def replace(self, page: WebPage, found: Mapping[str, str], data: bytes, *, gives_way: bool) -> str:
        """Gives the document of a page, which is locked, its new text; returns "changed", "deleted" or "failed".

        Where another document of the knowledge base has the text, it is deleted if it gives way; else AlreadyThere is
        raised.
        """
        document = Document.objects.select_for_update().get(pk=page.document_id)
        changes: dict[str, Any] = {"metadata": document.metadata | metadata_of(page.url, found["published"])}
        if document.title == page.title:  # a curator's own title stays
            changes["title"] = found["title"]
        try:
            with transaction.atomic():
                document_replace_file(document=document, file=ContentFile(data), name=found["name"], **changes)
        except AlreadyThere as error:
            if not gives_way:
                raise
            documents_delete(Document.objects.filter(pk=document.pk))
            page.document = None
            _refuse(page, error, found)
            return "deleted"
        except Rejected as error:
            return _refuse(page, error, found)
        _save_kept(page, found)
        return "changed"

    def _add(self, page: WebPage, found: Mapping[str, str], data: bytes) -> str:
        try:
            with transaction.atomic():
                page.document = document_add(
                    knowledge_base=self.source.knowledge_base,
                    file=ContentFile(data),
                    name=found["name"],
                    user=self.source.created_by,
                    title=found["title"],
                    metadata=metadata_of(page.url, found["published"]),
                    tags=list(self.source.tags),
                    source_type=Document.SourceType.WEB,
                )
        except (AlreadyThere, Rejected) as error:
            return _refuse(page, error, found)
        _save_kept(page, found)
        return "added"


def _save_kept(page: WebPage, found: Mapping[str, str]) -> None:
    fields = {"content_hash": found["text_hash"], "text_key": found["text_key"], "title": found["title"]}
    save_page(page, state=WebPage.State.KEPT, **fields, **_seen(found))


def _refuse(page: WebPage, error: AlreadyThere | Rejected, found: Mapping[str, str]) -> str:
    """Notes why what a page holds is not kept; returns what to count it as."""
    if isinstance(error, AlreadyThere):
        other = Document.objects.filter(pk=error.document_id).first()
        state = WebPage.State.DUPLICATE
        reason = error_fields(FetchError("duplicate", title=str(other or "")))
    else:
        state = WebPage.State.FAILED
        reason = {"error": message_of(error), "error_code": error.code, "error_params": {}}
    save_page(page, state=state, **(_seen(found) | reason))
    return state.value


def _seen(found: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a page that was read without a fault."""
    validators = {name: found[name] for name in ("etag", "last_modified", "version")}
    return {**_NO_ERROR, "fetched_at": timezone.now(), **validators}


def metadata_of(url: str, published: str) -> dict[str, str]:
    """The metadata of the document of a page that was read now; `published`: ISO 8601, blank for unknown."""
    metadata = {"url": url, "fetched_at": timezone.now().isoformat(timespec="seconds")}
    return metadata | ({"published": published} if published else {})


def hash_of(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def error_fields(error: FetchError | ParseError) -> dict[str, Any]:
    return {"error": str(error), "error_code": str(error.code), "error_params": dict(error.params)}


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
    """Reads a page now: what `document_add` takes beside the knowledge base and the user, with further `details`.

    The page gives the title where none is given, and its address and dates to the metadata. Raises Rejected where it
    cannot be read, or must not be.
    """
    deadline = Deadline(SECONDS)
    client = client or web_client()
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
class PreviewPage:
    """One address, with the number of characters of its text if it was read for this, and why it would not be taken, if so."""

    url: str
    title: str = ""
    excerpt: str = ""
    characters: int | None = None
    published: datetime | None = None
    error: FetchError | ParseError | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """The first addresses of a source, and why it as a whole cannot be read, if so."""

    pages: tuple[PreviewPage, ...] = ()
    has_more: bool = False
    error: FetchError | None = None


def web_source_preview(source: WebSource, client: WebClient, *, seconds: float = PREVIEW_SECONDS) -> Preview:
    """Reads the first addresses of a source, saved or not, and looks the next ones up in robots.txt, within `seconds`."""
    deadline = Deadline(seconds)
    robots = Robots(client, deadline)
    listing = listing_of(source, client, deadline=deadline)
    pages: list[PreviewPage] = []
    try:
        for candidate in listing:
            if len(pages) == LISTED:
                return Preview(tuple(pages), has_more=True)
            page = PreviewPage(candidate.url, candidate.title, published=candidate.published)
            links: tuple[str, ...] = ()
            try:
                if len(pages) < READ:
                    content = _content(candidate, client, robots, deadline)
                    links, text = content.links, content.text
                    published = candidate.published or content.published
                    title = candidate.title or content.title
                    page = PreviewPage(candidate.url, title, text[:EXCERPT_CHARACTERS], len(text), published)
                elif candidate.content is None:
                    robots.check(parse_url(candidate.url))
            except (FetchError, ParseError) as error:
                if error.code == "slow_pattern":
                    raise
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
