"""A run of a source whose connector lists files: what is new or changed is fetched, and what has gone is deleted.

A long listing takes several turns of a worker, and what it has found to fetch is stored. Each file is one transaction, so a
run that is killed anywhere is carried on from there. Nothing is deleted before a whole listing, at the first run that misses
it, or where so much would go that it may be the place's fault.
"""

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from django.conf import settings
from django.core.files.base import File
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from msgspec import convert, to_builtins

from kb.base.files import sha256_of
from kb.base.net.addresses import FetchError
from kb.content.models import Document
from kb.sources.connectors.protocol import MOST_FILES, UNAVAILABLE, Connector, Item
from kb.sources.connectors.registry import KINDS
from kb.sources.models import ListedItem, Source, SourceItem
from kb.sources.services.items import (
    NO_ERROR,
    hash_of,
    heirs,
    item_delete,
    item_fail,
    item_match,
    item_remark,
    item_take,
    version_of,
)
from kb.sources.services.runs import Run
from kb.sources.services.sources import many

ROWS_A_QUERY: Final = 1_000
# Failures that the same bytes meet again, so that they are not fetched for it.
FINAL: Final = frozenset({"unsupported_type", "too_large"})
# Of one turn of a worker, and turns of one listing.
LISTING_S: Final = 900.0
MOST_TURNS: Final = 100
State = SourceItem.State


