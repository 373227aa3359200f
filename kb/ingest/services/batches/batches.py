"""Uploads: documents that came in together, told of and steered as one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db import transaction
from django.db.models import Count, Max, Min, Q
from django.utils import timezone

from kb.access.models.accounts import User
from kb.access.models.knowledge import KnowledgeBase
from kb.content.models.batches import IngestBatch
from kb.content.models.documents import Document
from kb.content.signals import batch_waiting
from kb.ingest.services.documents import waiting

Status = Document.Status
UNFINISHED: Final = (Status.PENDING, Status.PROCESSING)
FINISHED: Final = (Status.READY, Status.FAILED)
RATE_OVER: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far an upload is.

    Attributes:
        counts: documents by status.
        stages: those in processing, by stage.
        rate: documents a second over the last while; 0: none was finished in it.
        seconds_left: None where that cannot be told: nothing is left, or nothing moves.
    """

    counts: dict[str, int]
    stages: dict[str, int]
    rate: float = 0.0
    seconds_left: int | None = None
    is_paused: bool = False

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def unfinished(self) -> int:
        return sum(self.counts.get(status, 0) for status in UNFINISHED)

    @property
    def done(self) -> int:
        return self.total - self.unfinished

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 0

    @property
    def is_moving(self) -> bool:
        """Whether it will look otherwise before long, without anybody's doing."""
        return self.unfinished > 0 and not (self.is_paused and not self.counts.get(Status.PROCESSING, 0))


def batch_create(*, knowledge_base: KnowledgeBase, name: str, user: User | None) -> IngestBatch:
    """Begins an upload; the caller has checked that the user may write to the knowledge base."""
    return IngestBatch.objects.create(knowledge_base=knowledge_base, name=name[:200] or "–", created_by=user)


def batch_progress(batch: IngestBatch) -> BatchProgress:
    """Read in one statement, whatever the number of documents."""
    return progress_of([batch])[batch.pk]


def progress_of(batches: Sequence[IngestBatch]) -> dict[int, BatchProgress]:
    """The progress of several uploads by their ids, in one statement."""
    since = timezone.now() - RATE_OVER
    lately = Q(status__in=FINISHED, updated_at__gte=since)
    rows = (
        Document.objects.filter(batch__in=batches)
        .order_by()
        .values("batch", "status", "stage")
        .annotate(
            documents=Count("pk"),
            lately=Count("pk", filter=lately),
            first=Min("updated_at", filter=lately),
            came=Max("created_at"),
        )
    )
    by_batch: dict[int, list[dict[str, Any]]] = {batch.pk: [] for batch in batches}
    for row in rows:
        by_batch[row["batch"]].append(row)
    return {batch.pk: _progress(batch, by_batch[batch.pk]) for batch in batches}


def _progress(batch: IngestBatch, rows: Sequence[dict[str, Any]]) -> BatchProgress:
    counts: dict[str, int] = {}
    stages: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + row["documents"]
        if row["status"] == Status.PROCESSING:
            stages[row["stage"]] = stages.get(row["stage"], 0) + row["documents"]
    lately = sum(row["lately"] for row in rows)
    first = min((row["first"] for row in rows if row["first"]), default=None)
    seconds = max(1.0, (timezone.now() - first).total_seconds()) if first else 1.0
    rate = lately / seconds
    left = sum(counts.get(status, 0) for status in UNFINISHED)
    moves = rate > 0 and left > 0 and not batch.paused
    return BatchProgress(counts, stages, rate, round(left / rate) if moves else None, batch.paused)


def batch_pause(batch: IngestBatch) -> None:
    """Workers finish the documents at hand and take up no further one."""
    IngestBatch.objects.filter(pk=batch.pk).update(paused=True)
    batch.paused = True


def batch_resume(batch: IngestBatch) -> None:
    Document.objects.filter(batch=batch, status=Status.PENDING).update(waiting_since=timezone.now())
    IngestBatch.objects.filter(pk=batch.pk).update(paused=False)
    batch.paused = False
    _take_up(batch)


def batch_cancel(batch: IngestBatch) -> int:
    """Takes the documents that are not done out of the queue; a worker at one of them writes nothing more.

    Returns:
        How many there were. What is searchable by now stays, and so do the files.
    """
    cancelled = 0
    # Once more for what an archive was bringing in while this waited for it.
    while found := _cancel_unfinished(batch):
        cancelled += found
    return cancelled


def _cancel_unfinished(batch: IngestBatch) -> int:
    rows = Document.objects.filter(batch=batch, status__in=UNFINISHED)
    with transaction.atomic():
        # In the order in which a worker locks those that it writes together.
        ids = list(rows.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
        return Document.objects.filter(pk__in=ids).update(
            status=Status.CANCELLED, stage="", progress=0, lease=None, lease_until=None, updated_at=timezone.now()
        )


def batch_retry(batch: IngestBatch, status: str = Status.FAILED) -> int:
    """Has the failed documents processed once more, or the cancelled ones after all; returns how many there are."""
    rows = Document.objects.filter(batch=batch, status=status)
    without_file = rows.filter(file="").update(keep_chunks=True, **waiting(), updated_at=timezone.now())
    count = without_file + rows.update(**waiting(), updated_at=timezone.now())
    if count:
        _take_up(batch)
    return count


def waiting_ids(batch_id: int, *, after: int, limit: int) -> list[int]:
    """The next documents of an upload that wait, by id."""
    rows = Document.objects.filter(batch=batch_id, status=Status.PENDING, pk__gt=after, batch__paused=False)
    return list(rows.order_by("pk").values_list("pk", flat=True)[:limit])


def _take_up(batch: IngestBatch) -> None:
    transaction.on_commit(partial(batch_waiting.send, IngestBatch, batch_id=batch.pk))
