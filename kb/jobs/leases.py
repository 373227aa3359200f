"""A worker's hold on a row that is processed in the background.

Every kind of background job has a `Queue`: rows of a model that wait, are claimed by one worker at a time, and are renewed
while it lives, so that one whose worker or task was lost is found and tried again.
"""

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, Generic, TypeVar, cast

from celery import current_app
from django.conf import settings
from django.db import Error, connection, connections, transaction
from django.db.models import Case, F, Min, Model, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce
from django.utils import timezone
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kb.base import draining
from kb.base.cancellation import Watch
from kb.base.db.transactions import Purpose, lock_until_commit
from kb.jobs.models import Turn
from retrieval.errors import RequestWithdrawn

M = TypeVar("M", bound=Model)
logger = logging.getLogger(__name__)

# How long a waiting row's task may take to arrive before it counts as lost.
TASK_AWAITED: Final = timedelta(minutes=2)
SWEEP_LIMIT: Final = 500
NEVER: Final = datetime.min.replace(tzinfo=UTC)
# Between two looks whether a row still is this worker's.
LOOK_SECONDS: Final = 3.0


class LeaseLost(RequestWithdrawn):
    """The row was cancelled, deleted or claimed by another worker: this one writes nothing."""


class WorkerEnds(Exception):
    """The worker was asked to stop: its row goes to another one."""


def after(pause: timedelta) -> datetime:
    """The end of the wait of a row that no task takes before the pause is over."""
    return timezone.now() + pause + TASK_AWAITED


def must_return() -> bool:
    """Whether this worker is stopping and has no time left to finish a job."""
    return draining.since() is not None and draining.seconds() >= settings.WORKER_GRACE_SECONDS


def return_if_ending() -> None:
    """Raises WorkerEnds where the worker has no time left; belongs where a job can be given up without loss."""
    if must_return():
        raise WorkerEnds("the worker ends")


@contextmanager
def watching(
    is_wanted: Callable[[], bool], *, error: type[Exception] = LeaseLost, every_s: float | None = None
) -> Iterator[None]:
    """Work that is cancelled once `is_wanted` says no, which a thread of its own asks every few seconds.

    What the work waits for outside is stopped then (`kb.base.cancellation`), and the work raises `error`. Inside a transaction,
    whose rows others do not see, nothing is cancelled.
    """
    watch, ended = Watch(error), threading.Event()
    others_see = not connection.in_atomic_block

    def look() -> None:
        while not ended.wait(LOOK_SECONDS if every_s is None else every_s):
            try:
                if not is_wanted() and others_see:
                    watch.cancel()
                    return
            except Error as fault:
                logger.warning("the row of a job could not be read, which is tried again: %s", fault)
            finally:
                connections.close_all()

    looking = threading.Thread(target=look, name="lease", daemon=True)
    looking.start()
    try:
        with watch.opened():
            yield
    finally:
        ended.set()
        looking.join()


