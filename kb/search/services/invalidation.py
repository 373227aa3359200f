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
    """Makes all responses of these knowledge bases unreachable, in every process and without Redis.

    Returns:
        The ids of those that exist, ascending.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK, [list(kb_ids)])
        cursor.execute(_MOVE, [list(kb_ids)])
        return sorted(kb_id for (kb_id,) in cursor.fetchall())


def caches_invalidate(principal: Principal, kb_ids: Sequence[int] | None = None, *, bm25: bool = False) -> list[int]:
    """Makes the responses, and with `bm25` the keyword indexes, of knowledge bases unreachable.

    Args:
        principal: who may edit them all.
        kb_ids: which; None: all that the principal may edit.
        bm25: the next search builds the keyword index again.

    Returns:
        Their ids, ascending.

    Raises:
        NotVisible: one of them does not exist for this principal.
        NotAllowed: the principal may see one of them, but not change it.
    """
    invalidated = responses_invalidate(_editable(principal, kb_ids))
    if bm25:
        store = BM25Store()
        for kb_id in invalidated:
            store.invalidate(kb_id)
    return invalidated


def _editable(principal: Principal, kb_ids: Sequence[int] | None) -> list[int]:
    editable = KnowledgeBase.objects.editable_by(principal)
    if kb_ids is None:
        return list(editable.values_list("pk", flat=True))
    wanted = set(kb_ids)
    if missing := _missing(wanted, KnowledgeBase.objects.visible_to(principal)):
        raise NotVisible(_("There is no knowledge base with the id %(ids)s.") % {"ids": missing})
    if missing := _missing(wanted, editable):
        message = _(
            "You may see the knowledge base with the id %(ids)s, but not change it: ask its owner to make you an editor."
        )
        raise NotAllowed(message % {"ids": missing})
    return sorted(wanted)


def _missing(wanted: set[int], allowed: QuerySet[KnowledgeBase]) -> str:
    found = allowed.filter(pk__in=wanted).values_list("pk", flat=True)
    return ", ".join(str(kb_id) for kb_id in sorted(wanted.difference(found)))
