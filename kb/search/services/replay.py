"""Runs a logged search again, under the profile version it ran under, and tells what has changed since."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from django.utils.translation import gettext as _
from typing_extensions import Doc

from kb.access.models import Principal
from kb.base.errors import Rejected, found_in
from kb.content.models import Chunk
from kb.index.filters import Filters
from kb.search.models import SearchLog
from kb.search.services.search import ProfileVersion, SearchOutcome, SearchRequest, UsedProfile, outcome_as_log, search
from kb.search.services.search_log import WITHHELD
from retrieval.errors import Degradation
from retrieval.types import Turn

SCORE_TOLERANCE = 1e-6
STATE_FIELDS = ("version", "content_version", "tokenizer", "space")


class Change(StrEnum):
    """What has become of a result. `rescored` stands where it stood, with another score."""

    SAME = "same"
    RESCORED = "rescored"
    MOVED = "moved"
    NEW = "new"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Ranks:
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class Scores:
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class Scales:
    before: Annotated[str, Doc("As `score_scale` of a result.")]
    after: str


@dataclass(frozen=True, slots=True)
class Degraded:
    before: tuple[Degradation, ...]
    after: tuple[Degradation, ...]


@dataclass(frozen=True, slots=True)
class ReplayedResult:
    """A result of either search; `title` and `source` are blank where the chunk is deleted."""

    chunk_id: int
    title: str
    source: str
    change: Change
    rank: Annotated[Ranks, Doc("From 1; null where it is none of the results.")]
    score: Scores
    reason: Annotated[
        str, Doc("Why it is gone: deleted, disabled, the stage that cut it, or not found by any channel.")
    ]


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is another one now."""

    knowledge_base_id: Annotated[int | None, Doc("null: it serves all of them together.")]
    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A search that was run again: the response of POST /api/v1/traces/{trace_id}/replay/."""

    trace_id: Annotated[UUID, Doc("Of the search that was run again.")]
    query: str
    profile: UsedProfile
    identical: Annotated[bool, Doc("The same results in the same order, with the same scores.")]
    score_scale: Scales
    results: Annotated[tuple[ReplayedResult, ...], Doc("In the order of the new search, then those that are gone.")]
    configuration: Annotated[tuple[Difference, ...], Doc("Settings and models of the environment that have changed.")]
    knowledge_bases: Annotated[tuple[Difference, ...], Doc("Versions, tokenizers and models that are others now.")]
    degraded: Degraded
    without_external: Annotated[
        bool, Doc("The search had results of live or external sources, which a replay does not ask.")
    ]
    without_history: Annotated[
        bool, Doc("The search stood in someone else’s conversation, and was run again without it.")
    ]


def replay(principal: Principal, trace_id: UUID) -> Replay:
    """Runs a search of the log again, without logging it, and compares.

    Live and external sources are not asked again: what they said then is not logged, and what they say now is another
    matter. Raises NotVisible where there is no such search for this principal, or a version of its profiles was
    deleted; Rejected where the log holds too little of it; NoChannelAvailable where no channel could answer.
    """
    otherwise = _("There is no search with the trace id %(id)s, or you may not see all of its knowledge bases.")
    entry = found_in(SearchLog.objects.visible_to(principal).filter(pk=trace_id), otherwise % {"id": trace_id})
    if entry.trace.get(WITHHELD):
        message = _(
            "This installation keeps queries out of the search log, so the search cannot be replayed: start a new search, or set "
            "SEARCH_LOG_QUERIES=true for the searches to come."
        )
        raise Rejected("query_not_kept", message)
    if "request" not in entry.trace:
        message = _(
            "The search was logged by an earlier release, which kept too little to replay it: start a new search."
        )
        raise Rejected("not_replayable", message)
    history = entry.history if principal.user.is_superuser or principal.user.pk == entry.user_id else []
    outcome = search(principal, _request(entry, history))
    return _compared(principal, entry, outcome, without_history=len(history) != len(entry.history))


def _request(entry: SearchLog, history: Iterable[Mapping[str, str]]) -> SearchRequest:
    asked = entry.trace["request"]
    own = {scope["kb_id"]: ProfileVersion(**scope["profile"]) for scope in entry.trace["scopes"]}
    # The profile that the response named is that of a scope, or the shared default.
    named = ProfileVersion(entry.profile, entry.profile_version)
    ruling = next((each for each in own.values() if (each.name, each.version) == (named.name, named.version)), named)
    return SearchRequest(
        query=entry.query,
        knowledge_base_ids=entry.knowledge_base_ids,
        profile=ruling.reference,
        profile_version=entry.profile_version,
        own_profiles={} if asked["profile"] else own,
        overrides={**asked["overrides"], "external": False},
        filters=None if asked["filters"] is None else Filters.parse(asked["filters"]),
        latency_budget_ms=asked["latency_budget_ms"],
        history=tuple(Turn(**turn) for turn in history),
        log=False,
    )


def _compared(principal: Principal, entry: SearchLog, outcome: SearchOutcome, *, without_history: bool) -> Replay:
    log = json.loads(json.dumps(outcome_as_log(outcome), default=str))  # as the database gives it back
    before, after = entry.trace, log["trace"]
    scopes = list(zip(before["scopes"], after["scopes"], strict=True))
    shared = list(_settings_changed(None, before, after))
    common = {(each.name, str(each.after)) for each in shared}
    models = _differences(None, before["models"], after["models"], prefix="models.")
    own = (each for old, new in scopes for each in _settings_changed(old["kb_id"], old, new))
    results = tuple(_results(principal, before, after))
    scales = Scales(before["score_scale"], after["score_scale"])
    return Replay(
        trace_id=entry.pk,
        query=entry.query,
        profile=UsedProfile(entry.profile, entry.profile_version),
        identical=scales.before == scales.after and all(result.change is Change.SAME for result in results),
        score_scale=scales,
        results=results,
        configuration=(*shared, *models, *(each for each in own if (each.name, str(each.after)) not in common)),
        knowledge_bases=tuple(
            Difference(old["kb_id"], name, old[name], new[name])
            for old, new in scopes
            for name in STATE_FIELDS
            if old[name] != new[name]
        ),
        degraded=Degraded(tuple(map(Degradation.from_dict, entry.degraded)), outcome.result.degraded),
        without_history=without_history,
        without_external=any(each["chunk_id"] is None for each in before["results"]),
    )


def _settings_changed(kb_id: int | None, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """A replay never asks sources elsewhere, whether or not the search did: no difference of the environment."""
    settings = before["configuration"]
    return _differences(kb_id, settings, {**after["configuration"], "external": settings.get("external")})


def _differences(
    kb_id: int | None, before: Mapping[str, Any], after: Mapping[str, Any], *, prefix: str = ""
) -> Iterator[Difference]:
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield Difference(kb_id, prefix + name, before.get(name), after.get(name))


def _results(principal: Principal, logged: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ReplayedResult]:
    old, new = _placed(logged["results"]), _placed(now["results"])
    ids = list({**new, **old})
    rows = Chunk.objects.visible_to(principal).filter(pk__in=ids).select_related("document")
    chunks = {chunk.pk: chunk for chunk in rows.only("enabled", "document__title", "document__source")}
    cut_by = {each["chunk_id"]: each["cut_by"] for each in now["candidates"]}
    for chunk_id in ids:
        chunk = chunks.get(chunk_id)
        before, after = old.get(chunk_id), new.get(chunk_id)
        reason = "" if after else cut_by.get(chunk_id) or "not found"
        if not after and not (chunk and chunk.enabled):
            reason = "disabled" if chunk else "deleted"
        yield ReplayedResult(
            chunk_id=chunk_id,
            title=chunk.document.title if chunk else "",
            source=chunk.document.source if chunk else "",
            change=_change(before, after),
            rank=Ranks(before and before[0], after and after[0]),
            score=Scores(before and before[1], after and after[1]),
            reason=reason,
        )


def _change(before: tuple[int, float] | None, after: tuple[int, float] | None) -> Change:
    if before is None or after is None:
        return Change.NEW if after else Change.GONE
    if before[0] != after[0]:
        return Change.MOVED
    return Change.SAME if abs(before[1] - after[1]) <= SCORE_TOLERANCE else Change.RESCORED


def _placed(results: Iterable[Mapping[str, Any]]) -> dict[int, tuple[int, float]]:
    placed = enumerate(results, start=1)
    return {each["chunk_id"]: (rank, each["score"]) for rank, each in placed if each["chunk_id"] is not None}


CHANGES = {
    Change.SAME: "the same",
    Change.RESCORED: "with another score",
    Change.MOVED: "moved",
    Change.NEW: "new",
    Change.GONE: "gone",
}


def as_text(replay: Replay, kb_names: Mapping[int, str]) -> Iterator[str]:
    yield f"replay of {replay.trace_id} under profile {replay.profile.name} v{replay.profile.version}: {replay.query}"
    yield ""
    counts = Counter(result.change for result in replay.results)
    listed = ", ".join(f"{counts[change]} {words}" for change, words in CHANGES.items() if counts[change])
    same = f"The results are the same {len(replay.results)}, in the same order, with the same scores."
    yield same if replay.identical else f"results: {listed}"
    yield from (_result(result) for result in replay.results if result.change is not Change.SAME)
    if replay.score_scale.before != replay.score_scale.after:
        yield f"score scale: {replay.score_scale.before} -> {replay.score_scale.after}"
    for each in replay.configuration:
        yield _difference("setting" if each.knowledge_base_id is None else "setting of", each, kb_names)
    yield from (_difference("knowledge base", each, kb_names) for each in replay.knowledge_bases)
    yield from _degraded("degraded now", replay.degraded.after, replay.degraded.before)
    yield from _degraded("no longer degraded", replay.degraded.before, replay.degraded.after)
    if replay.without_history:
        yield "The search stood in a conversation of someone else, and was run again without it."


def _result(result: ReplayedResult) -> str:
    rank = _moved(*(f"#{each or '-'}" for each in (result.rank.before, result.rank.after)))
    score = _moved(*("-" if each is None else f"{each:.4f}" for each in (result.score.before, result.score.after)))
    named = " · ".join(part for part in (result.title, result.source) if part)
    reason = f" ({result.reason})" if result.reason else ""
    return f"  {result.change:<8}  {rank:<9}  {score:<16}  chunk {result.chunk_id}  {named}{reason}".rstrip()


def _moved(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _difference(kind: str, each: Difference, kb_names: Mapping[int, str]) -> str:
    kb_id = each.knowledge_base_id
    whose = "" if kb_id is None else f" {kb_names.get(kb_id, kb_id)}:"
    return f"{kind}{whose} {each.name} {each.before} -> {each.after}"


def _degraded(words: str, those: Sequence[Degradation], others: Sequence[Degradation]) -> Iterator[str]:
    known = {(each.stage, each.code) for each in others}
    for each in those:
        if (each.stage, each.code) not in known:
            yield f"{words} ({each.stage}): {each.detail}"
