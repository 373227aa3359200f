"""A replayed search in words."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.search.services.replay import Change, Difference, Replay, ReplayedResult

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
