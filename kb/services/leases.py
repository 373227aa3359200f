"""A worker's hold on documents: renewed as long as its process lives, so that one that is gone is known to be soon."""

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import Error, connections
from django.utils import timezone

from kb.models import Document

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
