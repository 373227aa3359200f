"""What would help a chunk that a search has lost."""

import dataclasses
import math
import shlex
from collections.abc import Iterator
from typing import Any

from kb.index.filters import Filters
from kb.quality.why_not.services.types import (
    Place,
    PlaceState,
    Reason,
    Remedy,
    RemedyCode,
    Stage,
    State,
    Step,
    WhyNot,
)
from kb.search.services.search import SearchRequest
from retrieval.config import RetrievalConfig
from retrieval.gate import SETTING_OF_SCALE
from retrieval.trace import DegradationCode

# The most that RetrievalConfig takes.
MOST_CANDIDATES = 2_000
MOST_RERANKED = 500
MOST_RESULTS = 200
MOST_RERANKED_RESULTS = 500
STEP = 5
DEEPER_INTO_AN_INDEX = 4
"""An approximate index that has missed a chunk is read so many times deeper, which makes it look further around."""

SCORE_DECIMALS = 3
CAPS = {"book": "max_books", "video": "max_videos", "qa": "max_qa", "web": "max_web"}
VECTOR_CHANNELS = ("vector", "question")
ANSWERS_TO_A_QUESTION = frozenset({Stage.CHANNELS, Stage.FUSION, Stage.GATE, Stage.TOP_K})
"""Where a question of its own would bring a chunk forward."""


def remedies(why: WhyNot) -> tuple[Remedy, ...]:
    """What would help, the surest first; nothing for a chunk that was found."""
    verdict = why.verdict
    if verdict.stage is Stage.FOUND:
        return ()
    return (*_OF_STAGE.get(verdict.stage, _nothing)(why, verdict), *_of_its_content(why, verdict))


def _nothing(_why: WhyNot, _verdict: Step) -> Iterator[Remedy]:
    return iter(())


