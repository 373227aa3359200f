"""Requests that are done once, however often they are sent: the answer is written in the transaction that did the work.

So a process that dies half-way leaves neither, and whoever sends the request again after a while starts over.
"""

import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import Error, connections, transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.base.errors import Rejected
from kb.web.models import IdempotencyKey

KEPT = timedelta(hours=24)
# After which a process that has not answered is taken for dead.
LEASE = timedelta(minutes=10)
RETRY_SECONDS = 1.0


def answer_once(
    asked: IdempotencyKey, make: Callable[..., tuple[int, str]], *, before: Callable[[], tuple[Any, ...]] = tuple
) -> IdempotencyKey | None:
    """Makes the answer to a request, a status and a body, where there is none yet; else returns the row that holds it.

    `make` does the work in the database, inside a transaction: what fails leaves nothing, and may be sent again. What
    takes long and needs none, as reading a page of the web does, is done by `before`, which returns the arguments of
    `make`.

    Raises Rejected where the key came with another request before, or the request is under way.
    """
    held = _claimed(asked)
    if isinstance(held, IdempotencyKey):
        return held
    try:
        prepared = before()
        with transaction.atomic():
            _store(held, *make(*prepared))
    except BaseException:
        # Lets the request be sent again; where the connection is lost, over another one as soon as the database is there
        try:
            held.filter(status=None).delete()
        except Error:
            threading.Thread(target=_give_up_later, args=(held,), name="idempotency", daemon=True).start()
        raise
    return None


def _give_up_later(held: QuerySet[IdempotencyKey]) -> None:
    deadline = time.monotonic() + LEASE.total_seconds()
    while time.monotonic() < deadline:
        time.sleep(RETRY_SECONDS)
        try:
            held.filter(status=None).delete()
        except Error:
            continue
        finally:
            connections.close_all()
        return


def idempotency_keys_purge() -> int:
    """Deletes the keys whose time is over, and returns how many."""
    return IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEPT).delete()[0]


def _claimed(asked: IdempotencyKey) -> QuerySet[IdempotencyKey] | IdempotencyKey:
    """The rows, one, under whose claim the work is to be done until somebody takes it over; or the row of the answer."""
    now = timezone.now()
    fresh: dict[str, Any] = {
        "fingerprint": asked.fingerprint,
        "claim": uuid.uuid4(),
        "claimed_at": now,
        "created_at": now,
    }
    row, is_new = IdempotencyKey.objects.get_or_create(
        user=asked.user, credential=asked.credential, key=asked.key, defaults=fresh
    )
    if is_new:
        return _held(row)
    if row.created_at >= now - KEPT:
        if row.fingerprint != asked.fingerprint:
            message = _("This Idempotency-Key came with another request before: every request needs a key of its own.")
            raise Rejected("idempotency_key_reused", message)
        if row.status is not None:
            return row
        if row.claimed_at >= now - LEASE:
            raise _in_progress()
    # It is out of date, or its process has died; of several callers one gets it.
    if not _held(row).update(**fresh, status=None, body=""):
        raise _in_progress()
    row.claim = fresh["claim"]
    return _held(row)


def _store(held: QuerySet[IdempotencyKey], status: int, body: str) -> None:
    if not held.update(status=status, body=body):
        raise _in_progress()  # it took so long that another process has started over


def _held(row: IdempotencyKey) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.filter(pk=row.pk, claim=row.claim)


def _in_progress() -> Rejected:
    message = _("The first request with this Idempotency-Key is still under way: wait for its answer.")
    return Rejected("idempotency_in_progress", message)
