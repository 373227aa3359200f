"""The responses of searches as JSON, kept for those that are asked again and again."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec
from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.base.cache import hot_queries
from kb.base.errors import NotAllowed, NotVisible
from kb.base.shapes import as_json
from kb.index.bm25 import BM25Store
from kb.profiles.models import RetrievalProfile
from kb.search.services.search import (
    SearchOutcome,
    SearchRequest,
    SearchResponse,
    models_in_use,
    response_of,
    scope_of,
    search,
    shared_cache_notes,
)
from retrieval.rerankers.cross_encoder import RETRY_AFTER_S
from retrieval.trace import Degradation, DegradationCode

FORMAT = 2
"""Of keys and responses: raise it when either changes, and no entry of an older release is found."""

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
    scope: Sequence[KnowledgeBase],
    profile: str,
    fingerprints: Sequence[str],
    request: Mapping[str, Any],
) -> bytes:
    """The key of a search's response: SHA-256, 32 bytes.

    It names no user. What a principal sees is a matter of whole knowledge bases, so all who may search the same ones
    get the same response; and as the versions come from the very query that checks this permission, who has lost it
    never has a key.

    Args:
        query: as asked.
        scope: the knowledge bases in the order of the request, as `searchable` reads them with the permission check.
        profile: name and version of the profile, which the response tells.
        fingerprints: of the resolved configurations, and of whatever else the environment decides, such as which
            reranker and which language model answer.
        request: everything else that was asked: filters, history, kind of response; of JSON's types, or with a `str` of
            its own.
    """
    settings_of = [(kb.embedding_model, kb.tokenizer_id, kb.language) for kb in scope]
    described = json.dumps([profile, list(fingerprints), settings_of, request], sort_keys=True, default=str)
    fingerprint = hashlib.sha256(described.encode()).hexdigest()
    versions = [(kb.pk, kb.version_row.version, kb.version_row.content_version) for kb in scope]
    parts = json.dumps([FORMAT, query, versions, fingerprint, get_language() or ""])
    return hashlib.sha256(parts.encode()).digest()


def cached_response(key: bytes) -> bytes | None:
    """The response of an earlier search; None where there is none, or the cache is switched off."""
    entry = hot_queries().get(key) if settings.CACHE_ENABLED else None
    return None if entry is None else entry.value


def tier_of(key: bytes) -> str | None:
    """Where the response of an earlier search is kept, if it is; nothing is counted or moved to a nearer tier."""
    entry = hot_queries().peek(key) if settings.CACHE_ENABLED else None
    return None if entry is None else entry.tier


def cache_response(key: bytes, response: bytes, degraded: Iterable[Degradation], *, most_s: float = inf) -> bool:
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


KIND = "search"
EXTERNAL_SECONDS = 60.0
"""How long a response is kept that live or external sources had a part in: no version tells of their changes."""


def respond(principal: Principal, request: SearchRequest) -> SearchResponse:
    """The response of POST /api/v1/search/: that of an earlier search where nothing that it depends on has changed.

    Rights and versions are read first, in one query, so what is served again is what a search would find now. A response
    that is served again says so, has the trace_id of the search that made it, and is counted but not logged.

    Raises:
        NotVisible: a knowledge base or the profile does not exist for this principal.
        InvalidConfiguration: an override is unknown or out of range.
        NoChannelAvailable: no channel could answer.
    """
    started = time.perf_counter()
    scope = scope_of(principal, request)
    # An explained search is asked for to be run, and a conversation is hardly held twice.
    asks_to_run = request.explain or request.history or request.own_profiles or not request.log
    key = None if asks_to_run or not settings.CACHE_ENABLED else _key_of(request, scope.knowledge_bases, scope.ruling)
    stored = None if key is None else cached_response(key)
    if stored is not None:
        earlier: SearchResponse = msgspec.json.decode(stored, type=SearchResponse)
        return dataclasses.replace(
            earlier,
            degraded=(*earlier.degraded, *shared_cache_notes()),
            cached=True,
            timings_ms={"total": round((time.perf_counter() - started) * 1_000, 3)},
        )
    outcome = search(principal, request, scope)
    response = response_of(outcome)
    if key is not None:
        # Whether Redis is there is another matter when the response is served again.
        lasting = tuple(each for each in response.degraded if each.code is not DegradationCode.SHARED_CACHE_UNAVAILABLE)
        stored = as_json(dataclasses.replace(response, degraded=lasting))
        cache_response(key, stored, lasting, most_s=EXTERNAL_SECONDS if outcome.wiring.uses_external_sources else inf)
    return response


def _key_of(request: SearchRequest, knowledge_bases: Sequence[KnowledgeBase], ruling: RetrievalProfile) -> bytes:
    own = {kb.profile_id: kb.profile for kb in knowledge_bases}
    profiles = [ruling] if request.profile or len(own) == 1 else [ruling, *(kb.profile for kb in knowledge_bases)]
    return key_of(
        query=request.query,
        scope=knowledge_bases,
        profile=f"{ruling.name} v{ruling.version}",
        fingerprints=[*(json.dumps(each.settings, sort_keys=True) for each in profiles), _environment()],
        request={
            "kind": KIND,
            "overrides": dict(request.overrides),
            "filters": request.filters.as_dict() if request.filters else {},
        },
    )


def tier_that_answers(outcome: SearchOutcome) -> str | None:
    """The tier that would answer if the same were asked for again, unexplained, in the language of this reader.

    Reads nothing from the database, and counts nothing.

    Returns:
        "memory" (of this process), "shared" (Redis), or None where the search would be run.
    """
    request = outcome.request
    if request.history or request.own_profiles or not settings.CACHE_ENABLED:
        return None
    return tier_of(_key_of(request, outcome.knowledge_bases, outcome.wiring.profile))


def _environment() -> str:
    servers = (settings.EMBEDDING_BASE_URL, settings.RERANK_BASE_URL, settings.RERANK_FORM, settings.LLM_BASE_URL)
    return json.dumps([settings.RETRIEVAL, models_in_use(), servers], sort_keys=True)
