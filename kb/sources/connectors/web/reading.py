"""One run of a web source: every address asked, at most as often as the site wants, by one worker at a time.

A site under maintenance answers every address with one page. So the change of a document is held until the run has seen
what the other pages say; a document goes only where a later run finds the same, and never a large share of them at once.
"""

import hashlib
import io
import math
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from typing import Any, Final

from django.conf import settings
from django.db.models import Count, F, Q, QuerySet, Value
from django.db.models.functions import Coalesce, NullIf
from django.utils import timezone

from kb.base.errors import AlreadyThere
from kb.base.net.addresses import FetchError
from kb.base.net.client import Fetched, WebClient
from kb.base.text import storable
from kb.content.models import Document
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits, WarmParser
from kb.ingest.services.documents import documents_delete
from kb.sources.connectors.listing import ONE_SITE, Listing, Robots, listing_of
from kb.sources.connectors.markup import (
    READABLE,
    Candidate,
    PageContent,
    content_of_entry,
    content_of_page,
    links_in,
    site_of,
)
from kb.sources.connectors.web.pages import PageRun
from kb.sources.models import Source, SourceItem, SourceItemChange
from kb.sources.services.items import error_fields, hash_of, locked_item, save_item
from kb.sources.services.sources import many

# So many pages with one text end a run whatever their share is, so that not the whole site is asked.
MOST_ALIKE: Final = 100
MOST_HELD: Final = 200
EXCERPT_CHARACTERS: Final = 80
# So many addresses in a row without an answer end a run: the site is out of reach.
MAX_SILENT: Final = 5
# For one turn of a worker with a listing.
LISTING_S: Final = 900.0
SILENT: Final = frozenset(
    {
        "unreachable",
        "timeout",
        "unknown_host",
        "robots_unreadable",
        "tls_failed",
    }
)


State = SourceItem.State