class Sync:
    """A run of a source by its connector."""

    def __init__(self, run: Run, connector: Connector) -> None:
        self._run, self._source, self._connector = run, run.source, connector
        self._at: datetime = run.started_at
        self._listing = self._source.listing or {"listed": 0, "turns": 0, "position": None, "is_whole": False}
        self._to_fetch = ListedItem.objects.filter(source=self._source).order_by("pk")
        self._digests: dict[str, str] = {}
        every = settings.SOURCE_FULL_CHECK_RUNS
        self._trusts = KINDS[self._source.kind].trusts_versions
        self._is_full = bool(every) and not self._trusts and self._source.run_count % every == every - 1

    def read(self, slice_s: float) -> bool:
        """Carries the run on for a time; returns whether some is left for another time.

        Raises FetchError where the place cannot be read, or a large share of the documents would go, and LeaseLost where
        the run is no longer this worker's.
        """
        if not self._listing["is_whole"] and not self._list():
            self._run.wait(attempts=0, counts=dict(self._run.counts))  # it goes on with the next claim
            return True
        self._digests = self._digests_by_version()
        total, ends_at = self._to_fetch.count(), math.inf
        for done, row in enumerate(self._to_fetch.iterator()):
            item = convert(row.item, Item)
            if time.monotonic() >= ends_at:
                self._run.wait(attempts=0, counts=dict(self._run.counts))
                return True
            self._run.tell("reading", done=done, total=total, item=item.key)
            self._run.counts[self._take(item)] += 1
            # Not before the first, with which git fetches a repository.
            ends_at = min(ends_at, time.monotonic() + slice_s)
        self._take_orphans()
        self._settle()
        self._run.end(Source.Status.DONE, accepted_keys=[])
        return False

    # -- Listing -----------------------------------------------------------------------------------------------------------
    def _list(self) -> bool:
        """Lists for a time, from where an earlier turn has stopped; whether all of it is listed."""
        if self._source.listing is None:
            self._to_fetch.delete()  # of an earlier run
        self._listing["turns"] += 1
        if self._listing["turns"] > MOST_TURNS:
            raise FetchError("slow_listing", hours=round(MOST_TURNS * LISTING_S / 3_600))
        ends_at = time.monotonic() + LISTING_S
        found: list[Item] = []
        for items, position in self._connector.portions(self._listing["position"]):
            self._listing["listed"] += len(items)
            if self._listing["listed"] > MOST_FILES:
                raise FetchError("too_many_items", most=MOST_FILES)
            self._run.tell("listing", done=self._listing["listed"])
            found += items
            self._listing["position"] = position
            is_over = position is not None and time.monotonic() >= ends_at
            if is_over or len(found) >= ROWS_A_QUERY:
                self._note_listed(found)
                found = []
            if is_over:
                return False
        self._listing["is_whole"] = True
        self._note_listed(found)
        return True

    def _note_listed(self, found: Sequence[Item]) -> None:
        """Stores what was listed, and then how far that is: what a killed worker has listed since is listed once more."""
        for first in range(0, len(found), ROWS_A_QUERY):
            with self._run.holding():
                self._compare({hash_of(item.key): item for item in found[first : first + ROWS_A_QUERY]})
        self._run.renew(listing=self._listing)

    def _compare(self, items: dict[str, Item]) -> None:
        """Notes what is as it was, and what is to be fetched."""
        rows = {
            row.key_hash: row
            for row in SourceItem.objects.filter(source=self._source, key_hash__in=items).defer("error_params", "url")
        }
        unchanged: list[int] = []
        wanted: list[ListedItem] = []
        same_bytes: list[tuple[SourceItem, Item]] = []
        for key_hash, item in items.items():
            row = rows.get(key_hash)
            if row is not None and self._is_as_before(row, item):
                unchanged.append(row.pk)
            elif row is not None and row.document_id is not None and item.digest and item.digest == row.digest:
                same_bytes.append((row, item))
            else:
                wanted.append(ListedItem(source=self._source, key_hash=key_hash, item=to_builtins(item)))
        ListedItem.objects.bulk_create(wanted, ignore_conflicts=True)
        self._write_seen([row.pk for row in rows.values()], unchanged, same_bytes)
        counted = {*unchanged, *(row.pk for row, _ in same_bytes)}
        for row in rows.values():
            if row.pk in counted and row.seen_at != self._at:
                self._run.counts["unchanged" if row.document_id is not None else row.state] += 1

    def _is_as_before(self, row: SourceItem, item: Item) -> bool:
        if not item.version or version_of(item) != row.version:
            return False
        if self._is_full or (None not in (item.size, row.size) and item.size != row.size):
            return False
        if row.state == State.FAILED:
            return row.error_code in FINAL
        return (row.document_id is not None) != (row.state == State.DUPLICATE)

    def _write_seen(
        self, seen: Sequence[int], unchanged: Sequence[int], same_bytes: Sequence[tuple[SourceItem, Item]]
    ) -> None:
        rows = SourceItem.objects.filter(source=self._source)
        kept = Q(document__isnull=False) & ~Q(state=State.FAILED)
        rows.filter(kept, pk__in=unchanged).update(seen_at=self._at, state=State.UNCHANGED, **NO_ERROR)
        for row, item in same_bytes:
            row.version, row.size = version_of(item), item.size if item.size is not None else row.size
            row.state, row.gone_at, row.error, row.error_code, row.error_params = State.UNCHANGED, None, "", "", {}
        fields = ["version", "size", "state", "gone_at", "error", "error_code", "error_params"]
        SourceItem.objects.bulk_update([row for row, _ in same_bytes], fields, batch_size=ROWS_A_QUERY)
        rows.filter(pk__in=seen).exclude(seen_at=self._at).update(seen_at=self._at)

    def _digests_by_version(self) -> dict[str, str]:
        """Of contents that there are documents of, where a version stands for the content: a moved file is not fetched."""
        if not self._trusts:
            return {}
        wanted = set(self._to_fetch.values_list("item__version", flat=True))
        # With a `content_hash` the version is that of bytes which the document was not made from.
        rows = SourceItem.objects.filter(source=self._source, document__isnull=False, content_hash="")
        known = rows.exclude(Q(digest="") | Q(version="")).values_list("version", "digest").iterator()
        return {version: digest for version, digest in known if version in wanted}

    # -- Fetching ----------------------------------------------------------------------------------------------------------
    def _take(self, item: Item) -> str:
        """Fetches an item and stores it; returns what to count it as."""
        rows = SourceItem.objects.filter(source=self._source, document__isnull=False)
        was = rows.filter(key_hash=hash_of(item.key)).first()

        def is_free(other: SourceItem) -> bool:
            is_missing = other.seen_at is None or other.seen_at < self._at
            return is_missing or (was is not None and self._to_fetch.filter(key_hash=other.key_hash).exists())

        if known := item.digest or self._digests.get(version_of(item)):
            with self._run.holding():
                outcome = item_match(self._source, item, known, is_free=is_free, at=self._at)
                if outcome is not None:
                    self._to_fetch.filter(key_hash=hash_of(item.key)).delete()
                    return outcome
        try:
            with tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as written:
                read = self._connector.fetch(item, written, settings.MAX_UPLOAD_BYTES)
                written.seek(0)
                file = File(written)
                digest = sha256_of(file)
                with self._taking(item):
                    outcome = item_take(self._source, read, file, digest, is_free=is_free, at=self._at)
                    self._remark(item, read, was, outcome)
        except FetchError as error:
            if error.code in UNAVAILABLE:
                raise
            with self._taking(item):
                if error.code != "gone":
                    return item_fail(self._source, item, error, self._at)
                # It went between listing and fetch: as if this run had not listed it.
                SourceItem.objects.filter(source=self._source, key_hash=hash_of(item.key)).update(seen_at=None)
                return "vanished"
        return outcome

    @contextmanager
    def _taking(self, item: Item) -> Iterator[None]:
        """As `Run.holding`, for what is done once and for all with an item."""
        with self._run.holding():
            yield
            self._to_fetch.filter(key_hash=hash_of(item.key)).delete()

    def _remark(self, listed: Item, read: Item, was: SourceItem | None, outcome: str) -> None:
        """Says of an item what the place has said wrongly about it."""
        if outcome in {"duplicate", "failed"}:
            return
        if read.version != listed.version and listed.version:
            self._run.counts["moving"] += 1
            item_remark(self._source, read, FetchError("changed_while_read"))
        elif was is not None and listed.version and was.version == version_of(listed) and outcome == "changed":
            self._run.counts["misversioned"] += 1
            item_remark(self._source, read, FetchError("same_version"))

    def _take_orphans(self) -> None:
        """Reads items that were the same as a document which is gone or has changed: they get one of their own."""
        held = Document.objects.filter(knowledge_base=self._source.knowledge_base_id, sha256=OuterRef("digest"))
        rows = SourceItem.objects.filter(source=self._source, seen_at=self._at, state=State.DUPLICATE, document=None)
        for row in SourceItem.objects.filter(pk__in=list(rows.filter(~Exists(held)).values_list("pk", flat=True))):
            self._run.tell("reading", item=row.key)
            outcome = self._take(Item(row.key, row.version, name=row.name, title=row.title, size=row.size, url=row.url))
            self._run.counts["duplicate"] -= 1
            self._run.counts[outcome] += 1

    # -- Deleting ----------------------------------------------------------------------------------------------------------
    def _settle(self) -> None:
        """Deletes what an earlier run has missed, too; raises FetchError where so much would go that somebody is to look."""
        is_missing = Q(seen_at=None) | Q(seen_at__lt=self._at)
        missing = SourceItem.objects.filter(is_missing, source=self._source)
        missing.filter(document=None).delete()
        known = SourceItem.objects.filter(source=self._source, document__isnull=False).count()
        self._hand_over(missing)
        missing.filter(~Q(state=State.GONE) | Q(gone_at=None)).update(
            **{**NO_ERROR, "state": State.GONE, "gone_at": timezone.now()}
        )
        replaced = Q(state=State.DUPLICATE, document__isnull=False, gone_at__lt=self._at)
        gone = Q(state=State.GONE, document__isnull=False, gone_at__lt=self._at) & is_missing
        losses = SourceItem.objects.filter(gone | replaced, source=self._source)
        accepted_at = self._source.accepted_at
        accepted = set(losses.filter(gone_at__lte=accepted_at).values_list("pk", flat=True)) if accepted_at else set()
        others = set(losses.values_list("pk", flat=True)) - accepted
        is_too_much = len(others) >= many(self._source, known)
        is_too_much |= bool(others) and not self._listing["listed"]
        doomed = sorted(accepted if is_too_much else accepted | others)
        for done, pk in enumerate(doomed):
            self._run.tell("deleting", done=done, total=len(doomed))
            with self._run.holding():
                row = SourceItem.objects.select_for_update().filter(pk=pk, document__isnull=False).first()
                if row is not None:
                    self._run.counts[item_delete(row)] += 1
        if left := missing.count():
            self._run.counts["gone"] = left
        if is_too_much:
            raise FetchError("many_missing", count=len(others), known=known)

    def _hand_over(self, missing: QuerySet[SourceItem]) -> None:
        """Gives the documents of items that have gone to others with the same bytes."""
        digests = set(heirs(self._source).values_list("digest", flat=True)) - {""}
        for pk in list(missing.filter(digest__in=digests).values_list("pk", flat=True)) if digests else []:
            with self._run.holding():
                row = SourceItem.objects.select_for_update().filter(pk=pk).first()
                if row is not None and heirs(self._source).filter(digest=row.digest).exists():
                    row.state = State.GONE
                    self._run.counts[item_delete(row)] += 1
                    self._run.counts["duplicate"] -= 1
