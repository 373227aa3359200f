"""What is done to many chunks at once: one statement a table, whatever their number; versions are the database's."""

from collections.abc import Collection
from typing import Literal

from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.base.db.row_locks import lock_knowledge_bases
from kb.base.errors import Rejected
from kb.content.models.documents import Chunk

MOST_NAMED = 10

# Positions count on without a gap, so that neighbours are found by them.
_CLOSE_GAPS = """
UPDATE kb_chunk c SET position = numbered.position
FROM (
    SELECT id, row_number() OVER (PARTITION BY document_id ORDER BY position) - 1 AS position
    FROM kb_chunk WHERE document_id = ANY(%s::bigint[])
) numbered
WHERE c.id = numbered.id AND c.position <> numbered.position
"""


def chunks_change(
    *, knowledge_base: KnowledgeBase, chunk_ids: Collection[int], action: Literal["enable", "disable", "delete"]
) -> int:
    """Does one thing to chunks of a knowledge base.

    Returns:
        How many were not so already.

    Raises:
        Rejected: some of them are not in the knowledge base; nothing was changed.
    """
    own = Chunk.objects.filter(knowledge_base=knowledge_base, pk__in=chunk_ids)
    if foreign := sorted(set(chunk_ids).difference(own.values_list("pk", flat=True))):
        message = _("These chunks are not in the knowledge base, and nothing was changed: %(ids)s.")
        raise Rejected("unknown_chunks", message % {"ids": ", ".join(map(str, foreign[:MOST_NAMED]))})
    if action == "delete":
        return chunks_delete(chunk_ids=chunk_ids)
    return chunks_set_enabled(chunk_ids=chunk_ids, enabled=action == "enable")


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
        count, _by_model = rows.delete()
        with connection.cursor() as cursor:
            cursor.execute(_CLOSE_GAPS, [documents])
    return int(count)


def _locked(chunk_ids: Collection[int]) -> QuerySet[Chunk]:
    """The chunks, of which the transaction holds the knowledge bases."""
    rows = Chunk.objects.filter(pk__in=chunk_ids)
    lock_knowledge_bases(rows.order_by().values_list("knowledge_base_id", flat=True).distinct())
    return rows