def _of_its_content(why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    """What may be done with the chunk itself, wherever it was lost on its way."""
    if any(step.state is State.WEAKENED and step.stage in (Stage.POSTINGS, Stage.EMBEDDING) for step in why.steps):
        yield Remedy(RemedyCode.INDEX_CHUNK)
    if verdict.stage not in ANSWERS_TO_A_QUESTION or verdict.reason is Reason.BLANK_QUERY:
        return
    if why.terms is not None and why.terms.words:
        yield Remedy(RemedyCode.ADD_WORD, suggestions=why.terms.words)
    if why.request.query not in why.chunk.questions:
        yield Remedy(RemedyCode.ADD_QUESTION, suggestions=(why.request.query,))


# -- Before the search ---------------------------------------------------------------------------------------------------
def _search_there_too(why: WhyNot, _verdict: Step) -> Iterator[Remedy]:
    ids = [*why.request.knowledge_base_ids, why.chunk.knowledge_base_id]
    yield Remedy(RemedyCode.CHANGE_REQUEST, "knowledge_base", request=_with(why.request, knowledge_base_ids=ids))


def _retry_document(_why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    if verdict.reason is Reason.FAILED:
        yield Remedy(RemedyCode.RETRY_DOCUMENT)


def _enable(_why: WhyNot, _verdict: Step) -> Iterator[Remedy]:
    yield Remedy(RemedyCode.ENABLE)


def _index(why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    yield Remedy(RemedyCode.INDEX_CHUNK)
    name = shlex.quote(why.chunk.knowledge_base.name)
    kind = "--bm25" if verdict.stage is Stage.POSTINGS else "--embeddings"
    yield Remedy(RemedyCode.RUN_COMMAND, command=f"manage.py reindex --kb {name} {kind}")


def _without_filter(why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    filters = why.request.filters or Filters()
    for name in verdict.figures["failed"]:
        field, _dot, key = name.partition(".")
        left: Any = tuple(each for each in filters.metadata if each.key != key) if key else None
        changed = dataclasses.replace(filters, **{field: left})
        request = _with(why.request, filters=None if changed.is_empty else changed)
        yield Remedy(RemedyCode.CHANGE_REQUEST, name, request=request)


# -- The search ----------------------------------------------------------------------------------------------------------
def _of_channels(why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    if verdict.reason is Reason.CHANNEL_FAILED and any(
        place.error == DegradationCode.BM25_POSTINGS_OUTDATED for place in why.places
    ):
        name = shlex.quote(why.chunk.knowledge_base.name)
        yield Remedy(RemedyCode.RUN_COMMAND, command=f"manage.py reindex --kb {name} --bm25")
    for setting, depth in sorted(_depths(why.places).items(), key=lambda item: item[1]):
        if depth <= MOST_CANDIDATES:
            yield Remedy(RemedyCode.DRAFT, setting, settings={setting: depth})


def _depths(places: tuple[Place, ...]) -> dict[str, int]:
    """By setting, how many candidates would make the chunk one of them."""
    depths: dict[str, int] = {}
    for place in places:
        setting = "vector_top_k" if place.channel in VECTOR_CHANNELS else "bm25_top_k"
        if place.state is PlaceState.MISSED:
            wanted = min(DEEPER_INTO_AN_INDEX * place.depth, MOST_CANDIDATES)
        elif place.state is PlaceState.DEEPER and place.rank is not None:
            wanted = _rounded_up(place.rank)
        else:
            continue
        depths[setting] = min(wanted, depths.get(setting, wanted))
    return depths


def _show_double(_why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    yield Remedy(RemedyCode.SHOW_DOUBLE, chunk_id=verdict.figures["chunk_id"])


def _of_fusion(_why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    if verdict.reason is Reason.VECTOR_ONLY:
        yield Remedy(RemedyCode.DRAFT, "use_rerank", settings={"use_rerank": True})
    elif verdict.reason is Reason.BEYOND_CUT and verdict.figures["rank"] <= MOST_RERANKED:
        settings = {"rerank_candidates": _rounded_up(verdict.figures["rank"])}
        yield Remedy(RemedyCode.DRAFT, "rerank_candidates", settings=settings)


def _of_gate(why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    setting = threshold_setting(why)
    if setting is not None:
        whole = 10**SCORE_DECIMALS
        score = max(math.floor(verdict.figures["score"] * whole) / whole, 0.0)
        yield Remedy(RemedyCode.DRAFT, setting, settings={setting: score})


def threshold_setting(why: WhyNot) -> str | None:
    """The setting that the cut of a search came from; None on a scale that has none."""
    replaced = any(each.code is DegradationCode.THRESHOLD_NOT_APPLIED for each in why.outcome.result.degraded)
    if why.outcome.wiring.config.score_threshold is not None and not replaced:
        return "score_threshold"
    return SETTING_OF_SCALE.get(why.outcome.result.score_scale)


def _of_cap(_why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    setting = CAPS.get(verdict.figures["kind"], CAPS["book"])
    if verdict.figures["place"] <= MOST_RESULTS:
        yield Remedy(RemedyCode.DRAFT, setting, settings={setting: verdict.figures["place"]})


def _of_count(why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    if settings := _counts(why.outcome.wiring.config, verdict.figures["place"]):
        yield Remedy(RemedyCode.DRAFT, "top_k", settings=settings)


def _counts(config: RetrievalConfig, place: int) -> dict[str, int]:
    """The counts that are below a place; empty where no setting can be as high."""
    if place > MOST_RERANKED_RESULTS:
        return {}
    limits: dict[str, int | None] = {"rerank_top_k": config.rerank_top_k}
    if config.general_retrieval:
        limits["general_final_count"] = config.general_final_count
        if config.rerank_top_k is None:
            limits["top_k" if place <= MOST_RESULTS else "rerank_top_k"] = config.top_k
    return {setting: place for setting, limit in limits.items() if limit is not None and limit < place}


def _rounded_up(rank: int) -> int:
    return STEP * math.ceil(rank / STEP)


def _with(request: SearchRequest, **changes: Any) -> SearchRequest:
    return dataclasses.replace(request, **changes)


_OF_STAGE = {
    Stage.KNOWLEDGE_BASE: _search_there_too,
    Stage.DOCUMENT: _retry_document,
    Stage.ENABLED: _enable,
    Stage.POSTINGS: _index,
    Stage.EMBEDDING: _index,
    Stage.FILTERS: _without_filter,
    Stage.CHANNELS: _of_channels,
    Stage.DEDUPE: _show_double,
    Stage.FUSION: _of_fusion,
    Stage.GATE: _of_gate,
    Stage.PARENT: _show_double,
    Stage.PER_SOURCE: _of_cap,
    Stage.TOP_K: _of_count,
}
