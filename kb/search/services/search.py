"""The one search that the debug page, the API, the commands, RAGService and evaluation run, and the cache of its responses."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec
from django.conf import settings
from django.utils.translation import get_language, gettext as _, gettext_noop
from msgspec import UNSET, UnsetType
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, Principal
from kb.base.cache import hot_queries, shared_redis
from kb.base.errors import NotVisible
from kb.base.metrics import observe_search
from kb.base.shapes import as_json
from kb.base.telemetry import logs
from kb.base.telemetry.otel import record_stages
from kb.base.text import storable
from kb.index.filters import Filters
from kb.index.services.reembedding import search_with
from kb.ingest.services.pictures import ShownPicture, pictures_of_chunks
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import OF, find_version
from kb.providers.endpoints import chat_endpoint, defaults, models_fingerprint
from kb.providers.recommended import Role
from kb.search.models import SearchLog
from kb.search.selectors import holdings, searchable
from kb.search.services import search_log
from kb.search.wiring import Wiring, build_pipeline, common_profile
from retrieval.errors import Degradation, DegradationCode, Message, NoChannelAvailable, ScopeOutdated
from retrieval.rerankers.cross_encoder import RETRY_AFTER_S
from retrieval.selection import MOST_NEAR_MISSES, ScoreScale
from retrieval.types import STAGES, Candidate, Fact, Hit, PageRegion, Relevance, Result, Turn

# Of keys and responses: raise it when either changes, and no entry of an older release is found.
FORMAT = 5
# Degradations that follow from a choice; any other is a fault that may be over before the response expires.
LASTING = frozenset({DegradationCode.HASHING_EMBEDDER, DegradationCode.EXTERNAL_LEFT_OUT})
# Faults that are tried again after a while only, and in which the next link of the chain has answered.
PASSING = frozenset({DegradationCode.RERANKER_UNAVAILABLE})
PASSING_SECONDS = RETRY_AFTER_S
# How long a response is cached that live or external sources had a part in: no version tells of their changes.
EXTERNAL_SECONDS = 60.0
NO_PICTURES: Mapping[int, tuple[ShownPicture, ...]] = {}
MAX_LATENCY_BUDGET_MS = 60_000
MAX_QUERY_CHARS = 2_000
MAX_TURNS, MAX_TURN_CHARS = 20, 4_000


@dataclass(frozen=True, slots=True)
class ProfileVersion:
    """A version of a knowledge base's own profile; without one, of a shared one, or logged by an older release."""

    name: str
    version: int
    knowledge_base_id: int | None = None

    @property
    def reference(self) -> str:
        return self.name if self.knowledge_base_id is None else f"{self.knowledge_base_id}{OF}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What to search for.

    Attributes:
        knowledge_base_ids: in the order that breaks ties.
        profile: NAME or ID/NAME of a profile that serves all of them; blank: each knowledge base's own.
        profile_version: of that profile; None: the published one.
        own_profiles: by knowledge base, where each searches by another version than its own now; `profile` then rules
            only the stages that serve all together.
        explain: keep the whole trace, with every candidate.
        latency_budget_ms: None: the server's, which does not count the loading of a local model.
        history: earlier turns of the conversation that the query stands in.
        log: False keeps the search out of the search log (evaluation).
        keeps_query: False leaves the query out of the log, as an installation may do for all.
        assistant_id: of the assistant that it is run for.
    """

    query: str
    knowledge_base_ids: Sequence[int]
    profile: str = ""
    profile_version: int | None = None
    own_profiles: Mapping[int, ProfileVersion] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    explain: bool = False
    latency_budget_ms: int | None = None
    filters: Filters | None = None
    history: Sequence[Turn] = ()
    log: bool = True
    keeps_query: bool = True
    assistant_id: int | None = None


@dataclass(frozen=True, slots=True)
class SearchScope:
    """What a request is about, read once and with the caller's rights.

    The knowledge bases are in the order of the request, each with its profile and versions. Without a `named` profile
    each searches by its own; the `ruling` one, which the response names, rules the stages that serve all together.
    """

    knowledge_bases: tuple[KnowledgeBase, ...]
    named: RetrievalProfile | None
    ruling: RetrievalProfile


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    request: SearchRequest
    result: Result
    wiring: Wiring
    knowledge_bases: tuple[KnowledgeBase, ...]
    trace_id: UUID


@dataclass(frozen=True, slots=True)
class UsedProfile:
    """The profile that ruled a search."""

    name: str
    version: int

    @classmethod
    def of(cls, profile: RetrievalProfile) -> "UsedProfile":
        return cls(profile.name, profile.version)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A chunk before or after a result."""

    chunk_id: int
    position: Annotated[int, Doc("In its document, from 0.")]
    page: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """A result or a near miss as the API, the commands and agents have it."""

    chunk_id: Annotated[
        int | None,
        Doc(
            "null: found by a live or external source; `source` is its address then, and `metadata.external` tells which source "
            "found it."
        ),
    ]
    document_id: Annotated[int | None, Doc("null where chunk_id is.")]
    knowledge_base_id: int
    title: str
    source: str
    page: int | None
    seconds: Annotated[int | None, Doc("The time at which a recording says it.")]
    regions: Annotated[tuple[PageRegion, ...], Doc("Where `text` stands on the pages of the document.")]
    text: str
    matched_text: Annotated[
        str, Doc("The chunk that was found, where `text` is the longer passage around it; blank where it is `text`.")
    ]
    score: Annotated[float, Doc("On the scale that `score_scale` names.")]
    score_scale: ScoreScale
    relevance: Annotated[
        Relevance | None,
        Doc("What the score says, by the borders of its scale; null on the scale `rrf`, which has none."),
    ]
    equal_question: Annotated[
        str,
        Doc("The one of the chunk’s questions that the query equals, which makes its score 1; blank where none does."),
    ]
    ranks: Annotated[Mapping[str, int], Doc("From 1, by the stages that saw the chunk, as in `scores`, but for order.")]
    scores: Annotated[
        Mapping[str, float],
        Doc(
            f"By stage, each on a scale of its own: {', '.join(STAGES)}. `characters` are words, pairs of characters and single "
            "ones together, in Chinese and Japanese; `rerank` is the relevance, which the gate compares with the cut; `order` is "
            "what the results are ordered by."
        ),
    ]
    metadata: Mapping[str, Any]
    neighbours: Annotated[
        tuple[Neighbour, ...], Doc("The chunks before and after it, as many as the setting `neighbours` says.")
    ]
    pictures: Annotated[tuple[ShownPicture, ...], Doc("Of the document, that stand in the chunk.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResponse:
    """The response of a search; the cache keeps its JSON."""

    query: str
    results: tuple[SearchResult, ...]
    near_misses: Annotated[
        tuple[SearchResult, ...],
        Doc(
            f"At most {MOST_NEAR_MISSES}, best first: what lies below the cut where that is the built-in one of its scale, which "
            "may be wrong here. For a reader or an agent to judge; together with the results never more than were asked for."
        ),
    ]
    facts: Annotated[tuple[Fact, ...], Doc("Of the graph, for what the query names; beside the results.")]
    degraded: tuple[Degradation, ...]
    profile: UsedProfile
    cached: Annotated[bool, Doc("Whether this is the response of an earlier search.")]
    timings_ms: Annotated[Mapping[str, float], Doc("Milliseconds by stage, and in total.")]
    trace_id: Annotated[UUID, Doc("Of the search’s entry in the search log: see traces/{trace_id}/.")]
    trace: Annotated[Mapping[str, Any] | UnsetType, Doc("With `explain` only.")] = UNSET


def scope_of(principal: Principal, request: SearchRequest) -> SearchScope:
    """Reads what a request is about; one statement, and one more for a profile that is not a knowledge base's own.

    Raises NotVisible where a knowledge base or the profile does not exist for this principal, Rejected where several
    knowledge bases have a profile of that name.
    """
    if not request.knowledge_base_ids:
        raise NotVisible(_("Name at least one knowledge base."))
    found = searchable(principal, request.knowledge_base_ids)
    if missing := [str(kb_id) for kb_id in request.knowledge_base_ids if kb_id not in found]:
        raise NotVisible(_("There is no knowledge base with the id %(ids)s.") % {"ids": ", ".join(missing)})
    knowledge_bases = tuple(found[kb_id] for kb_id in dict.fromkeys(request.knowledge_base_ids))
    for kb in knowledge_bases:
        if own := request.own_profiles.get(kb.pk):
            kb.profile = find_version(principal, own.reference, own.version, scope=[kb.pk])
    named = None
    if request.profile:
        named = find_version(principal, request.profile, request.profile_version, scope=request.knowledge_base_ids)
    return SearchScope(knowledge_bases, named, named or common_profile(knowledge_bases))


def respond(principal: Principal, request: SearchRequest) -> SearchResponse:
    """The response of POST /api/v1/search/: that of an earlier search where nothing that it depends on has changed.

    Rights and versions are read first, in one query, so what is served again is what a search would find now. A response
    that is served again says so, has the trace_id of the search that made it, and is counted but not logged. Raises as
    `search`.
    """
    started = time.perf_counter()
    scope = scope_of(principal, request)
    # An explained search is asked for to be run, and a conversation is hardly held twice.
    asks_to_run = request.explain or request.history or request.own_profiles or not request.log
    key = None if asks_to_run or not settings.CACHE_ENABLED else _key_of(request, scope.knowledge_bases, scope.ruling)
    if key is not None and (stored := cached_response(key)) is not None:
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
        cacheable = as_json(dataclasses.replace(response, degraded=lasting))
        most_s = EXTERNAL_SECONDS if outcome.wiring.uses_external_sources else inf
        cache_response(key, cacheable, lasting, most_s=most_s)
    return response


def _key_of(request: SearchRequest, knowledge_bases: Sequence[KnowledgeBase], ruling: RetrievalProfile) -> bytes:
    own = {kb.profile_id: kb.profile for kb in knowledge_bases}
    profiles = [ruling] if request.profile or len(own) == 1 else [ruling, *(kb.profile for kb in knowledge_bases)]
    decisive = [*(each.settings for each in profiles), [settings.RETRIEVAL, models_fingerprint()]]
    return key_of(
        query=request.query,
        scope=knowledge_bases,
        profile=f"{ruling.name} v{ruling.version}",
        fingerprints=[json.dumps(each, sort_keys=True) for each in decisive],
        request={
            "kind": "search",
            "overrides": dict(request.overrides),
            "filters": request.filters.as_dict() if request.filters else {},
        },
    )


def tier_that_answers(outcome: SearchOutcome) -> str | None:
    """The tier that would answer if the same were asked for again, unexplained, in the language of this reader.

    "memory" (of this process), "shared" (Redis), or None where the search would be run. Reads nothing from the
    database, and counts nothing.
    """
    request = outcome.request
    if request.history or request.own_profiles or not settings.CACHE_ENABLED:
        return None
    entry = hot_queries().peek(_key_of(request, outcome.knowledge_bases, outcome.wiring.profile))
    return None if entry is None else entry.tier


def key_of(
    *, query: str, scope: Sequence[KnowledgeBase], profile: str, fingerprints: Sequence[str], request: Mapping[str, Any]
) -> bytes:
    """The key of a search's response: SHA-256, 32 bytes.

    It names no user. What a principal sees is a matter of whole knowledge bases, so all who may search the same ones
    get the same response; and as the versions come from the very query that checks this permission (`searchable`), who
    has lost it never has a key. The fingerprints are of the resolved configurations and of what else the environment
    decides; the request is everything else that was asked, of JSON's types or with a `str` of its own.
    """
    bases = [
        (kb.pk, version.version, version.content_version, kb.embedding_model, kb.tokenizer_id, kb.language)
        for kb in scope
        for version in [kb.version_row]
    ]
    asked = [FORMAT, query, bases, profile, list(fingerprints), request, get_language() or ""]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).digest()


def cached_response(key: bytes) -> bytes | None:
    """The response of an earlier search; None where there is none, or the cache is switched off."""
    entry = hot_queries().get(key) if settings.CACHE_ENABLED else None
    return None if entry is None else entry.value


def cache_response(key: bytes, response: bytes, degraded: Iterable[Degradation], *, most_s: float = inf) -> bool:
    """Caches a response for at most so many seconds, unless a fault has made it worse than the next one may be.

    A response without the reranker that is configured is cached no longer than until that is tried again. Returns
    whether it was cached.
    """
    faults = {degradation.code for degradation in degraded} - LASTING
    # A server is asked again by the very next search.
    passing = frozenset() if any(each.is_served for each in defaults(Role.RERANK)) else PASSING
    if not settings.CACHE_ENABLED or faults - passing:
        return False
    hot_queries().put(key, response, min(most_s, PASSING_SECONDS) if faults else most_s)
    return True


def search(principal: Principal, request: SearchRequest, scope: SearchScope | None = None) -> SearchOutcome:
    """Searches knowledge bases; a scope is from `scope_of`, just now.

    Raises:
        NotVisible: one of them, or the profile, does not exist for this principal.
        Rejected: several knowledge bases have a profile of that name.
        InvalidConfiguration: an override is unknown or out of range.
        NoChannelAvailable: no channel could answer.
    """
    request = dataclasses.replace(request, query=storable(request.query))
    try:
        outcome = _run(principal, request, scope or scope_of(principal, request))
    except ScopeOutdated:  # a knowledge base moved to its new tokenizer between wiring and searching
        outcome = _run(principal, request, scope_of(principal, request))
    if request.log:
        entry = partial(outcome_as_log, outcome)
        search_log.record(principal, outcome.trace_id, entry, now=request.explain, keeps_query=request.keeps_query)
    return outcome


def _run(principal: Principal, request: SearchRequest, scope: SearchScope) -> SearchOutcome:
    wiring = _wire(scope, principal, request)
    if request.latency_budget_ms is None:
        wiring.load_models()
    budget = (request.latency_budget_ms or settings.LATENCY_BUDGET_MS) / 1_000
    try:
        result = wiring.run(request.query, history=request.history, explain=request.explain, latency_budget=budget)
    except NoChannelAvailable as error:
        observe_search("unavailable", error.degradations)
        raise
    result = dataclasses.replace(result, degraded=(*result.degraded, *shared_cache_notes()))
    observe_search("found" if result.hits else "none", result.degraded, result.timings_ms)
    trace_id = uuid4()
    record_stages(result.spans, str(trace_id))
    logs.add(search=str(trace_id))
    return SearchOutcome(request, result, wiring, scope.knowledge_bases, trace_id)


def shared_cache_notes() -> tuple[Degradation, ...]:
    if not shared_redis().is_away:
        return ()
    message = Message(
        gettext_noop("Redis is out of reach, so every process keeps caches of its own: start it, or fix REDIS_URL.")
    )
    return (Degradation("cache", DegradationCode.SHARED_CACHE_UNAVAILABLE, message),)


def wire(principal: Principal, request: SearchRequest, *, embedding_model: str = "") -> Wiring:
    """The pipeline of a request, which may run many queries; live and external sources are not asked, whatever it says.

    With an `embedding_model` it searches the vectors of that model, as if it were in use, and raises Rejected where a
    knowledge base does not hold them; else it raises as `search`.
    """
    scope = scope_of(principal, request)
    if embedding_model:
        for kb in scope.knowledge_bases:
            search_with(kb, embedding_model)
    # What is measured must be found again, and what is elsewhere may not be; nor is each of its queries to be sent out.
    overrides = {**request.overrides, "external": False}
    return _wire(scope, principal, dataclasses.replace(request, overrides=overrides))


def _wire(scope: SearchScope, principal: Principal, request: SearchRequest) -> Wiring:
    return build_pipeline(
        scope.knowledge_bases,
        principal,
        profile=None if request.own_profiles else scope.named,
        common=scope.ruling,
        overrides=request.overrides,
        filters=request.filters,
    )


def response_of(outcome: SearchOutcome) -> SearchResponse:
    """The response of POST /api/v1/search/, which `manage.py search --json` prints too."""
    result, shown = outcome.result, pictures_of(outcome)
    return SearchResponse(
        query=result.query,
        results=tuple(result_of(hit, shown) for hit in result.hits),
        near_misses=tuple(result_of(hit, shown) for hit in result.near_misses),
        facts=result.facts,
        degraded=result.degraded,
        profile=UsedProfile.of(outcome.wiring.profile),
        cached=False,
        timings_ms=result.timings_ms,
        trace_id=outcome.trace_id,
        trace=trace_as_json(outcome) if outcome.request.explain else UNSET,
    )


def pictures_of(outcome: SearchOutcome) -> Mapping[int, tuple[ShownPicture, ...]]:
    """The pictures of what was found, by chunk; in one query, and none where no knowledge base has pictures."""
    given = (*outcome.result.hits, *outcome.result.near_misses)
    chunk_ids = [each for hit in given if (each := hit.passage.stored_chunk_id) is not None]
    if not chunk_ids or not any(holdings(kb).pictures for kb in outcome.knowledge_bases):
        return {}
    return pictures_of_chunks(chunk_ids)


def result_of(hit: Hit, shown: Mapping[int, tuple[ShownPicture, ...]] = NO_PICTURES) -> SearchResult:
    passage = hit.passage
    return SearchResult(
        chunk_id=passage.stored_chunk_id,
        document_id=passage.stored_document_id,
        knowledge_base_id=passage.kb_id,
        title=passage.title,
        source=passage.source,
        page=passage.page,
        seconds=passage.seconds,
        regions=passage.regions,
        text=passage.text,
        matched_text=passage.matched,
        score=hit.score,
        score_scale=ScoreScale(hit.score_scale),
        relevance=hit.relevance,
        equal_question=hit.equal_question,
        ranks=hit.ranks,
        scores=hit.scores,
        metadata={**passage.metadata, "heading_path": passage.heading_path},
        neighbours=tuple(Neighbour(each.chunk_id, each.position, each.page, each.text) for each in hit.neighbours),
        pictures=shown.get(passage.chunk_id, ()),
    )


def trace_as_json(outcome: SearchOutcome) -> dict[str, Any]:
    """Everything the search did; texts of candidates are left to the chunks themselves."""
    result, request, wiring = outcome.result, outcome.request, outcome.wiring
    serves_all = wiring.profile if request.profile and not request.own_profiles else None
    return {
        "request": request_as_json(request),
        "terms": list(result.analysis.all_terms),
        "configuration": wiring.config.as_dict(),
        "models": models_in_use(),
        "scopes": [
            {
                "kb_id": scope.kb_id,
                "version": kb.version_row.version,
                "content_version": kb.version_row.content_version,
                "tokenizer": kb.tokenizer_id,
                "space": scope.space,
                "profile": {
                    "name": profile.name,
                    "version": profile.version,
                    "knowledge_base_id": profile.knowledge_base_id,
                },
                "configuration": scope.config.as_dict(),
            }
            for scope, kb in zip(wiring.pipeline.scopes, outcome.knowledge_bases, strict=True)
            for profile in [serves_all or kb.profile]
        ],
        "score_scale": result.score_scale,
        "threshold": result.threshold,
        "spans": [span.as_dict() for span in result.spans],
        "results": [{"chunk_id": hit.passage.stored_chunk_id, "score": hit.score} for hit in result.hits],
        "candidates": [_candidate_as_json(candidate) for candidate in result.candidates],
        "dropped": [dataclasses.asdict(dropped) for dropped in result.dropped],
    }


def models_in_use() -> dict[str, str]:
    """The models that serve all searches, by their ids; the embedders are the knowledge bases' own."""
    rerankers = {each.is_served: each.id for each in defaults(Role.RERANK)}
    chat = chat_endpoint()
    return {
        "reranker": rerankers.get(False, ""),
        "rerank_server": rerankers.get(True, ""),
        "llm": "" if chat is None else chat.id,
    }


def request_as_json(request: SearchRequest) -> dict[str, Any]:
    """What was asked for; the history's texts may tell of other knowledge bases and are kept apart from the trace."""
    return {
        "profile": request.profile,
        "profile_version": request.profile_version,
        "overrides": dict(request.overrides),
        "filters": None if request.filters is None else request.filters.as_dict(),
        "latency_budget_ms": request.latency_budget_ms,
        "turns": len(request.history),
    }


def _candidate_as_json(candidate: Candidate) -> dict[str, Any]:
    passage = candidate.passage
    origin = passage.origin if passage else None
    return {
        "chunk_id": candidate.chunk_id if origin is None else None,
        **({} if origin is None else {"external": dataclasses.asdict(origin)}),
        "kb_id": candidate.kb_id,
        "ranks": dict(candidate.ranks),
        "scores": dict(candidate.scores),
        "matched_terms": list(candidate.matched_terms),
        "equal_question": candidate.question,
        "cut_by": candidate.cut_by,
        "near_miss": candidate.is_near_miss,
        "provenance": [
            {
                "channel": each.channel,
                "kb_id": each.kb_id,
                "chunk_id": each.chunk_id if each.chunk_id >= 0 else None,
                "query": each.query,
                "rank": each.rank,
                "score": each.score,
            }
            for each in candidate.provenance
        ],
    }


def outcome_as_log(outcome: SearchOutcome) -> dict[str, Any]:
    result, profile = outcome.result, outcome.wiring.profile
    missed = SearchLog.Outcome.GATED if result.candidates else SearchLog.Outcome.NOTHING
    return {
        "id": outcome.trace_id,
        "assistant_id": outcome.request.assistant_id,
        "knowledge_base_ids": [scope.kb_id for scope in outcome.wiring.pipeline.scopes],
        "query": result.query,
        "profile": profile.name,
        "profile_version": profile.version,
        "configuration": outcome.wiring.config.as_dict(),
        "trace": trace_as_json(outcome),
        "degraded": [degradation.as_dict() for degradation in result.degraded],
        "result_count": len(result.hits),
        "outcome": SearchLog.Outcome.FOUND if result.hits else missed,
        "duration_ms": result.timings_ms["total"],
        "timings": dict(result.timings_ms),
        "history": [dataclasses.asdict(turn) for turn in outcome.request.history],
    }