class Changes:
    def __init__(self, run: PageRun) -> None:
        self._run, self._source = run, run.source
        self._known = SourceItem.objects.filter(source=run.source, document__isnull=False).count()
        self._many = many(run.source, self._known)

    def check(self, text: str, text_key: str) -> None:
        """Is called for each change that is held; raises FetchError where a large share of pages shows this text."""
        if text_key not in self._source.accepted_keys:
            alike = self._held().filter(text_key=text_key).exclude(item__text_key=text_key)
            text_before = Coalesce(NullIf(F("item__text_key"), Value("")), F("item__content_hash"))
            count = alike.aggregate(count=Count(text_before, distinct=True))["count"]
            if count >= min(self._many, MOST_ALIKE):
                excerpt = storable(" ".join(text[: 4 * EXCERPT_CHARACTERS].split())[:EXCERPT_CHARACTERS])
                error = FetchError("one_text", count=count, known=self._known, excerpt=excerpt)
                # The pages stay as they were; those with the one text say so, which starts no time after which they go.
                fields = {**error_fields(error), "state": SourceItem.State.DUPLICATE, "gone_at": None}
                with self._run.holding():
                    SourceItem.objects.filter(change__in=alike).update(shown_key=text_key, **fields)
                    self._held().delete()
                raise error
        self._write_some()

    def settle(self) -> None:
        """Writes the changes, and deletes the documents of pages that have gone for long enough.

        Raises FetchError where a large share of the documents would go: none of them does then.
        """
        held = self._held().select_related("item").order_by("pk")
        # All before any is written: pages that were alike change together.
        names = {change.pk: self._others_name(change) for change in held.iterator(chunk_size=20)}
        confirmed = [pk for pk, name in names.items() if self._decide(pk, name) is None]
        gone, accepted_gone = self._gone()
        losses = len(confirmed) + len(gone)
        is_too_much = losses >= self._many
        for pk in confirmed:
            self._decide(pk, names[pk], is_confirmed=not is_too_much)
        for pk in accepted_gone if is_too_much else gone | accepted_gone:
            self._delete(pk)
        if is_too_much:
            self._run.counts["gone"] += len(gone)
            raise FetchError("many_gone", count=losses, known=self._known)

    def shows_several(self) -> bool:
        """Whether the site has shown more than one text in this run; one alone may be its answer to every address."""
        return bool(self._run.counts["unchanged"]) or self._held().values("text_key").distinct().count() > 1

    def _held(self) -> QuerySet[SourceItemChange]:
        return SourceItemChange.objects.filter(item__source=self._source)

    def _write_some(self) -> None:
        """Writes the older half of many changes, but for those whose text other pages have; so few are held at once."""
        count = self._held().count()
        if count < MOST_HELD or count % (MOST_HELD // 2):
            return
        for pk in list(_pks(self._held()))[: MOST_HELD // 2]:
            if self._others_name(SourceItemChange.objects.select_related("item").get(pk=pk)) is None:
                self._decide(pk, None)

    def _decide(self, pk: int, name: str | None, *, is_confirmed: bool | None = None) -> str | None:
        """Writes a change, or notes that its page shows the text of another, called `name`; returns how it is counted.

        `is_confirmed` says whether its document may give way to another with this text. Where that is not known yet,
        None is returned for what an earlier run has found as well, which is still held.
        """
        self._run.report()
        with self._run.holding():
            change = SourceItemChange.objects.select_related("item").filter(pk=pk).first()
            if change is None or change.item.document_id is None:
                return ""  # a curator has deleted the document: it comes again with the next run
            page = locked_item(self._source, change.item.url, url=change.item.url)
            is_accepted = change.text_key in self._source.accepted_keys
            name = None if is_accepted else name
            is_shown = page.state == SourceItem.State.DUPLICATE and page.shown_key == change.text_key
            since = page.gone_at if is_shown else None
            if name is not None and is_confirmed is None and since and since <= self._run.gone_before:
                return None  # an earlier run, long enough ago, has found the same
            outcome = "duplicate"
            if name is None or is_confirmed:
                gives_way = name is not None or is_accepted
                try:
                    outcome = self._run.replace(page, change.details, bytes(change.data), gives_way=gives_way)
                except AlreadyThere as error:
                    name = str(error)
            if outcome == "duplicate":  # others are compared with it until the run has ended
                hours = int(settings.WEB_DELETE_AFTER_HOURS)
                fields = error_fields(FetchError("same_text", title=str(name), hours=hours))
                fields |= {"gone_at": since or timezone.now(), "shown_key": change.text_key}
                save_item(page, state=SourceItem.State.DUPLICATE, **fields)
            else:
                change.delete()
        self._run.counts[outcome] += 1
        return outcome

    def _others_name(self, change: SourceItemChange) -> str | None:
        """Which other page or document has the text that a page shows now; None: no other, or it was so before.

        Texts are compared without their numbers, by which alone pages may differ: one that is again what it was is its own.
        """
        page, key = change.item, change.text_key
        if page.text_key == key or page.former_hash == change.details["text_hash"]:
            return None
        base = self._source.knowledge_base_id
        rows = SourceItem.objects.filter(source__knowledge_base=base, document__isnull=False).exclude(pk=page.pk)
        shows_now = Q(change__text_key=key) & (Q(text_key="") | ~Q(text_key=page.text_key))
        other = rows.filter(Q(text_key=key, change__isnull=True) | shows_now).order_by("pk").first()
        if other is not None:
            return str(other.title or other.url)
        same = Document.objects.filter(knowledge_base=base, sha256=hashlib.sha256(bytes(change.data)).hexdigest())
        document = same.exclude(pk=page.document_id).first()
        return None if document is None else str(document)

    def _gone(self) -> tuple[set[int], set[int]]:
        """Pages that have been gone for long enough, and those of them whose end somebody has accepted."""
        missing = SourceItem.objects.filter(source=self._source, state=SourceItem.State.GONE, document__isnull=False)
        found_now = missing.filter(fetched_at__gte=self._run.started_at, gone_at__lt=self._run.started_at)
        accepted_at = self._source.accepted_at
        accepted = set(_pks(found_now.filter(gone_at__lte=accepted_at))) if accepted_at else set()
        return set(_pks(found_now.filter(gone_at__lte=self._run.gone_before))) - accepted, accepted

    def _delete(self, page_id: int) -> None:
        self._run.report()
        with self._run.holding():
            page = SourceItem.objects.select_for_update().filter(pk=page_id, state=SourceItem.State.GONE).first()
            if page is None:
                return
            documents_delete(Document.objects.filter(pk=page.document_id))
        self._run.counts["deleted"] += 1


def _pks(rows: QuerySet[Any]) -> Iterator[int]:
    return iter(rows.order_by("pk").values_list("pk", flat=True))


class _TurnOver(Exception):
    """A listing takes longer than one turn of a worker; another one goes on with it."""


class Reader:
    def __init__(self, run: PageRun, client: WebClient) -> None:
        self._run = run
        self._source = run.source
        self._client = client
        self._robots = Robots(client)
        self._changes = Changes(run)
        self._limits = Limits(memory_bytes=settings.PARSE_MEMORY_BYTES, seconds=settings.PARSE_SECONDS)
        self._parser = WarmParser(self._limits)
        self._parsed_site = ""
        self._links: tuple[str, ...] = ()
        self._silent = 0
        self._position: Any = None

    def read(self, slice_s: float) -> bool:
        """Asks every address that this run has not asked yet; returns whether some are left for another time.

        Raises FetchError where the listing cannot be read, the site answers no more, or a large share of the documents
        would go, and LeaseLost where the run is no longer this worker's.
        """
        try:
            with closing(self._parser):
                has_more = self._ask_all(slice_s)
        except FetchError as error:
            if error.code != "one_text" and self._changes.shows_several():
                with suppress(FetchError):  # what ended the run comes first
                    self._changes.settle()
            raise
        if has_more:
            # It goes on with the next claim.
            self._run.wait(attempts=0, counts=dict(self._run.counts), listing=self._position)
            return True
        self._changes.settle()
        pages = SourceItem.objects.filter(source=self._source)
        faults = pages.exclude(error_code="").order_by("pk").values("error", "error_code", "error_params")
        is_unread = not pages.filter(Q(document__isnull=False) | Q(error_code="") | Q(state=State.DUPLICATE)).exists()
        if is_unread and (fault := faults.first()) is not None:
            self._run.end(Source.Status.FAILED, **fault)
        else:
            self._run.end(Source.Status.DONE, accepted_keys=[])
        return False

    def _ask_all(self, slice_s: float) -> bool:
        """Asks until the time is over; returns whether addresses are left."""
        listing_ends_at = time.monotonic() + LISTING_S
        pages = SourceItem.objects.filter(source=self._source).select_related("document")
        kept = pages.filter(document__isnull=False).order_by("pk")
        known = tuple(kept.values_list("url", flat=True))
        parts = count()

        def alive() -> None:
            self._run.report()
            if next(parts) and time.monotonic() >= listing_ends_at:
                raise _TurnOver  # one is read in any case

        listing = listing_of(self._source, self._client, known=known, alive=alive, position=self._source.listing)
        try:
            has_more = self._ask_listed(listing, pages, slice_s)
        except _TurnOver:
            has_more = True
        self._position = listing.position
        if not has_more and listing.is_complete:
            # Pages that the source had and that it does not lead to any more
            for url in list(kept.filter(fetched_at__lt=self._run.started_at).values_list("url", flat=True)):
                self._count(self._run.gone(url))
        return has_more

    def _ask_listed(self, listing: Listing, pages: QuerySet[SourceItem], slice_s: float) -> bool:
        ends_at = math.inf
        for candidate in listing:
            page = pages.filter(key_hash=hash_of(candidate.url)).first()
            if page is not None and page.fetched_at is not None and page.fetched_at >= self._run.started_at:
                self._links = self._stored_links(page)  # asked before this run was interrupted
            else:
                if time.monotonic() >= ends_at:
                    return True
                self._count(self._visit(candidate, page))
                # From the first address on: what comes before it is read again by every turn.
                ends_at = min(ends_at, time.monotonic() + slice_s)
            listing.met(candidate, self._links)
        return False

    def _count(self, outcome: str | None) -> None:
        if outcome is not None:  # else it is counted when it is decided on
            self._run.counts[outcome] += 1
        self._run.report()

    def _visit(self, candidate: Candidate, page: SourceItem | None) -> str | None:
        """Asks one address; returns what to count it as, None where that is decided on when the run ends."""
        self._links = ()
        try:
            outcome = self._take(candidate, page)
        except ParseError as error:
            outcome = self._run.fail(candidate, error)
        except FetchError as error:
            if error.code in {"too_many_requests", "one_text"}:
                raise
            outcome = self._run.fail(candidate, error)
            if error.code in SILENT:
                self._silent += 1
                if self._silent == MAX_SILENT:
                    raise
                return outcome
        self._silent = 0
        return outcome

    def _take(self, candidate: Candidate, page: SourceItem | None) -> str | None:
        held = page if page is not None and page.document_id is not None else None
        if held is not None and candidate.version and candidate.version == held.version:
            return self._run.unchanged(candidate)
        if candidate.content is not None:
            content = content_of_entry(candidate, self._limits, self._parser_of(self._source.url))
            return self._keep(candidate, content, Fetched(candidate.url))
        etag, last_modified = (held.etag, held.last_modified) if held is not None else ("", "")
        fetched = self._client.fetch(
            candidate.url, types=READABLE, before_hop=self._before_hop, etag=etag, last_modified=last_modified
        )
        if page is not None and fetched.not_modified:
            self._links = self._stored_links(page)
            return self._run.unchanged(candidate, fetched)
        content = content_of_page(fetched, self._limits, self._parser_of(fetched.url))
        self._links = content.links
        return self._keep(candidate, content, fetched)

    def _keep(self, candidate: Candidate, content: PageContent, fetched: Fetched) -> str | None:
        outcome = self._run.keep(candidate, content, fetched)
        if outcome is None:
            self._changes.check(content.text, content.text_key)
        return outcome

    def _parser_of(self, url: str) -> WarmParser:
        """Its child lives on from page to page of a site; those that a feed leads to are not to know of other sites'."""
        if (site := site_of(url)) != self._parsed_site:
            self._parser.close()
            self._parsed_site = site
        return self._parser

    def _before_hop(self, url: Any) -> float:
        if self._source.kind in ONE_SITE and site_of(str(url)) != site_of(self._source.url):
            raise FetchError("off_site", url=str(url)[:200])
        return self._robots.check(url)

    def _stored_links(self, page: SourceItem) -> tuple[str, ...]:
        """Where a page leads that was not sent again."""
        document = page.document
        if self._source.kind != Source.Kind.CRAWL or document is None or not document.file:
            return ()
        change = SourceItemChange.objects.filter(item=page).first()
        try:
            with io.BytesIO(change.data) if change is not None else document.file.open("rb") as file:
                data = file.read()
            return links_in(data, page.url, self._limits, self._parser_of(page.url))
        except (FileNotFoundError, ParseError):
            return ()
