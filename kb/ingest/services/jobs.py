"""Documents as rows that workers process: how far each is, and what became of it."""

import logging
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef, Q

from kb.base.metrics import observe_document, observe_stage
from kb.content.models import Document, IngestBatch
from kb.jobs.leases import Job, Queue, return_if_ending

logger = logging.getLogger(__name__)

Status, Stage = Document.Status, Document.Stage

DOCUMENTS = Queue(
    Document,
    waiting=Status.PENDING,
    running=Status.PROCESSING,
    lasts=lambda: timedelta(seconds=settings.INGEST_LEASE_SECONDS),
    waits_since="updated_at",
    stamp="updated_at",
    available=Q(~Exists(IngestBatch.objects.filter(pk=OuterRef("batch"), paused=True))),
    idle={"stage": "", "progress": 0},
    related=("knowledge_base",),
)
CLAIMED: Mapping[str, Any] = {"stage": Stage.PARSE, "progress": 0, "error": "", "error_code": ""}


class DocumentJob(Job[Document]):
    """One worker's hold on one document; every report of progress renews it."""

    def __init__(self, document: Document, lease: uuid.UUID) -> None:
        super().__init__(DOCUMENTS, document, lease)
        self.document = document
        self._stage, self._since = str(Stage.PARSE), time.monotonic()

    @classmethod
    def claim(cls, document_id: int) -> "DocumentJob | None":
        """Takes a document that waits, or whose worker was lost; None: there is nothing to do for it."""
        job = DOCUMENTS.claim(Q(pk=document_id), **CLAIMED)
        return cls(job.row, job.lease) if job else None

    def report(self, stage: Document.Stage, progress: int) -> None:
        """Shows how far the document is, in per cent of the whole, and renews the lease.

        Raises:
            LeaseLost: the document is no longer this worker's.
            WorkerEnds: the worker has no time left; the document has to be given back.
        """
        return_if_ending()
        self.enter(stage)
        self.renew(stage=stage, progress=progress)

    def enter(self, stage: str) -> None:
        """Measures the stage that ends when another one begins; blank: the document is ready."""
        if stage != self._stage:
            observe_stage(self._stage, time.monotonic() - self._since)
            self._stage, self._since = str(stage), time.monotonic()

    def fail(self, code: str, message: str, params: Mapping[str, str | int] | None = None) -> None:
        self.leave(Status.FAILED, error_code=code, error=message, error_params=dict(params or {}))
        observe_document("failed")
        logger.warning("document %s has failed (%s): %s", self.document.pk, code, message)
