"""Responses of searches that are served again: what their key holds, which may be kept, and how to be rid of them."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.base.cache.query_caches import hot_queries
from kb.base.errors import NotAllowed, NotVisible
from kb.index.bm25 import BM25Store
from kb.search.states import KnowledgeBaseState
from retrieval.hot_queries import HotQueryKey, ScopeVersion
from retrieval.rerankers.cross_encoder import RETRY_AFTER_S
from retrieval.trace import Degradation, DegradationCode

LASTING = frozenset({DegradationCode.HASHING_EMBEDDER, DegradationCode.EXTERNAL_LEFT_OUT})
"""Degradations that follow from a choice; any other is a fault that may be over before the response expires."""
PASSING = frozenset({DegradationCode.RERANKER_UNAVAILABLE})
"""Faults that are tried again after a while only, and in which the next link of the chain has answered."""
PASSING_SECONDS = RETRY_AFTER_S

_LOCK = "SELECT 1 FROM kb_versions WHERE knowledge_base_id = ANY(%s) ORDER BY knowledge_base_id FOR UPDATE"
_MOVE = """
UPDATE kb_versions SET content_version = nextval('kb_version_seq') WHERE knowledge_base_id = ANY(%s)
RETURNING knowledge_base_id
"""


def key_of(
    *,
    query: str,
    scope: Sequence[KnowledgeBaseState],
    profile: str,
    fingerprints: Sequence[str],
    request: Mapping[str, Any],
) -> HotQueryKey:
    """The key of a search's response.

    It names no user. What a principal sees is a matter of whole knowledge bases, so all who may search the same ones
    get the same response; and as the versions come from the very query that checks this permission, who has lost it
    never has a key.

    Args:
        query: as asked.
        scope: the knowledge bases in the order of the request, as read with the permission check.
        profile: name and version of the profile, which the response tells.
        fingerprints: of the resolved configurations, and of whatever else the environment decides, such as which
            reranker and which language model answer.
        request: everything else that was asked: filters, history, kind of response; of JSON's types, or with a `str` of
            its own.
    """
    settings_of = [(kb.embedding_model, kb.tokenizer_id, kb.language) for kb in scope]
    described = json.dumps([profile, list(fingerprints), settings_of, request], sort_keys=True, default=str)
    return HotQueryKey(
        query=query,
        scope=tuple(ScopeVersion(kb.kb_id, kb.version, kb.content_version) for kb in scope),
        fingerprint=hashlib.sha256(described.encode()).hexdigest(),
        language=get_language() or "",
    )


def cached_response(key: HotQueryKey) -> bytes | None:
    """The response of an earlier search; None where there is none, or the cache is switched off."""
    return hot_queries().get(key) if settings.CACHE_ENABLED else None


def tier_of(key: HotQueryKey) -> str | None:
    """Where the response of an earlier search is kept, if it is; nothing is counted or moved to a nearer tier."""
    return hot_queries().tier_of(key) if settings.CACHE_ENABLED else None


def cache_response(key: HotQueryKey, response: bytes, degraded: Iterable[Degradation], *, most_s: float = inf) -> bool:
    """Keeps a response, unless a fault has made it worse than the next one may be.

    A response without the reranker that is configured is kept no longer than until that is tried again.

    Args:
        key: of the search.
        response: what is served again.
        degraded: what the search told of.
        most_s: for at most so many seconds.

    Returns:
        Whether it is kept.
    """
    faults = {degradation.code for degradation in degraded} - LASTING
    # A server is asked again by the very next search.
    passing = frozenset() if settings.RERANK_BASE_URL else PASSING
    if not settings.CACHE_ENABLED or faults - passing:
        return False
    hot_queries().put(key, response, min(most_s, PASSING_SECONDS) if faults else most_s)
    return True


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
        bm25: the next search builds the keyword index anew.

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
