"""How long searches, the entries of the audit log and the use of models are kept."""

from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db.models import Max
from django.utils import timezone

from kb.access.models import AuditEntry
from kb.base.db.transactions import delete_in_batches
from kb.providers.usage.models import ModelUse
from kb.quality.models import FailedQuery
from kb.search.models import SearchLog

# For which nobody has to use an installation before its clock is doubted, and what it does meanwhile is no proof.
LONG_UNUSED: Final = timedelta(days=30)
NEW: Final = timedelta(days=1)

# The key of a failed query's last search is checked at the end of the transaction.
_DELETE = """
WITH old AS (SELECT id FROM kb_searchlog WHERE created_at < %(before)s ORDER BY created_at LIMIT %(batch)s),
     updated AS (UPDATE kb_failedquery SET last_search_id = NULL FROM old WHERE last_search_id = old.id)
DELETE FROM kb_searchlog USING old WHERE kb_searchlog.id = old.id
"""

_DELETE_AUDIT = """
WITH old AS (SELECT id FROM kb_auditentry WHERE at < %(before)s ORDER BY at LIMIT %(batch)s)
DELETE FROM kb_auditentry USING old WHERE kb_auditentry.id = old.id
"""


def doubted_clock(now: datetime) -> datetime | None:
    """When the installation was last used, where that is so long ago that the clock may have jumped ahead; else None.

    Everything would count as past its time then, and be deleted for good.
    """
    times = ((SearchLog, "created_at"), (AuditEntry, "at"))
    found = [
        model._default_manager.filter(**{f"{name}__lt": now - NEW}).aggregate(last=Max(name))["last"]
        for model, name in times
    ]
    last: datetime | None = max(filter(None, found), default=None)
    return last if last is not None and last < now - LONG_UNUSED else None


def purge_search_log() -> int:
    """Deletes searches older than SEARCH_LOG_RETENTION_DAYS (0 keeps all), in short transactions; returns how many.

    A failed query goes with the last of its searches, whatever its state: its words are kept no longer than they are.
    Evaluation sets and conversations are what users have made, and stay.
    """
    if not settings.SEARCH_LOG_RETENTION_DAYS:
        return 0
    before = timezone.now() - timedelta(days=settings.SEARCH_LOG_RETENTION_DAYS)
    deleted = delete_in_batches(_DELETE, before=before)
    FailedQuery.objects.filter(last_seen__lt=before).delete()
    return deleted


def purge_audit_log() -> int:
    """Deletes entries of the audit log older than AUDIT_RETENTION_DAYS in the same way; returns how many."""
    if not settings.AUDIT_RETENTION_DAYS:
        return 0
    return delete_in_batches(_DELETE_AUDIT, before=timezone.now() - timedelta(days=settings.AUDIT_RETENTION_DAYS))


def purge_model_use() -> int:
    """Deletes the use of models of days before MODEL_USE_RETENTION_DAYS ago; returns how many rows."""
    if not settings.MODEL_USE_RETENTION_DAYS:
        return 0
    before = timezone.localdate() - timedelta(days=settings.MODEL_USE_RETENTION_DAYS)
    return ModelUse.objects.filter(day__lt=before).delete()[0]
