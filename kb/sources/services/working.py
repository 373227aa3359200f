"""What a worker does with a source: its run from where it is, until it ends or the worker's time is over."""

import logging
from typing import Final

from django.db import OperationalError
from django.db.models import F
from django.utils import translation
from django.utils.translation import gettext_noop

from kb.base.disk import DiskFull, has_room, noticing_full_disk
from kb.base.encryption import SecretsUnreadable
from kb.base.errors import Rejected
from kb.base.net.addresses import FetchError
from kb.base.net.client import WebClient
from kb.jobs.leases import LeaseLost
from kb.sources.connectors.listing import web_client
from kb.sources.connectors.registry import connector_of, owner_of
from kb.sources.connectors.web.pages import PageRun
from kb.sources.connectors.web.reading import Reader
from kb.sources.models import Source
from kb.sources.services.sources import SOURCES
from kb.sources.services.sync import Sync

logger = logging.getLogger(__name__)

SLICE_S: Final = 600.0
MAX_ATTEMPTS: Final = 3
WORKER_LOST = gettext_noop(
    "The worker stopped three times while it read this source. Its log says why: fix it, or leave out where it stopped, "
    "then run the source again."
)
INTERNAL_ERROR = gettext_noop(
    "Something unexpected went wrong; what was read until then stays. The worker’s log says what: fix it, then run the "
    "source again."
)
SECRETS_UNREADABLE = gettext_noop(
    "The secrets of this source were encrypted with another SECRET_KEY. Enter them again, or let an administrator add the "
    "former key to SECRET_KEY_FALLBACKS."
)


def run_source(source_id: int, *, client: WebClient | None = None, slice_s: float = SLICE_S) -> bool:
    """Carries a run that waits for a worker on for `slice_s` seconds; returns whether another task is needed."""
    run = PageRun.claim(source_id) if has_room() else None
    if run is None:
        return False
    try:
        # In English, which the pages translate. One request may take longer than a lease lasts.
        with translation.override(None), SOURCES.renewing(run.lease):
            return _run(run, client, slice_s)
    except LeaseLost:
        logger.info("source %s was cancelled, paused, deleted or taken over while it was read", source_id)
        return False


def _run(run: PageRun, client: WebClient | None, slice_s: float) -> bool:
    try:
        if run.source.attempts > MAX_ATTEMPTS:
            run.end(Source.Status.FAILED, error=WORKER_LOST)
            return False
        with noticing_full_disk():
            return _read(run, client, slice_s)
    except LeaseLost:
        raise
    except (FetchError, Rejected) as error:
        run.give_up(error)
    except SecretsUnreadable:
        run.end(Source.Status.FAILED, error=SECRETS_UNREADABLE)
    except DiskFull:
        logger.warning("source %s waits for room on the disk", run.source.pk)
        run.wait(attempts=F("attempts") - 1)
    except OperationalError as error:
        logger.warning("source %s waits for the database: %s", run.source.pk, error)
        run.wait()
    except Exception:
        logger.exception("source %s could not be read", run.source.pk)
        run.end(Source.Status.FAILED, error=INTERNAL_ERROR)
    return False


def _read(run: PageRun, client: WebClient | None, slice_s: float) -> bool:
    if run.source.kind in Source.WEB:
        return Reader(run, client or web_client(owner_of(run.source))).read(slice_s)
    with connector_of(run.source) as connector:
        return Sync(run, connector).read(slice_s)
