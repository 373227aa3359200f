"""The responses of searches as JSON, kept for those that are asked again and again."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from django.conf import settings

from kb.access.models.accounts import Principal
from kb.base.messages import degradation_as_json
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import DEFAULT
from kb.search.services.hot_queries import cache_response, cached_response, key_of, tier_of
from kb.search.services.search import (
    SearchOutcome,
    SearchRequest,
    models_in_use,
    named_profile,
    outcome_as_json,
    search,
    shared_cache_notes,
)
from kb.search.states import KnowledgeBaseState, ProfileState, states
from retrieval.hot_queries import HotQueryKey
from retrieval.trace import Degradation, DegradationCode

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
