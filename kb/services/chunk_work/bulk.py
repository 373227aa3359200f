"""What is done to many chunks at once: one statement a table, whatever their number; versions are the database's."""

from collections.abc import Collection

from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from kb.models import Chunk
from kb.models.locks import lock_knowledge_bases

# Positions count on without a gap, so that neighbours are found by them.
_CLOSE_GAPS = """
UPDATE kb_chunk c SET position = numbered.position
FROM (
    SELECT id, row_number() OVER (PARTITION BY document_id ORDER BY position) - 1 AS position
    FROM kb_chunk WHERE document_id = ANY(%s::bigint[])
) numbered
WHERE c.id = numbered.id AND c.position <> numbered.position
"""


def chunks_set_enabled(*, chunk_ids: Collection[int], enabled: bool) -> int:
    """Switches chunks on or off; those that are so already are left alone.

    Returns:
        How many were switched.
    """
    with transaction.atomic():
        rows = _locked(chunk_ids)
        return int(rows.exclude(enabled=enabled).update(enabled=enabled, updated_at=timezone.now()))


def chunks_delete(*, chunk_ids: Collection[int]) -> int:
    """Deletes chunks with all that the indexes hold of them; the others of their documents move up.

    A document that is processed again has them again: what is to stay out of searches is switched off.

    Returns:
        How many were deleted.
    """
    with transaction.atomic():
        rows = _locked(chunk_ids)
        documents = sorted(set(rows.order_by().values_list("document_id", flat=True)))
        count, _ = rows.delete()
        with connection.cursor() as cursor:
            cursor.execute(_CLOSE_GAPS, [documents])
    return int(count)


def _locked(chunk_ids: Collection[int]) -> QuerySet[Chunk]:
    """The chunks, of which the transaction holds the knowledge bases."""
    rows = Chunk.objects.filter(pk__in=chunk_ids)
    lock_knowledge_bases(rows.order_by().values_list("knowledge_base_id", flat=True).distinct())
    return rows
