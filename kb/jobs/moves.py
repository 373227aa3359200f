"""Changes of a knowledge base that are built beside what searches use: begun, built, checked, and swapped in at one moment."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, ClassVar

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_noop

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import Purpose, try_lock
from kb.base.disk import is_disk_full
from kb.base.errors import DATABASE_OUT_OF_REACH, Rejected, Superseded
from kb.jobs.leases import LeaseLost, watching
from kb.jobs.models import MoveAttempt

LOOK_SECONDS = 0.5
# So long after a swap a search may be under way that reads what was in use before.
RETIRED_FOR = timedelta(minutes=1)
# After so long without progress the task or the worker of a move counts as lost.
STOOD_STILL = timedelta(minutes=5)
MAX_ATTEMPTS = 3
WORKER_LOST = gettext_noop(
    "The worker stopped three times while it carried out this change, perhaps for want of memory. Its log says why: fix it, "
    "then start the change again."
)
INTERNAL_ERROR = gettext_noop(
    "Something unexpected went wrong. The worker’s log says what: fix it, then start the change again."
)


class AlreadyRunning(Rejected):
    """Another process is carrying out the change."""


class WorkerLost(Rejected):
    """Processes that carried out the change have ended without a word, one after the other."""


class Move(ABC):
    """One kind of change.

    What is on its way is the field `target` of the knowledge base, which is blank where nothing is. To begin a move sets it,
    to cancel one clears it, and to swap makes it the one in use; each in a transaction that locks the knowledge base.

    Attributes:
        fields: of KnowledgeBase that a change may set, with `target`.
        stamp: the field of the time of the last progress, in the rows of `unfinished`.
        purpose: of the lock that keeps a second process from the same change, and gets the error `busy`.
        failures: the exceptions that stop a worker, and are noted by `note_failure`.
    """

    target: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]
    stamp: ClassVar[str]
    purpose: ClassVar[Purpose]
    busy: ClassVar[str | Promise]
    failures: ClassVar[tuple[type[Exception], ...]] = ()

    def advance(self, kb: KnowledgeBase, *, batches: int | None = None) -> bool:
        """Builds what the target lacks, checks it, and swaps it in; whether there is nothing left to do.

        It stops after so many batches, so that a worker can take turns. Beside one of `failures` it raises
        AlreadyRunning where another process is at it, WorkerLost where those before have ended without a word, LeaseLost
        where the change was given up or the knowledge base deleted, and Superseded where it moved to another model or
        tokenizer meanwhile.
        """
        target = getattr(kb, self.target)
        if not target:
            return True
        with self._alone(kb), watching(KnowledgeBase.objects.filter(pk=kb.pk, **{self.target: target}).exists):
            return self.build(kb, count() if batches is None else iter(range(batches)))

    @abstractmethod
    def build(self, kb: KnowledgeBase, left: Iterator[int]) -> bool:
        """Does what `advance` says, a batch for each element of `left`; the lock is held."""

    @abstractmethod
    def unfinished(self) -> "QuerySet[Any]":
        """Rows of moves that a worker has to go on with; their keys are those of the knowledge bases."""

    def sweep(self) -> list[int]:
        """The ids of knowledge bases whose task or worker was lost; noted, so that none comes twice."""
        now, rows = timezone.now(), self.unfinished()
        ids = list(rows.filter(**{f"{self.stamp}__lt": now - STOOD_STILL}).values_list("pk", flat=True))
        rows.model._default_manager.filter(pk__in=ids).update(**{self.stamp: now})
        return ids

    @contextmanager
    def changing(self, kb: KnowledgeBase) -> Iterator[KnowledgeBase]:
        """A transaction that holds the knowledge base's row; afterwards `kb` has the row's `fields`."""
        with transaction.atomic():
            row = lock_row(kb)
            yield row
        for name in self.fields:
            setattr(kb, name, getattr(row, name))

    def note_failure(self, kb_id: int, error: Exception) -> None:  # noqa: B027 - some have noted it by then
        """Stores why a worker could not go on."""

    @contextmanager
    def _alone(self, kb: KnowledgeBase) -> Iterator[None]:
        with try_lock(self.purpose, kb.pk) as taken:
            if not taken:
                raise AlreadyRunning("already_running", str(self.busy))
            own, counts = MoveAttempt.objects.filter(knowledge_base=kb, purpose=self.purpose), False
            try:
                if not own.update(count=F("count") + 1):
                    MoveAttempt.objects.create(knowledge_base=kb, purpose=self.purpose, count=1)
                if own.filter(count__gt=MAX_ATTEMPTS).exists():
                    raise WorkerLost("worker_lost", WORKER_LOST)
                yield
            except DATABASE_OUT_OF_REACH as error:  # it is tried again, as after the end of a process
                counts = not is_disk_full(error)
                raise
            finally:
                if not counts:
                    own.delete()


class FollowedMove(Move):
    """A change that a command waits for, which carries it on meanwhile.

    Attributes:
        batches_followed: how many batches a command builds before it looks at what others have done.
    """

    batches_followed: ClassVar[int] = 10

    def follow(self, kb: KnowledgeBase, *, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Returns when the target is in use, or ready to be; brought there by this process or by a worker.

        Meanwhile `kb` is read again, and `on_progress` gets how many further units of work are done. Beside one of
        `failures` it raises Rejected where the change has failed, or was cancelled.
        """
        target, reported = getattr(kb, self.target), 0
        is_over = not target
        while not is_over:
            try:
                is_over = self.advance(kb, batches=self.batches_followed)
            except (AlreadyRunning, LeaseLost, Superseded):
                time.sleep(LOOK_SECONDS)
            kb.refresh_from_db()
            done = self.done(kb, target)
            on_progress(max(0, done - reported))
            reported = max(reported, done)
            is_over = self.has_ended(kb, target) or is_over

    @abstractmethod
    def done(self, kb: KnowledgeBase, target: str) -> int:
        """How many units of work a target holds."""

    @abstractmethod
    def has_ended(self, kb: KnowledgeBase, target: str) -> bool:
        """Whether nobody is on the way to a target any more; Rejected where the change has failed, or was cancelled."""


def lock_row(kb: KnowledgeBase) -> KnowledgeBase:
    """The row of a knowledge base, locked until the transaction ends."""
    rows = KnowledgeBase.objects.select_for_update(no_key=True, of=("self",))
    found: KnowledgeBase = rows.select_related("profile").get(pk=kb.pk)
    return found
