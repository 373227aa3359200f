"""The responses of searches as JSON, kept for those that are asked again and again."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.base.cache.query_caches import hot_queries
from kb.base.errors import NotAllowed, NotVisible
from kb.base.messages import degradation_as_json
from kb.index.bm25 import BM25Store
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import DEFAULT
from kb.search.selectors import KnowledgeBaseState, ProfileState, states
from kb.search.services.search import (
    SearchOutcome,
    SearchRequest,
    models_in_use,
    named_profile,
    outcome_as_json,
    search,
    shared_cache_notes,
)
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


KIND = "search"
EXTERNAL_SECONDS = 60.0
"""How long a response is kept that live or external sources had a part in: no version tells of their changes."""


def respond(principal: Principal, request: SearchRequest) -> bytes:
    """The response of POST /api/v1/search/: that of an earlier search where nothing that it depends on has changed.

    Rights and versions are read first, in one query, so what is served again is what a search would find now. A response
    that is served again says so, keeps the trace_id of the search that made it, and is counted but not logged.

    Returns:
        A JSON object, UTF-8.

    Raises:
        NotVisible: a knowledge base or the profile does not exist for this principal.
        InvalidConfiguration: an override is unknown or out of range.
        NoChannelAvailable: no channel could answer.
    """
    started = time.perf_counter()
    profile, key = _key(principal, request)
    kept = None if key is None else cached_response(key)
    if kept is not None:
        total = round((time.perf_counter() - started) * 1_000, 3)
        return _Body(kept).served(shared_cache_notes(), cached=True, timings_ms={"total": total})
    outcome = search(principal, request)
    degraded = outcome.result.degraded
    # Whether Redis is there is another matter when the response is served again.
    notes = [each for each in degraded if each.code is DegradationCode.SHARED_CACHE_UNAVAILABLE]
    lasting = [each for each in degraded if each not in notes]
    fresh = _Body.of({**outcome_as_json(outcome), "degraded": [degradation_as_json(each) for each in lasting]})
    # Where another version was published meanwhile, the key is that of one that may be rolled back to.
    if key is not None and profile == str(outcome.wiring.profile):
        cache_response(key, fresh.text, lasting, most_s=EXTERNAL_SECONDS if outcome.wiring.asks_elsewhere else inf)
    return fresh.served(notes, cached=False, timings_ms=outcome.result.timings_ms)


@dataclass(frozen=True, slots=True)
class _Body:
    """A response without what differs whenever it is served; that is spliced in, for to read and write it takes long.

    Attributes:
        text: a JSON object that is cut off after the last element of `degraded`, its last field.
    """

    text: bytes

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> "_Body":
        lasting = {name: value for name, value in response.items() if name not in {"degraded", "cached", "timings_ms"}}
        return cls(_json({**lasting, "degraded": response["degraded"]}).removesuffix(b"]}"))

    def served(self, notes: Iterable[Degradation], *, cached: bool, timings_ms: Mapping[str, float]) -> bytes:
        further = _json([degradation_as_json(note) for note in notes]).strip(b"[]")
        between = b"," if further and not self.text.endswith(b"[") else b""
        rest = _json({"cached": cached, "timings_ms": dict(timings_ms)}).removeprefix(b"{")
        return b"".join((self.text, between, further, b"],", rest))


def _key(principal: Principal, request: SearchRequest) -> tuple[str, HotQueryKey | None]:
    """The profile that rules the search, and the key of its response.

    No key where the search is to be run in any case, or the principal may not search there.
    """
    # An explained search is asked for to be run, and a conversation is hardly held twice.
    asks_to_run = request.explain or request.history or request.own_profiles
    if asks_to_run or not (request.log and settings.CACHE_ENABLED):
        return "", None
    scope = states(principal, request.knowledge_base_ids)
    if not scope:
        return "", None
    profiles = _profiles(
        request, scope, lambda: named_profile(principal, request) or RetrievalProfile.objects.live(DEFAULT)
    )
    return _named(profiles[0]), _key_of(request, scope, profiles)


def _named(profile: ProfileState) -> str:
    return f"{profile.name} v{profile.version}"


def _key_of(
    request: SearchRequest, scope: Sequence[KnowledgeBaseState], profiles: Sequence[ProfileState]
) -> HotQueryKey:
    """The key of a response; the first profile is the one that it names."""
    return key_of(
        query=request.query,
        scope=scope,
        profile=_named(profiles[0]),
        fingerprints=[*(each.settings for each in profiles), _environment()],
        request={
            "kind": KIND,
            "overrides": dict(request.overrides),
            "filters": request.filters.as_dict() if request.filters else {},
        },
    )


def kept_in(outcome: SearchOutcome) -> str | None:
    """The tier that would answer if the same were asked for again, unexplained, in the language of this reader.

    Reads nothing from the database, and counts nothing.

    Returns:
        "memory" (of this process), "shared" (Redis), or None where the search would be run.
    """
    request = outcome.request
    if request.history or request.own_profiles or not settings.CACHE_ENABLED:
        return None
    own = {kb.profile_id: _state_of(kb.profile) for kb in outcome.knowledge_bases}
    scope = [
        KnowledgeBaseState(
            kb.pk,
            kb.version_row.version,
            kb.version_row.content_version,
            kb.embedding_model,
            kb.tokenizer_id,
            kb.language,
            own[kb.profile_id],
        )
        for kb in outcome.knowledge_bases
    ]
    return tier_of(_key_of(request, scope, _profiles(request, scope, lambda: outcome.wiring.profile)))


def _state_of(profile: RetrievalProfile) -> ProfileState:
    """As `states` reads it."""
    text = json.dumps(profile.settings, ensure_ascii=False)
    return ProfileState(profile.pk, profile.name, profile.version, text)


def _profiles(
    request: SearchRequest, scope: Sequence[KnowledgeBaseState], ruling: Callable[[], RetrievalProfile]
) -> list[ProfileState]:
    """The profile that the response names, then those of the knowledge bases where they differ.

    Args:
        request: the search.
        scope: its knowledge bases.
        ruling: gives the profile that the request names, or the default one; asked where that decides.
    """
    own = {kb.profile.profile_id: kb.profile for kb in scope}
    if not request.profile and len(own) == 1:
        return list(own.values())
    ruled = ruling()
    first = ProfileState(ruled.pk, ruled.name, ruled.version, json.dumps(ruled.settings))
    return [first] if request.profile else [first, *(kb.profile for kb in scope)]


def _environment() -> str:
    servers = (settings.EMBEDDING_BASE_URL, settings.RERANK_BASE_URL, settings.RERANK_FORM, settings.LLM_BASE_URL)
    return json.dumps([settings.RETRIEVAL, models_in_use(), servers], sort_keys=True)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
