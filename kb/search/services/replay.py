"""Runs a logged search again, under the profile version it ran under, and tells what has changed since."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.base.errors import NotVisible, Rejected
from kb.base.messages import degradations_as_json
from kb.content.models import Chunk
from kb.index.filters import Filters
from kb.search.models import SearchLog
from kb.search.services.search import ProfileVersion, SearchOutcome, SearchRequest, outcome_as_log, search
from kb.search.services.search_log import WITHHELD
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
class ReplayedResult:
    """A result of either search.

    Attributes:
        title: of its document; blank where the chunk is deleted. Likewise `source`.
        rank_before: from 1; None where it was none of the results. Likewise the others.
        reason: why it is gone: "deleted", "disabled", the stage that cut it, or "not found" by any channel.
    """

    chunk_id: int
    title: str
    source: str
    rank_before: int | None
    rank_after: int | None
    score_before: float | None
    score_after: float | None
    reason: str = ""

    @property
    def change(self) -> Change:
        if self.rank_before is None or self.score_before is None:
            return Change.NEW
        if self.rank_after is None or self.score_after is None:
            return Change.GONE
        if self.rank_before != self.rank_after:
            return Change.MOVED
        return Change.SAME if abs(self.score_before - self.score_after) <= SCORE_TOLERANCE else Change.RESCORED

    def as_dict(self) -> dict[str, Any]:
        return {
            "chunk_id": self.chunk_id,
            "title": self.title,
            "source": self.source,
            "change": self.change.value,
            "rank": {"before": self.rank_before, "after": self.rank_after},
            "score": {"before": self.score_before, "after": self.score_after},
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is another one now; `kb_id` is None where it serves all knowledge bases together."""

    kb_id: int | None
    name: str
    before: Any
    after: Any

    def as_dict(self) -> dict[str, Any]:
        return {"knowledge_base_id": self.kb_id, "name": self.name, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class Replay:
    """A search that was run again.

    Attributes:
        results: of both searches, in the order of the new one, then those that are gone.
        configuration: settings of the environment that have changed; a profile's version does not change.
        knowledge_bases: versions, tokenizers and models that are others now.
        without_history: the search stood in a conversation of someone else, and was run again without it.
        without_external: it had results of live or external sources, which are not asked again.
    """

    trace_id: UUID
    query: str
    profile: ProfileVersion
    results: tuple[ReplayedResult, ...]
    score_scale: Difference
    configuration: tuple[Difference, ...]
    knowledge_bases: tuple[Difference, ...]
    degraded_before: tuple[Mapping[str, str], ...]
    degraded_after: tuple[Mapping[str, str], ...]
    without_history: bool
    without_external: bool = False

    @property
    def is_identical(self) -> bool:
        """Whether the results are the same, in the same order, with the same scores on the same scale."""
        same_scale = self.score_scale.before == self.score_scale.after
        return same_scale and all(result.change is Change.SAME for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """The response of POST /api/v1/traces/{trace_id}/replay/."""
        return {
            "trace_id": str(self.trace_id),
            "query": self.query,
            "profile": {"name": self.profile.name, "version": self.profile.version},
            "identical": self.is_identical,
            "score_scale": {"before": self.score_scale.before, "after": self.score_scale.after},
            "results": [result.as_dict() for result in self.results],
            "configuration": [difference.as_dict() for difference in self.configuration],
            "knowledge_bases": [difference.as_dict() for difference in self.knowledge_bases],
            "degraded": {
                "before": degradations_as_json(self.degraded_before),
                "after": degradations_as_json(self.degraded_after),
            },
            "without_history": self.without_history,
            "without_external": self.without_external,
        }


def replay(principal: Principal, trace_id: UUID) -> Replay:
    """Runs a search of the log again, without keeping it there, and compares.

    Live and external sources are not asked again: what they said then is not kept, and what they say now is another matter.

    Raises:
        NotVisible: there is no such search for this principal, or a version of its profiles is gone.
        Rejected: the log has kept too little of it: an earlier release did, or queries are kept out of it.
        NoChannelAvailable: no channel could answer.
    """
    entry = SearchLog.objects.visible_to(principal).filter(pk=trace_id).first()
    if entry is None:
        message = _("There is no search with the trace id %(id)s, or you may not see all of its knowledge bases.")
        raise NotVisible(message % {"id": trace_id})
    if entry.trace.get(WITHHELD):
        message = _(
            "This installation keeps queries out of the search log, so the search cannot be run again: search anew, or set "
            "SEARCH_LOG_QUERIES=true for the searches to come."
        )
        raise Rejected("query_not_kept", message)
    if "request" not in entry.trace:
        message = _("The search was logged by an earlier release, which kept too little to run it again: search anew.")
        raise Rejected("not_replayable", message)
    may_use_history = principal.user.pk == entry.user_id or principal.user.is_superuser
    history = entry.history if may_use_history else []
    outcome = search(principal, _request(entry, history))
    return _compared(principal, entry, outcome, without_history=len(history) != len(entry.history))


def _request(entry: SearchLog, history: Iterable[Mapping[str, str]]) -> SearchRequest:
    asked, scopes = entry.trace["request"], entry.trace["scopes"]
    own_profiles = {} if asked["profile"] else {scope["kb_id"]: ProfileVersion(**scope["profile"]) for scope in scopes}
    return SearchRequest(
        query=entry.query,
        knowledge_base_ids=entry.knowledge_base_ids,
        profile=_ruling(entry).reference,
        profile_version=entry.profile_version,
        own_profiles=own_profiles,
        overrides={**asked["overrides"], "external": False},
        filters=None if asked["filters"] is None else Filters.parse(asked["filters"]),
        latency_budget_ms=asked["latency_budget_ms"],
        history=tuple(Turn(**turn) for turn in history),
        log=False,
    )


def _ruling(entry: SearchLog) -> ProfileVersion:
    """The profile that the response named; it is that of a scope, or the shared default."""
    of_scopes = (ProfileVersion(**scope["profile"]) for scope in entry.trace["scopes"])
    named = (entry.profile, entry.profile_version)
    return next((each for each in of_scopes if (each.name, each.version) == named), ProfileVersion(*named))


def _compared(principal: Principal, entry: SearchLog, outcome: SearchOutcome, *, without_history: bool) -> Replay:
    log = json.loads(json.dumps(outcome_as_log(outcome), default=str))  # as the database gives it back
    before, after = entry.trace, log["trace"]
    shared = list(_differences(None, before["configuration"], {**after["configuration"], "external": _asked(before)}))
    models = list(_differences(None, before["models"], after["models"], prefix="models."))
    own: list[Difference] = []
    states: list[Difference] = []
    for old, new in zip(before["scopes"], after["scopes"], strict=True):
        common = {(each.name, str(each.after)) for each in shared}
        now = {**new["configuration"], "external": old["configuration"].get("external")}
        found = _differences(old["kb_id"], old["configuration"], now)
        own += [each for each in found if (each.name, str(each.after)) not in common]
        states += _differences(
            old["kb_id"], {name: old[name] for name in STATE_FIELDS}, {name: new[name] for name in STATE_FIELDS}
        )
    return Replay(
        trace_id=entry.pk,
        query=entry.query,
        profile=ProfileVersion(entry.profile, entry.profile_version),
        results=tuple(_results(principal, before, after)),
        score_scale=Difference(None, "score_scale", before["score_scale"], after["score_scale"]),
        configuration=(*shared, *models, *own),
        knowledge_bases=tuple(states),
        degraded_before=tuple(entry.degraded),
        degraded_after=tuple(log["degraded"]),
        without_history=without_history,
        without_external=any(each["chunk_id"] is None for each in before["results"]),
    )


def _asked(trace: Mapping[str, Any]) -> Any:
    """Whether sources elsewhere were to be asked, which a replay never does: no difference of the environment."""
    return trace["configuration"].get("external")


def _differences(
    kb_id: int | None, before: Mapping[str, Any], after: Mapping[str, Any], *, prefix: str = ""
) -> Iterator[Difference]:
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield Difference(kb_id, prefix + name, before.get(name), after.get(name))


def _results(principal: Principal, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ReplayedResult]:
    old, new = _placed(before["results"]), _placed(after["results"])
    ids = list({**new, **old})
    rows = Chunk.objects.visible_to(principal).filter(pk__in=ids).select_related("document")
    chunks = {chunk.pk: chunk for chunk in rows.only("enabled", "document__title", "document__source")}
    cut_by = {each["chunk_id"]: each["cut_by"] for each in after["candidates"]}
    for chunk_id in ids:
        chunk = chunks.get(chunk_id)
        rank_before, score_before = old.get(chunk_id, (None, None))
        rank_after, score_after = new.get(chunk_id, (None, None))
        yield ReplayedResult(
            chunk_id=chunk_id,
            title=chunk.document.title if chunk else "",
            source=chunk.document.source if chunk else "",
            rank_before=rank_before,
            rank_after=rank_after,
            score_before=score_before,
            score_after=score_after,
            reason="" if rank_after else _why_gone(chunk, cut_by.get(chunk_id)),
        )


def _placed(results: Iterable[Mapping[str, Any]]) -> dict[int, tuple[int, float]]:
    """Rank and score by chunk."""
    placed = ((rank, each) for rank, each in enumerate(results, start=1))
    return {each["chunk_id"]: (rank, each["score"]) for rank, each in placed if each["chunk_id"] is not None}


def _why_gone(chunk: Chunk | None, cut_by: str | None) -> str:
    if chunk is None:
        return "deleted"
    return "disabled" if not chunk.enabled else cut_by or "not found"


CHANGES = {
    Change.SAME: "the same",
    Change.RESCORED: "with another score",
    Change.MOVED: "moved",
    Change.NEW: "new",
    Change.GONE: "gone",
}


def in_words(replay: Replay, kb_names: Mapping[int, str]) -> Iterator[str]:
    """The lines of the report."""
    yield f"replay of {replay.trace_id} under profile {replay.profile.name} v{replay.profile.version}: {replay.query}"
    yield ""
    yield _summary(replay)
    yield from (_result(result) for result in replay.results if result.change is not Change.SAME)
    if replay.score_scale.before != replay.score_scale.after:
        yield f"score scale: {replay.score_scale.before} -> {replay.score_scale.after}"
    yield from (_difference("setting", each, kb_names) for each in replay.configuration)
    yield from (_difference("knowledge base", each, kb_names) for each in replay.knowledge_bases)
    yield from _degraded("degraded now", replay.degraded_after, replay.degraded_before)
    yield from _degraded("no longer degraded", replay.degraded_before, replay.degraded_after)
    if replay.without_history:
        yield "The search stood in a conversation of someone else, and was run again without it."


def _summary(replay: Replay) -> str:
    if replay.is_identical:
        return f"The results are the same {len(replay.results)}, in the same order, with the same scores."
    counts = Counter(result.change for result in replay.results)
    return "results: " + ", ".join(f"{counts[change]} {words}" for change, words in CHANGES.items() if counts[change])


def _result(result: ReplayedResult) -> str:
    rank = _moved(f"#{result.rank_before or '-'}", f"#{result.rank_after or '-'}")
    score = _moved(_score(result.score_before), _score(result.score_after))
    named = " · ".join(part for part in (result.title, result.source) if part)
    reason = f" ({result.reason})" if result.reason else ""
    return f"  {result.change:<8}  {rank:<9}  {score:<16}  chunk {result.chunk_id}  {named}{reason}".rstrip()


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.4f}"


def _moved(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _difference(kind: str, difference: Difference, kb_names: Mapping[int, str]) -> str:
    whose = "" if difference.kb_id is None else f" {kb_names.get(difference.kb_id, difference.kb_id)}:"
    if kind == "setting" and whose:
        whose = f" of{whose}"
    return f"{kind}{whose} {difference.name} {difference.before} -> {difference.after}"


def _degraded(words: str, those: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    known = {(each["stage"], each["code"]) for each in others}
    for each in those:
        if (each["stage"], each["code"]) not in known:
            yield f"{words} ({each['stage']}): {each['detail']}"
