"""One run of a source: a worker's hold on it, what it counts, how it ends, and when the next one comes."""

import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Self, cast

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from kb.base.db.transactions import holding_knowledge_bases
from kb.base.errors import Rejected
from kb.base.net.addresses import FetchError
from kb.jobs.leases import Job, LeaseLost
from kb.sources.models import Source
from kb.sources.services.items import error_fields
from kb.sources.services.sources import SOURCES, gone_mark, next_run, run_log
from retrieval.errors import message_of

# Between two writes of how far a run is.
REPORT_S: Final = 0.5
# After a place was out of reach: the first retry, and each next one twice as late, a quarter more or less.
RETRY_S: Final = 60.0
MAX_RETRY_S: Final = 6 * 3_600.0
JITTER: Final = 0.25
# A source without a schedule is tried so often by itself.
MAX_RETRIES: Final = 5
# Codes after which the place may answer the same request later.
PASSING: Final = frozenset(
    {
        "unknown_host",
        "unreachable",
        "tls_failed",
        "timeout",
        "too_many_requests",
        "folder_missing",
        "git_failed",
        "bad_status",
        "broken_response",
    }
)
# What a place asks for, at most.
MAX_RETRY_AFTER_S: Final = 24 * 3_600.0


class Run(Job[Source]):
    """A worker's hold on a source, which counts what became of its items.

    An item that has been gone since `gone_before` loses its document.
    """

    def __init__(self, source: Source, lease: uuid.UUID) -> None:
        super().__init__(SOURCES, source, lease)
        self.source = source
        self.counts = Counter[str](source.counts)
        self.started_at = cast(datetime, source.started_at)  # the claim has set it
        grace = timedelta(hours=settings.WEB_DELETE_AFTER_HOURS) if source.kind in Source.WEB else timedelta(0)
        self.gone_before = max(filter(None, (self.started_at - grace, source.accepted_at)))
        self._told_at, self._told = 0.0, ""

    @classmethod
    def claim(cls, source_id: int) -> Self | None:
        job = SOURCES.claim(Q(pk=source_id), started_at=Coalesce(F("started_at"), timezone.now()))
        return cls(job.row, job.lease) if job else None

    def report(self) -> None:
        """Writes how far the run is, and renews the lease; raises `LeaseLost` where the run is no longer this worker's."""
        self.renew(counts=self._counted())

    def _counted(self) -> dict[str, int]:
        return {name: count for name, count in self.counts.items() if count}

    def tell(self, stage: str, *, done: int = 0, total: int | None = None, item: str = "") -> None:
        """As `report`, with what is done now; a few times a second at most, and at once where another stage begins."""
        now = time.monotonic()
        if now - self._told_at >= REPORT_S or stage != self._told:
            self._told_at, self._told = now, stage
            progress = {"stage": stage, "done": done, "total": total, "item": item[:200]}
            self.renew(counts=self._counted(), progress=progress)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A transaction in which nobody else has the run; raises as `report`. The knowledge base is locked first."""
        with holding_knowledge_bases([self.source.knowledge_base_id]):
            if not self.own.select_for_update(no_key=True).exists():
                raise LeaseLost
            yield

    def end(self, status: Source.Status, **fields: Any) -> None:
        source = Source.objects.filter(pk=self.source.pk).first()  # its schedule may have been changed meanwhile
        if source is None:
            raise LeaseLost
        gone_mark(source)
        ended = {
            "counts": self._counted(),
            "finished_at": timezone.now(),
            "next_run_at": next_run(source),
            "progress": {},
            "listing": None,
        }
        shown = {name: fields[name] for name in ("error", "error_code", "error_params") if name in fields}
        with transaction.atomic():
            self.leave(status, attempts=0, **{**ended, "failures": 0, **fields}, run_count=F("run_count") + 1)
            run_log(self.source, status, counts=self._counted(), **shown)

    def give_up(self, error: FetchError | Rejected) -> None:
        """Ends a run that could not read the place; one that is out of reach is tried again by itself."""
        if isinstance(error, Rejected):
            self.end(Source.Status.FAILED, error=message_of(error), error_code=error.code)
            return
        fields = error_fields(error)
        if error.code in PASSING:
            source = Source.objects.filter(pk=self.source.pk).first() or self.source
            fields["failures"] = failures = source.failures + 1
            fields["next_run_at"] = retry_at(source, failures, float(error.params.get("retry_after", 0)))
        self.end(Source.Status.FAILED, **fields)


def retry_at(source: Source, failures: int, retry_after: float) -> datetime | None:
    """When a source is tried again whose place was out of reach `failures` times in a row; None: not by itself.

    `retry_after`: the seconds that the place has asked for, which are waited in any case.
    """
    now, planned = timezone.now(), next_run(source)
    if not source.enabled or (planned is None and failures > MAX_RETRIES):
        return None
    delay = min(RETRY_S * 2 ** min(failures - 1, 20), MAX_RETRY_S) * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
    retry = now + timedelta(seconds=delay)
    if planned is not None and failures <= MAX_RETRIES:
        retry = min(retry, planned)
    return max(retry, now + timedelta(seconds=min(retry_after, MAX_RETRY_AFTER_S)))
