"""Celery's way into the services; tasks carry ids only."""

import logging
from datetime import timedelta
from typing import Any

from celery import Task, shared_task
from django.db.models import Q
from django.utils import timezone
from kombu.exceptions import OperationalError

from kb.models import Document
from kb.services.indexing import index_document

logger = logging.getLogger(__name__)

WAITED_LONG = timedelta(minutes=2)
SWEEP_LIMIT = 500


@shared_task
def ingest_document(document_id: int) -> None:
    index_document(document_id)


@shared_task
def sweep_lost_documents() -> int:
    """Enqueues documents whose task was lost: the broker was down or emptied, or the worker died.

    Returns:
        How many were enqueued. A task that was not lost after all finds its document taken and does nothing.
    """
    now = timezone.now()
    lost = Q(status=Document.Status.PENDING, updated_at__lt=now - WAITED_LONG) | Q(
        status=Document.Status.PROCESSING, lease_until__lt=now
    )
    ids = list(Document.objects.filter(lost).order_by("pk").values_list("pk", flat=True)[:SWEEP_LIMIT])
    Document.objects.filter(pk__in=ids).update(updated_at=now)
    for document_id in ids:
        enqueue(ingest_document, document_id)
    return len(ids)


def enqueue(task: "Task[..., Any]", *ids: int) -> None:
    """Sends a task; without a broker the sweep will, once it is back."""
    try:
        task.delay(*ids)
    except OperationalError as error:
        logger.warning("%s%s waits for the broker: %s", task.name, ids, error)
