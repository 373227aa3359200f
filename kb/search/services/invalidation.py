"""Cached responses that no search finds again."""

from collections.abc import Sequence

from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotAllowed, NotVisible
from kb.index.bm25 import BM25Store

_LOCK = "SELECT 1 FROM kb_versions WHERE knowledge_base_id = ANY(%s) ORDER BY knowledge_base_id FOR UPDATE"
_MOVE = """
UPDATE kb_versions SET content_version = nextval('kb_version_seq') WHERE knowledge_base_id = ANY(%s)
RETURNING knowledge_base_id
"""


def responses_invalidate(kb_ids: Sequence[int]) -> list[int]:
    """Makes responses unreachable in every process, also without Redis; returns ids of existing bases, ascending."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK, [list(kb_ids)])
        cursor.execute(_MOVE, [list(kb_ids)])
        return sorted(kb_id for (kb_id,) in cursor.fetchall())


def caches_invalidate(principal: Principal, kb_ids: Sequence[int] | None = None, *, bm25: bool = False) -> list[int]:
    """Makes responses of knowledge bases (None: all that the principal may edit) unreachable; returns ids, ascending.

    With `bm25` the next search builds their keyword indexes again. Raises NotVisible where one of them does not exist
    for the principal, NotAllowed where it may see one, but not change it.
    """
    editable = KnowledgeBase.objects.editable_by(principal)
    if kb_ids is not None:
        if missing := _missing(kb_ids, KnowledgeBase.objects.visible_to(principal)):
            raise NotVisible(_("There is no knowledge base with the id %(ids)s.") % {"ids": missing})
        if missing := _missing(kb_ids, editable):
            message = _(
                "You may see the knowledge base with the id %(ids)s, but not change it: ask its owner to make you an editor."
            )
            raise NotAllowed(message % {"ids": missing})
    invalidated = responses_invalidate(list(editable.values_list("pk", flat=True)) if kb_ids is None else kb_ids)
    for kb_id in invalidated if bm25 else ():
        BM25Store().invalidate(kb_id)
    return invalidated


def _missing(wanted: Sequence[int], allowed: QuerySet[KnowledgeBase]) -> str:
    found = allowed.filter(pk__in=wanted).values_list("pk", flat=True)
    return ", ".join(str(kb_id) for kb_id in sorted(set(wanted).difference(found)))
