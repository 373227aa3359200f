"""How long searches, the entries of the audit log and the use of models are kept."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from django.utils import timezone

from kb.providers.usage.models import ModelUse
from kb.quality.models import FailedQuery

BATCH = 2_000

# The key of a failed query's last search is checked at the end of the transaction.
_DELETE = """
WITH old AS (SELECT id FROM kb_searchlog WHERE created_at < %(before)s ORDER BY created_at LIMIT %(batch)s),
     gone AS (DELETE FROM kb_searchlog USING old WHERE kb_searchlog.id = old.id RETURNING kb_searchlog.id),
     updated AS (UPDATE kb_failedquery SET last_search_id = NULL FROM gone WHERE last_search_id = gone.id)
SELECT count(*) FROM gone
"""

_DELETE_AUDIT = """
WITH old AS (SELECT id FROM kb_auditentry WHERE at < %(before)s ORDER BY at LIMIT %(batch)s),
     gone AS (DELETE FROM kb_auditentry USING old WHERE kb_auditentry.id = old.id RETURNING kb_auditentry.id)
SELECT count(*) FROM gone
"""


def purge_search_log() -> int:
    """Deletes searches older than SEARCH_LOG_RETENTION_DAYS (0 keeps all), in short transactions; returns how many.

    A failed query goes with the last of its searches, whatever its state: its words are kept no longer than they are.
    Evaluation sets and conversations are what users have made, and stay.
    """
    if not settings.SEARCH_LOG_RETENTION_DAYS:
        return 0
    before = timezone.now() - timedelta(days=settings.SEARCH_LOG_RETENTION_DAYS)
    deleted = _delete_in_batches(_DELETE, before)
    FailedQuery.objects.filter(last_seen__lt=before).delete()
    return deleted


def purge_audit_log() -> int:
    """Deletes entries of the audit log older than AUDIT_RETENTION_DAYS in the same way; returns how many."""
    if not settings.AUDIT_RETENTION_DAYS:
        return 0
    return _delete_in_batches(_DELETE_AUDIT, timezone.now() - timedelta(days=settings.AUDIT_RETENTION_DAYS))


def purge_model_use() -> int:
    """Deletes the use of models of days before MODEL_USE_RETENTION_DAYS ago; returns how many rows."""
    if not settings.MODEL_USE_RETENTION_DAYS:
        return 0
    before = timezone.localdate() - timedelta(days=settings.MODEL_USE_RETENTION_DAYS)
    return ModelUse.objects.filter(day__lt=before).delete()[0]


def _delete_in_batches(statement: str, before: datetime) -> int:
    deleted, batch = 0, BATCH
    with connection.cursor() as cursor:
        while batch:
            cursor.execute(statement, {"before": before, "batch": BATCH})
            (batch,) = cursor.fetchone()
            deleted += batch
    return deleted
