"""A worker's hold on documents: renewed as long as its process lives, so that one that is gone is known to be soon."""

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import Error, connections
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from kb.base import draining
from kb.base.db.transactions import after_commit
from kb.base.metrics import observe_document, observe_stage
from kb.content.models import Document, IngestBatch

logger = logging.getLogger(__name__)

RENEWALS: Final = 3
"""In the time of a lease, so that one that fails does not cost it."""


def lease_until(now: datetime) -> datetime:
    """When a lease that is taken or renewed now ends."""
    return now + timedelta(seconds=settings.INGEST_LEASE_SECONDS)


@contextmanager
def kept(lease: uuid.UUID) -> Iterator[None]:
    """Renews the lease of whatever documents have it, beside steps that may take longer than it lasts."""
    ended = threading.Event()
    keeper = threading.Thread(target=_renew, args=(lease, ended), name="lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


def _renew(lease: uuid.UUID, ended: threading.Event) -> None:
    while not ended.wait(settings.INGEST_LEASE_SECONDS / RENEWALS):
        try:
            held = Document.objects.filter(lease=lease, status=Document.Status.PROCESSING)
            held.update(lease_until=lease_until(timezone.now()))
        except Error as error:
            logger.warning("a lease could not be renewed, which is tried again: %s", error)
        finally:
            connections.close_all()


class LeaseLost(Exception):
    """Another worker has taken the document over, or it was deleted: this one writes nothing."""


class WorkerEnds(Exception):
    """The worker was asked to end a while ago: what it is at goes to another one."""


def must_return() -> bool:
    """Whether this worker ends and has no time left to finish a document."""
    return draining.since() is not None and draining.seconds() >= settings.WORKER_GRACE_SECONDS


def return_if_ending() -> None:
    """Belongs where work can be given up without loss.

    Raises:
        WorkerEnds: the worker has no time left.
    """
    if must_return():
        raise WorkerEnds("the worker ends")


def returned() -> dict[str, object]:
    """The fields of a document as if no worker had taken it: this attempt does not count."""
    waiting = {"status": Document.Status.PENDING, "stage": "", "progress": 0, "lease": None, "lease_until": None}
    return {**waiting, "attempts": F("attempts") - 1, "updated_at": timezone.now()}


class Job:
    """One worker's hold on one document; it is renewed while the worker lives, and by every report of progress."""

    def __init__(self, document: Document, lease: uuid.UUID) -> None:
        self.document = document
        self.lease = lease
        self._stage, self._since = str(Document.Stage.PARSE), time.monotonic()

    @classmethod
    def claim(cls, document_id: int) -> "Job | None":
        """Takes a document that waits, or whose worker was lost.

        Returns:
            None if another worker holds it, it is done, or its upload is paused. A task may so be delivered as often as
            the broker likes.
        """
        lease, now = uuid.uuid4(), timezone.now()
        free = Q(status=Document.Status.PENDING) | Q(status=Document.Status.PROCESSING, lease_until__lt=now)
        paused = Exists(IngestBatch.objects.filter(pk=OuterRef("batch"), paused=True))
        taken = Document.objects.filter(free, ~paused, pk=document_id).update(
            status=Document.Status.PROCESSING,
            stage=Document.Stage.PARSE,
            progress=0,
            error="",
            error_code="",
            attempts=F("attempts") + 1,
            lease=lease,
            lease_until=lease_until(now),
            updated_at=now,
        )
        document = Document.objects.select_related("knowledge_base").filter(pk=document_id).first() if taken else None
        return cls(document, lease) if document else None

    def report(self, stage: Document.Stage, progress: int) -> None:
        """Shows how far the document is, in per cent of the whole, and renews the lease.

        Raises:
            LeaseLost: the document is no longer this worker's.
            WorkerEnds: the worker has no time left; the document has to be given back.
        """
        return_if_ending()
        self._enter(stage)
        now = timezone.now()
        self._update(
            stage=stage,
            progress=progress,
            lease_until=lease_until(now),
            updated_at=now,
        )

    def _enter(self, stage: str) -> None:
        if stage != self._stage:
            observe_stage(self._stage, time.monotonic() - self._since)
            self._stage, self._since = str(stage), time.monotonic()

    def give_back(self) -> None:
        """Puts the document back as if it had never been taken."""
        self._update(**returned())
        observe_document("returned")

    def fail(self, code: str, message: str, params: Mapping[str, str | int] | None = None) -> None:
        self._update(
            status=Document.Status.FAILED,
            error_code=code,
            error=message,
            error_params=dict(params or {}),
            lease=None,
            lease_until=None,
            updated_at=timezone.now(),
        )
        observe_document("failed")
        logger.warning("document %s has failed (%s): %s", self.document.pk, code, message)

    def release(self) -> None:
        """Puts the document back, for the sweep to enqueue; the attempt counts, so that none goes round for ever."""
        self._update(status=Document.Status.PENDING, lease=None, lease_until=None, updated_at=timezone.now())

    def finish(self, title: str, mime: str, **more: object) -> None:
        self._update(
            status=Document.Status.READY,
            stage="",
            progress=100,
            attempts=0,
            keep_chunks=False,
            title=title,
            indexed_title=title,
            mime=mime,
            **more,
            lease=None,
            lease_until=None,
            updated_at=timezone.now(),
        )
        after_commit(self._is_ready)

    def _is_ready(self) -> None:
        self._enter("")
        observe_document("ready")
        logger.info("document %s is ready", self.document.pk)

    def lock(self) -> None:
        """Keeps the document this worker's until the transaction ends.

        Raises:
            LeaseLost: it is no longer.
        """
        self._update(updated_at=timezone.now())

    def _update(self, **fields: object) -> None:
        if not Document.objects.filter(pk=self.document.pk, lease=self.lease).update(**fields):
            raise LeaseLost