@dataclass(frozen=True)
class Queue(Generic[M]):
    """Rows of a model that workers process, with the names of the fields that say how far each is.

    A row is of the status `waiting` without a worker, and `running` with one, which has the lease of an id for as long
    as `lasts` returns. The `idle` fields are those of a row for which nothing has been done.

    Attributes:
        until: the field of the time at which a lease ends, and at which a waiting row is enqueued again.
        waits_since: the field from which a waiting row without such a time is reckoned; blank: it always has one.
        attempts: whether the row counts the attempts of workers in `attempts`.
        stamp: the field of the time of the last change, which every write sets; blank: there is none.
        owner: the path to the user whose row it is, by whom rows are taken in turn.
        key: the field by which tasks name a row.
        resumes: whether another worker goes on with the row of one that was lost.
        behind: rows that are taken after all others.
    """

    model: type[M]
    waiting: str
    running: str
    lasts: Callable[[], timedelta]
    lease: str = "lease"
    until: str = "lease_until"
    waits_since: str = ""
    attempts: bool = True
    stamp: str = ""
    available: Q = Q()  # noqa: RUF009 - never changed
    idle: Mapping[str, Any] = field(default_factory=dict)
    related: tuple[str, ...] = ()
    owner: str = "knowledge_base__owner"
    key: str = "pk"
    resumes: bool = True
    behind: Q = Q(pk=None)  # noqa: RUF009 - never changed

    def claimable(self) -> Q:
        """Rows that wait, and those whose worker was lost."""
        lost = Q(("status", self.running), (f"{self.until}__lt", timezone.now()))
        return (Q(status=self.waiting) | lost if self.resumes else Q(status=self.waiting)) & self.available

    def due(self) -> QuerySet[M]:
        """The claimable rows without those that wait for another attempt, later than a task may take to arrive."""
        later = Q((f"{self.until}__gt", timezone.now() + TASK_AWAITED))
        return self.model._default_manager.filter(self.claimable()).exclude(later & Q(status=self.waiting))

    @property
    def is_behind(self) -> Case:
        return Case(When(self.behind, then=True), default=Value(False))  # noqa: FBT003 - SQL's

    def first_by_owner(self) -> list[tuple[bool, int | None, int]]:
        """The lowest key of the rows that are due, by whether they are taken last, and by owner."""
        rows = self.due().order_by().values_list(self.is_behind, self.owner)
        return list(rows.annotate(first=Min("pk")))

    def held_by_owner(self) -> "Counter[int | None]":
        """How many processes work on rows of each owner."""
        alive = {"status": self.running, f"{self.until}__gte": timezone.now()}
        rows = self.model._default_manager.filter(**alive).order_by()
        return Counter(rows.values_list(self.owner, flat=True).distinct(self.owner, self.lease))

    def lost(self, now: datetime) -> QuerySet[M]:
        end = F(self.until) if not self.waits_since else Coalesce(F(self.until), F(self.waits_since) + TASK_AWAITED)
        rows = self.model._default_manager.filter(self.available, status__in=(self.waiting, self.running))
        return cast("QuerySet[M]", rows.alias(_end=end).filter(_end__lt=now))

    def claim(self, row_filter: Q, **fields: Any) -> "Job[M] | None":
        """Takes the one row that a filter finds, and writes the fields with that.

        None if another worker has it, or there is nothing to do for it: a task may be delivered more than once.
        """
        lease = uuid.uuid4()
        if not self.model._default_manager.filter(self.claimable(), row_filter).update(**self.taken(lease), **fields):
            return None
        row = self.model._default_manager.select_related(*self.related).filter(**{self.lease: lease}).first()
        return Job(self, row, lease) if row else None

    def taken(self, lease: uuid.UUID) -> dict[str, Any]:
        counted = {"attempts": F("attempts") + 1} if self.attempts else {}
        return {"status": self.running, self.lease: lease, **counted, **self.renewed()}

    def renewed(self) -> dict[str, Any]:
        """The fields of rows whose lease begins or goes on now."""
        return {self.until: timezone.now() + self.lasts(), **self.stamped()}

    def freed(self, status: str, *, until: datetime | None = None) -> dict[str, Any]:
        """The fields of rows that no worker has any more."""
        idle = self.idle if status == self.waiting else {}
        return {"status": status, self.lease: None, self.until: until, **idle, **self.stamped()}

    def stamped(self) -> dict[str, Any]:
        return {self.stamp: timezone.now()} if self.stamp else {}

    def sweep(self, *, limit: int = SWEEP_LIMIT) -> list[int]:
        """Puts rows whose task or worker was lost back among those that wait, until the next sweep.

        Returns their ids, for each of which a task has to be sent; one whose task was not lost finds the row taken.
        """
        now = timezone.now()
        with transaction.atomic():
            lost = self.lost(now).select_for_update(skip_locked=True, no_key=True).order_by("pk")
            ids = list(lost.values_list("pk", flat=True)[:limit])
            self.model._default_manager.filter(pk__in=ids).update(**self.freed(self.waiting, until=now + TASK_AWAITED))
        return ids

    @contextmanager
    def renewing(self, lease: uuid.UUID) -> Iterator[None]:
        """Renews a lease beside steps that may take longer than it lasts, and cancels them when it is lost; see `watching`."""
        own = self.model._default_manager.filter(**{self.lease: lease}, status=self.running)
        # Thrice in the time of a lease, so that one that fails does not cost it.
        every_s = self.lasts().total_seconds() / 3
        renewed_at = time.monotonic()

        def is_own() -> bool:
            nonlocal renewed_at
            if time.monotonic() - renewed_at < every_s:
                return own.exists()
            renewed_at = time.monotonic()
            return bool(own.update(**{self.until: timezone.now() + self.lasts()}))

        with watching(is_own, every_s=min(LOOK_SECONDS, every_s)):
            yield


