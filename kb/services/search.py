"""The one search that the debug page, the API, the commands, RAGService and evaluation run."""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from kb.conf import Wiring, build_pipeline
from kb.metrics import Outcome, observe_search
from kb.models import KnowledgeBase, Principal, RetrievalProfile
from kb.models.validators import storable
from kb.services import search_log
from kb.selectors import searchable
from kb.services.errors import NotVisible
from kb.services.profiles import newest_profile
from kb.stores.filters import Filters
from kb.stores.query_caches import shared_cache_unavailable
from retrieval.errors import NoChannelAvailable, ScopeOutdated
from retrieval.trace import Degradation, DegradationCode
from retrieval.types import Candidate, Hit, Passage, Result, Turn

MAX_LATENCY_BUDGET_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What to search for.

    Attributes:
        knowledge_base_ids: in the order that breaks ties.
        profile: name of a profile that serves all of them; blank: each knowledge base's own.
        overrides: settings by the names of RetrievalConfig.
        explain: keep the whole trace, with every candidate.
        latency_budget_ms: after how long the search answers with what it has. None: the server's, which does not count
            the loading of a local model.
        filters: which chunks may be found; see `kb.stores.filters`.
        history: earlier turns of the conversation that the query stands in.
        log: False keeps the search out of the search log (evaluation).
    """

    query: str
    knowledge_base_ids: Sequence[int]
    profile: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    explain: bool = False
    latency_budget_ms: int | None = None
    filters: Filters | None = None
    history: Sequence[Turn] = ()
    log: bool = True


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    request: SearchRequest
    result: Result
    wiring: Wiring
    trace_id: uuid.UUID


def search(principal: Principal, request: SearchRequest) -> SearchOutcome:
    """Searches knowledge bases.

    Raises:
        NotVisible: one of them, or the profile, does not exist for this principal.
        InvalidConfiguration: an override is unknown or out of range.
        NoChannelAvailable: no channel could answer.
    """
    request = dataclasses.replace(request, query=storable(request.query))
    try:
        outcome = _run(principal, request)
    except ScopeOutdated:  # a knowledge base moved to its new tokenizer between wiring and searching
        outcome = _run(principal, request)
    if request.log:
        search_log.record(principal, outcome_as_log(outcome), now=request.explain)
    return outcome


def _run(principal: Principal, request: SearchRequest) -> SearchOutcome:
    wiring = wire(principal, request)
    if request.latency_budget_ms is None:
        wiring.load_models()
    budget = (request.latency_budget_ms or settings.LATENCY_BUDGET_MS) / 1_000
    try:
        result = wiring.pipeline.run(
            request.query, wiring.config, history=request.history, explain=request.explain, latency_budget=budget
        )
    except NoChannelAvailable as error:
        observe_search(Outcome.UNAVAILABLE, error.degradations)
        raise
    result = dataclasses.replace(result, degraded=(*result.degraded, *shared_cache_notes()))
    observe_search(Outcome.FOUND if result.hits else Outcome.NONE, result.degraded, result.timings_ms)
    return SearchOutcome(request, result, wiring, uuid.uuid4())


def shared_cache_notes() -> tuple[Degradation, ...]:
    """Says that Redis is out of reach, where the last attempt to use it has failed."""
    if not shared_cache_unavailable():
        return ()
    message = _("Redis is out of reach, so every process keeps caches of its own: start it, or mend REDIS_URL.")
    return (Degradation("cache", DegradationCode.SHARED_CACHE_UNAVAILABLE, message),)


def wire(principal: Principal, request: SearchRequest) -> Wiring:
    """The pipeline of a request, which may run many queries.

    Raises:
        NotVisible: a knowledge base or the profile does not exist for this principal.
        InvalidConfiguration: an override is unknown or out of range.
    """
    knowledge_bases = _visible(principal, request.knowledge_base_ids)
    profile = _profile(request.profile) if request.profile else None
    return build_pipeline(
        knowledge_bases, principal, profile=profile, overrides=request.overrides, filters=request.filters
    )


def _visible(principal: Principal, kb_ids: Sequence[int]) -> list[KnowledgeBase]:
    if not kb_ids:
        raise NotVisible(_("Name at least one knowledge base."))
    found = searchable(principal, kb_ids)
    missing = [str(kb_id) for kb_id in kb_ids if kb_id not in found]
    if missing:
        raise NotVisible(_("There is no knowledge base with the id %(ids)s.") % {"ids": ", ".join(missing)})
    return [found[kb_id] for kb_id in dict.fromkeys(kb_ids)]


def _profile(name: str) -> RetrievalProfile:
    try:
        return newest_profile(name)
    except RetrievalProfile.DoesNotExist as error:
        names = ", ".join(RetrievalProfile.objects.order_by("name").values_list("name", flat=True).distinct())
        message = _("There is no retrieval profile named “%(name)s”; there are: %(names)s.")
        raise NotVisible(message % {"name": name, "names": names}) from error


def outcome_as_json(outcome: SearchOutcome) -> dict[str, Any]:
    """The response of POST /api/v1/search/, which `manage.py search --json` prints too."""
    result, profile = outcome.result, outcome.wiring.profile
    response: dict[str, Any] = {
        "query": result.query,
        "results": [hit_as_json(hit) for hit in result.hits],
        "facts": [fact.as_dict() for fact in result.facts],
        "degraded": [degradation.as_dict() for degradation in result.degraded],
        "profile": {"name": profile.name, "version": profile.version},
        "timings_ms": dict(result.timings_ms),
        "trace_id": str(outcome.trace_id),
    }
    if outcome.request.explain:
        response["trace"] = trace_as_json(outcome)
    return response


def hit_as_json(hit: Hit) -> dict[str, Any]:
    passage = hit.passage
    return {
        "chunk_id": passage.chunk_id,
        "document_id": passage.document_id,
        "knowledge_base_id": passage.kb_id,
        "title": passage.title,
        "source": passage.source,
        "page": passage.page,
        "text": passage.text,
        "score": hit.score,
        "score_scale": hit.score_scale,
        "ranks": dict(hit.ranks),
        "scores": dict(hit.scores),
        "metadata": {**passage.metadata, "heading_path": list(passage.heading_path)},
        "neighbours": [_neighbour_as_json(each) for each in hit.neighbours],
    }


def _neighbour_as_json(passage: Passage) -> dict[str, Any]:
    return {"chunk_id": passage.chunk_id, "position": passage.position, "page": passage.page, "text": passage.text}


def trace_as_json(outcome: SearchOutcome) -> dict[str, Any]:
    """Everything the search did; texts of candidates are left to the chunks themselves."""
    result = outcome.result
    return {
        "terms": list(result.analysis.all_terms),
        "configuration": outcome.wiring.config.as_dict(),
        "scopes": [
            {"kb_id": scope.kb_id, "space": scope.space, "configuration": scope.config.as_dict()}
            for scope in outcome.wiring.pipeline.scopes
        ],
        "score_scale": result.score_scale,
        "threshold": result.threshold,
        "spans": [span.as_dict() for span in result.spans],
        "candidates": [_candidate_as_json(candidate) for candidate in result.candidates],
    }


def _candidate_as_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "chunk_id": candidate.chunk_id,
        "kb_id": candidate.kb_id,
        "ranks": dict(candidate.ranks),
        "scores": dict(candidate.scores),
        "matched_terms": list(candidate.matched_terms),
        "cut_by": candidate.cut_by,
        "provenance": [dataclasses.asdict(each) for each in candidate.provenance],
    }


def outcome_as_log(outcome: SearchOutcome) -> dict[str, Any]:
    """The fields of the search log's entry."""
    result, profile = outcome.result, outcome.wiring.profile
    return {
        "id": outcome.trace_id,
        "knowledge_base_ids": [scope.kb_id for scope in outcome.wiring.pipeline.scopes],
        "query": result.query,
        "profile": profile.name,
        "profile_version": profile.version,
        "configuration": outcome.wiring.config.as_dict(),
        "trace": trace_as_json(outcome),
        "degraded": [degradation.as_dict() for degradation in result.degraded],
        "result_count": len(result.hits),
        "duration_ms": result.timings_ms["total"],
    }
