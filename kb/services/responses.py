"""The responses of searches as JSON, kept for those that are asked again and again."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from kb.conf import common_profile
from kb.models import KnowledgeBase, Principal, RetrievalProfile
from kb.services.hot_queries import cache_response, cached_response, key_of
from kb.services.search import (
    SearchRequest,
    models_in_use,
    named_profile,
    outcome_as_json,
    search_in,
    shared_cache_notes,
    visible,
)
from retrieval.hot_queries import HotQueryKey
from retrieval.trace import Degradation, DegradationCode

KIND = "search"


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
    knowledge_bases = visible(principal, request.knowledge_base_ids)
    key = _key(request, knowledge_bases) if _may_be_cached(request) else None
    kept = None if key is None else cached_response(key)
    if kept is not None:
        total = round((time.perf_counter() - started) * 1_000, 3)
        return _Body(kept).served(shared_cache_notes(), cached=True, timings_ms={"total": total})
    outcome = search_in(knowledge_bases, principal, request)
    # Whether Redis is there is another matter when the response is served again.
    lasting = [each for each in outcome.result.degraded if each.code is not DegradationCode.SHARED_CACHE_UNAVAILABLE]
    notes = [each for each in outcome.result.degraded if each.code is DegradationCode.SHARED_CACHE_UNAVAILABLE]
    fresh = _Body.of({**outcome_as_json(outcome), "degraded": [each.as_dict() for each in lasting]})
    if key is not None:
        cache_response(key, fresh.text, lasting)
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
        further = _json([note.as_dict() for note in notes]).strip(b"[]")
        between = b"," if further and not self.text.endswith(b"[") else b""
        rest = _json({"cached": cached, "timings_ms": dict(timings_ms)}).removeprefix(b"{")
        return b"".join((self.text, between, further, b"],", rest))


def _may_be_cached(request: SearchRequest) -> bool:
    """An explained search is asked for to be run, and a conversation is hardly held twice."""
    return request.log and not (request.explain or request.history or request.own_profiles or request.profile_version)


def _key(request: SearchRequest, knowledge_bases: list[KnowledgeBase]) -> HotQueryKey:
    named = named_profile(request)
    profiles = [named] if named else [common_profile(knowledge_bases), *(kb.profile for kb in knowledge_bases)]
    return key_of(
        query=request.query,
        knowledge_bases=knowledge_bases,
        profile=str(profiles[0]),
        fingerprints=[*map(_fingerprint, profiles), _environment()],
        request={
            "kind": KIND,
            "overrides": dict(request.overrides),
            "filters": request.filters.as_dict() if request.filters else {},
        },
    )


def _fingerprint(profile: RetrievalProfile) -> str:
    return json.dumps([profile.name, profile.version, profile.settings], sort_keys=True)


def _environment() -> str:
    servers = (settings.EMBEDDING_BASE_URL, settings.RERANK_BASE_URL, settings.RERANK_FORM, settings.LLM_BASE_URL)
    return json.dumps([settings.RETRIEVAL, models_in_use(), servers], sort_keys=True)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