class Line:
    """Queues whose rows the same processes work on, in turn by owner.

    Next is the owner whose rows the fewest processes work on; of several the one whose last turn is longest ago; of that
    owner's rows the oldest one. So nobody takes the last free process while somebody else waits, and whoever is alone may
    have all.

    Attributes:
        name: by which turns are stored.
    """

    def __init__(self, name: str, *queues: Queue[Any]) -> None:
        self.name, self._queues = name, queues

    def next(self, queue: Queue[Any], keys: Collection[int], *, limit: int = 1) -> tuple[Queue[Any], list[int]] | None:
        """The queue and the keys of at most `limit` rows of the owner whose turn it is, those of the task before others.

        It is called for rows of a queue that a task was sent for: None where none of these waits any more. The choice
        counts as the owner's last turn.
        """
        if not queue.due().filter(**{f"{queue.key}__in": keys}).exists():
            return None
        with transaction.atomic():
            lock_until_commit(Purpose.TURN)  # so that two processes do not both take the turn of one owner
            waiting = [(each, *row) for each in self._queues for row in each.first_by_owner()]
            if not waiting:
                return None
            held: Counter[int | None] = Counter()
            turns: dict[int | None, datetime] = {}
            if len({owner for _queue, _is_behind, owner, _first in waiting}) > 1:
                held = sum((each.held_by_owner() for each in self._queues), held)
                turns = dict(Turn.objects.filter(line=self.name).values_list("owner", "taken_at"))
            found, is_behind, owner, _first = min(
                waiting, key=lambda row: (row[1], held[row[2]], turns.get(row[2], NEVER), row[3])
            )
            turn = Turn(line=self.name, owner_id=owner, taken_at=timezone.now())
            Turn.objects.bulk_create(
                [turn] * (owner is not None),
                update_conflicts=True,
                unique_fields=["line", "owner"],
                update_fields=["taken_at"],
            )
        rows = found.due().alias(behind=found.is_behind).filter(**{found.owner: owner}, behind=is_behind)
        own = rows.filter(**{f"{queue.key}__in": keys}) if found is queue else rows.none()
        rows = own if own.exists() else rows
        chosen = list(rows.order_by("pk").values_list(found.key, flat=True)[:limit])
        # Where another process has taken all of them since the lock was given up, somebody else is next.
        return (found, chosen) if chosen else self.next(queue, keys, limit=limit)


class Job(Generic[M]):
    """One worker's hold on one row of a queue; what it writes is written only while it has the lease."""

    def __init__(self, queue: Queue[M], row: M, lease: uuid.UUID) -> None:
        self.queue, self.row, self.lease = queue, row, lease

    @cached_property
    def own(self) -> QuerySet[M]:
        """The row, while it is this worker's."""
        return self.queue.model._default_manager.filter(pk=self.row.pk, **{self.queue.lease: self.lease})

    def update(self, **fields: Any) -> None:
        """Writes fields of the row; LeaseLost where it is no longer this worker's."""
        if not self.own.update(**{**self.queue.stamped(), **fields}):
            raise LeaseLost

    def renew(self, **fields: Any) -> None:
        """Writes fields and renews the lease; raises as `update`."""
        self.update(**{**self.queue.renewed(), **fields})

    def leave(self, status: str, *, until: datetime | None = None, **fields: Any) -> None:
        """Ends the hold and gives the row a status; one that waits is enqueued again at `until`. Raises as `update`."""
        self.update(**{**self.queue.freed(status, until=until), **fields})

    def wait(self, **fields: Any) -> None:
        """Leaves the rest to another task; raises as `update`."""
        self.leave(self.queue.waiting, until=timezone.now() + TASK_AWAITED, **fields)


# Of Celery: of documents, and of work that takes minutes.
DOCUMENTS_QUEUE, LONG_QUEUE = "documents", "long"
PING_SECONDS = 1
BROKER_DOWN = (OperationalError, RedisError, OSError)


def workers(queue: str) -> list[str]:
    """The names of Celery's workers of a queue that answer within a second; none where the broker is out of reach."""
    try:
        with _broker() as broker:
            inspect = current_app.control.inspect(timeout=PING_SECONDS, connection=broker)
            found = inspect.active_queues() or {}
    except BROKER_DOWN:
        return []
    return sorted(name for name, queues in found.items() if queue in {each["name"] for each in queues})


@contextmanager
def _broker() -> Iterator[Connection]:
    """A connection to the broker of its own; Celery's would be tried again and again."""
    with current_app.connection_for_write() as broker:
        broker.ensure_connection(max_retries=1, interval_start=0, timeout=PING_SECONDS)
        yield broker
