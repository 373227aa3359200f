"""A run of a source whose connector lists files: what is new or changed is fetched, and what has gone is deleted.

Each file is one transaction, so a run that is killed anywhere is carried on from its listing. Nothing is deleted before a
whole listing, at the first run that misses it, or where so much would go that it may be the place's fault.
"""

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, TypeVar

from django.conf import settings
from django.core.files.base import File
from django.db.models import Q, QuerySet
from django.utils import timezone

from kb.base.files import sha256_of
from kb.base.net.addresses import FetchError
from kb.content.models import Document
from kb.sources.connectors.protocol import UNAVAILABLE, Connector, Item
from kb.sources.connectors.registry import KINDS
from kb.sources.models import Source, SourceItem
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
MAX_ITEMS: Final = 200_000
# Failures that the same bytes meet again, so that they are not fetched for it.
FINAL: Final = frozenset({"unsupported_type", "too_large"})
State = SourceItem.State
T = TypeVar("T")


class Sync:
    """A run of a source by its connector."""

    def __init__(self, run: Run, connector: Connector) -> None:
        self._run, self._source, self._connector = run, run.source, connector
        self._at: datetime = run.started_at
        self._listed = 0
        # What is to be fetched, and those of it that have a document, by their keys' hashes.
        self._wanted: dict[str, Item] = {}
        self._with_document: dict[str, SourceItem] = {}
        self._duplicates: dict[str, Item] = {}
        self._digests: dict[str, str] = {}
        every = settings.SOURCE_FULL_CHECK_RUNS
        self._trusts = KINDS[self._source.kind].trusts_versions
        self._is_full = bool(every) and not self._trusts and self._source.run_count % every == every - 1

    def read(self, slice_s: float) -> bool:
        """Carries the run on for a time; returns whether some is left for another time.

        Raises FetchError where the place cannot be read, or a large share of the documents would go, and LeaseLost where
        the run is no longer this worker's.
        """
        ends_at = time.monotonic() + slice_s
        self._list()
        self._digests = self._digests_by_version()
        total = len(self._wanted)
        for done, (key_hash, item) in enumerate(list(self._wanted.items())):
            if done and time.monotonic() >= ends_at:
                self._run.wait(attempts=0, counts=dict(self._run.counts))  # it goes on with the next claim
                return True
            self._run.tell("reading", done=done, total=total, item=item.key)
            outcome = self._take(item)
            self._run.counts[outcome] += 1
            if outcome == "duplicate":
                self._duplicates[key_hash] = item
            del self._wanted[key_hash]
        self._take_orphans()
        self._settle()
        self._run.end(Source.Status.DONE, accepted_keys=[])
        return False

    # -- Listing -----------------------------------------------------------------------------------------------------------
    def _list(self) -> None:
        for batch in _batches(self._items()):
            self._compare({hash_of(item.key): item for item in batch})

    def _items(self) -> Iterator[Item]:
        for item in self._connector.items():
            if self._listed == MAX_ITEMS:
                raise FetchError("too_many_items", most=MAX_ITEMS)
            self._listed += 1
            self._run.tell("listing", done=self._listed)
            yield item

    def _compare(self, items: dict[str, Item]) -> None:
        """Notes what is as it was, and what is to be fetched."""
        rows = {
            row.key_hash: row
            for row in SourceItem.objects.filter(source=self._source, key_hash__in=items).defer("error_params", "url")
        }
        unchanged: list[int] = []
        same_bytes: list[tuple[SourceItem, Item]] = []
        for key_hash, item in items.items():
            row = rows.get(key_hash)
            if row is None:
                self._wanted[key_hash] = item
            elif row.fetched_at is not None and row.fetched_at >= self._at and row.seen_at == self._at:
                self._note_duplicate(row, item)  # read before this run was interrupted
            elif not self._is_as_before(row, item):
                if row.document_id is not None and item.digest and item.digest == row.digest:
                    same_bytes.append((row, item))
                else:
                    self._wanted[key_hash] = item
                    if row.document_id is not None:
                        self._with_document[key_hash] = row
            else:
                self._note_duplicate(row, item)
                unchanged.append(row.pk)
        self._write_seen([row.pk for row in rows.values()], unchanged, same_bytes)
        first_time = [row for row in rows.values() if row.seen_at != self._at]
        counted = {*unchanged, *(row.pk for row, _ in same_bytes)}
        for row in first_time:
            if row.pk in counted:
                self._run.counts["unchanged" if row.document_id is not None else row.state] += 1

    def _note_duplicate(self, row: SourceItem, item: Item) -> None:
        if row.state == State.DUPLICATE and row.document_id is None:
            self._duplicates[row.key_hash] = item

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
        wanted = {version_of(item) for item in self._wanted.values()}
        # With a `content_hash` the version is that of bytes which the document was not made from.
        rows = SourceItem.objects.filter(source=self._source, document__isnull=False, content_hash="").exclude(
            digest=""
        )
        known = rows.exclude(version="").values_list("version", "digest").iterator()
        return {version: digest for version, digest in known if version in wanted}

    # -- Fetching ----------------------------------------------------------------------------------------------------------
    def _take(self, item: Item) -> str:
        """Fetches an item and stores it; returns what to count it as."""
        was = self._with_document.get(hash_of(item.key))

        def is_free(other: SourceItem) -> bool:
            is_missing = other.seen_at is None or other.seen_at < self._at
            return is_missing or (was is not None and other.key_hash in self._wanted)

        if known := item.digest or self._digests.get(version_of(item)):
            with self._run.holding():
                outcome = item_match(self._source, item, known, is_free=is_free, at=self._at)
            if outcome is not None:
                return outcome
        try:
            with tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as written:
                read = self._connector.fetch(item, written, settings.MAX_UPLOAD_BYTES)
                written.seek(0)
                file = File(written)
                digest = sha256_of(file)
                with self._run.holding():
                    outcome = item_take(self._source, read, file, digest, is_free=is_free, at=self._at)
                    self._remark(item, read, was, outcome)
        except FetchError as error:
            if error.code in UNAVAILABLE:
                raise
            with self._run.holding():
                return self._vanished(item) if error.code == "gone" else item_fail(self._source, item, error, self._at)
        return outcome

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

    def _vanished(self, item: Item) -> str:
        """Notes that an item went between listing and fetch: as if this run had not listed it."""
        rows = SourceItem.objects.filter(source=self._source, key_hash=hash_of(item.key))
        rows.update(seen_at=None)
        return "vanished"

    def _take_orphans(self) -> None:
        """Reads items that were the same as a document which is gone or has changed: they get one of their own."""
        for hashes in _batches(self._duplicates):
            rows = SourceItem.objects.filter(
                source=self._source, key_hash__in=hashes, state=State.DUPLICATE, document=None
            )
            digests = dict(rows.values_list("key_hash", "digest"))
            known = Document.objects.filter(knowledge_base=self._source.knowledge_base_id, sha256__in=digests.values())
            there = set(known.values_list("sha256", flat=True))
            for key_hash, digest in digests.items():
                if digest not in there:
                    self._run.tell("reading", item=self._duplicates[key_hash].key)
                    outcome = self._take(self._duplicates[key_hash])
                    self._run.counts["duplicate"] -= 1
                    self._run.counts[outcome] += 1

    # -- Deleting ----------------------------------------------------------------------------------------------------------
    def _settle(self) -> None:
        """Deletes what an earlier run has missed, too; raises FetchError where so much would go that somebody is to look."""
        missing = self._missing()
        missing.filter(document=None).delete()
        known = SourceItem.objects.filter(source=self._source, document__isnull=False).count()
        self._hand_over(missing)
        newly = missing.exclude(state=State.GONE) | missing.filter(gone_at=None)
        newly.update(**{**NO_ERROR, "state": State.GONE, "gone_at": timezone.now()})
        replaced = Q(state=State.DUPLICATE, document__isnull=False, gone_at__lt=self._at)
        gone = Q(state=State.GONE, document__isnull=False, gone_at__lt=self._at) & self._is_missing()
        losses = SourceItem.objects.filter(gone | replaced, source=self._source)
        accepted_at = self._source.accepted_at
        accepted = set(losses.filter(gone_at__lte=accepted_at).values_list("pk", flat=True)) if accepted_at else set()
        others = set(losses.values_list("pk", flat=True)) - accepted
        is_too_much = len(others) >= many(self._source, known)
        is_too_much |= bool(others) and not self._listed
        doomed = sorted(accepted if is_too_much else accepted | others)
        for done, pk in enumerate(doomed):
            self._run.tell("deleting", done=done, total=len(doomed))
            self._delete(pk)
        if left := missing.count():
            self._run.counts["gone"] = left
        if is_too_much:
            raise FetchError("many_missing", count=len(others), known=known)

    def _is_missing(self) -> Q:
        return Q(seen_at=None) | Q(seen_at__lt=self._at)

    def _missing(self) -> QuerySet[SourceItem]:
        return SourceItem.objects.filter(self._is_missing(), source=self._source)

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

    def _delete(self, pk: int) -> None:
        with self._run.holding():
            row = SourceItem.objects.select_for_update().filter(pk=pk, document__isnull=False).first()
            if row is not None:
                self._run.counts[item_delete(row)] += 1


def _batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """As many at once as one query is about."""
    iterator = iter(rows)
    while batch := list(islice(iterator, ROWS_A_QUERY)):
        yield batch
