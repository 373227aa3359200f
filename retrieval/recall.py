"""Searches the channels of all knowledge bases at once, each until its deadline; one that fails costs its candidates."""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from retrieval.channels import VectorChannel
from retrieval.errors import (
    ChannelUnavailable,
    Degradation,
    DegradationCode,
    NoChannelAvailable,
    ScopeOutdated,
    _,
    message_of,
)
from retrieval.execution import Budget, InlineExecutor, NoRoom
from retrieval.external import ExternalChannel
from retrieval.protocols import Channel, Fallback, Scope
from retrieval.types import Analysis, Dropped, Ranking, Span, Trace

logger = logging.getLogger(__name__)

_OF_VECTORS = frozenset({"vector", "question"})
# A candidate of one channel that stands just past another's last place would else lose all that its rank there is worth:
# NDCG@10 of the fusion .699 instead of .701 on scifact, where reading all ranks gives .702.
RANKS_A_CANDIDATE = 2


@dataclass(frozen=True, slots=True)
class _Job:
    scope: Scope
    channel: Channel
    query: int
    deadline: float
    depth: int  # how many results are asked for
    stage: str  # of the trace
    executor: Executor
    about: Mapping[str, Any]  # what the trace reports of the channel


_Outcome = tuple[Ranking | Degradation, float]


def search_channels(
    scopes: Sequence[Scope], analysis: Analysis, budget: Budget, executor: Executor, trace: Trace
) -> list[Ranking]:
    """The rankings of all channels, for the query and its sub-queries, over the candidates of each knowledge base.

    Candidates are what stands in the first places of any channel's ranking, as many as the configuration says. Channels
    are read deeper than that, so that a candidate has its rank in a channel that puts it a little further back.

    A blank text searches nothing. Stand-ins have some of the time that is reserved for later stages. Channels in memory
    run on this thread, those that wait for other servers in the executor.

    Raises NoChannelAvailable where no channel of any knowledge base could answer, and ScopeOutdated where a knowledge
    base has changed in a way that these channels cannot serve.
    """
    if not analysis.text:
        return []
    count = len(analysis.queries)
    jobs = [
        job for scope in scopes for channel in scope.channels for job in _jobs(scope, channel, count, budget, executor)
    ]
    trace.degrade(*(note for scope in scopes for note in scope.notes))
    rankings, failed = _run(jobs, analysis, trace)
    fallbacks = [(scope, fallback) for scope in scopes for fallback in scope.fallbacks]
    late = (budget.channels_end + budget.end) / 2

    def search(wanted: Iterable[tuple[Scope, Fallback]]) -> list[Ranking]:
        late_jobs = (
            dataclasses.replace(job, deadline=late)
            for scope, fallback in wanted
            for job in _jobs(scope, fallback.channel, count, budget, executor)
        )
        return _run(list(late_jobs), analysis, trace)[0]

    rankings += search(each for each in fallbacks if _has_fault(*each, failed))
    # What those have found counts: it may be enough.
    others = [each for each in fallbacks if not _has_fault(*each, failed)]
    rankings += search([each for each in others if _is_short(*each, rankings)])
    if jobs and not rankings:
        raise NoChannelAvailable(tuple(trace.degradations))
    return [ranking for scope in scopes for ranking in _of_candidates(scope, rankings, trace)]


def _of_candidates(scope: Scope, rankings: Sequence[Ranking], trace: Trace) -> list[Ranking]:
    own = [ranking for ranking in rankings if ranking.kb_id == scope.kb_id]
    if all(len(ranking.chunk_ids) <= _places(scope, ranking) for ranking in own):
        return own
    candidates = {chunk_id for ranking in own for chunk_id in ranking.chunk_ids[: _places(scope, ranking)].tolist()}
    limited = []
    for ranking in own:
        kept = [chunk_id in candidates for chunk_id in ranking.chunk_ids.tolist()]
        limited.append(dataclasses.replace(ranking, chunk_ids=ranking.chunk_ids[kept], scores=ranking.scores[kept]))
    if trace.explains:
        trace.dropped += dropped_chunks("channels", own, lambda chunk_id: chunk_id not in candidates)
    return limited


def _places(scope: Scope, ranking: Ranking) -> int:
    """How many first places of a ranking make a candidate; a source elsewhere gives no more than are wanted of it."""
    return len(ranking.chunk_ids) if ranking.passages else _depth(scope, ranking.channel)


def dropped_chunks(stage: str, rankings: Iterable[Ranking], is_dropped: Callable[[int], bool]) -> list[Dropped]:
    """The chunks that a stage drops of rankings, the best first by their best ranks; what has no chunk is left out."""
    ranks: dict[tuple[int, int], dict[str, int]] = {}
    for ranking in rankings:
        for rank, chunk_id in enumerate(ranking.chunk_ids.tolist(), start=1):
            if chunk_id >= 0 and is_dropped(chunk_id):
                by_channel = ranks.setdefault((ranking.kb_id, chunk_id), {})
                by_channel[ranking.channel] = min(rank, by_channel.get(ranking.channel, rank))
    return sorted(
        (Dropped(stage, kb_id, chunk_id, by_channel) for (kb_id, chunk_id), by_channel in ranks.items()),
        key=lambda each: (min(each.ranks.values()), each.chunk_id),
    )


def _depth(scope: Scope, channel: str) -> int:
    return scope.config.vector_candidates if channel in _OF_VECTORS else scope.config.bm25_candidates


def _jobs(scope: Scope, channel: Channel, count: int, budget: Budget, executor: Executor) -> Iterator[_Job]:
    """The searches of a channel for each of `count` queries; a source elsewhere is asked for the first one only."""
    if isinstance(channel, ExternalChannel):
        # Sources elsewhere share a stage, or metrics would know every one of them by name.
        about = {"channel": channel.name, "source": channel.source, "weight": channel.weight}
        deadline = budget.channel_deadline(channel.timeout_ms)
        yield _Job(scope, channel, 0, deadline, channel.most, channel.stage, channel.executor or executor, about)
        return
    config = scope.config
    deadline = budget.channel_deadline(
        config.vector_timeout_ms if channel.name in _OF_VECTORS else config.keyword_timeout_ms
    )
    depth = RANKS_A_CANDIDATE * _depth(scope, channel.name)
    runs_it = InlineExecutor() if channel.in_memory else executor
    for query in range(count):
        yield _Job(scope, channel, query, deadline, depth, channel.name, runs_it, {"query": query} if query else {})


def _has_fault(scope: Scope, fallback: Fallback, failed: Mapping[int, frozenset[str]]) -> bool:
    return bool(fallback.failed & failed.get(scope.kb_id, frozenset()))


def _is_short(scope: Scope, fallback: Fallback, rankings: Iterable[Ranking]) -> bool:
    of_query = (ranking for ranking in rankings if ranking.kb_id == scope.kb_id and ranking.query == 0)
    return sum(len(each.chunk_ids) for each in of_query if each.channel in fallback.short) < fallback.below


def _run(jobs: Sequence[_Job], analysis: Analysis, trace: Trace) -> tuple[list[Ranking], dict[int, frozenset[str]]]:
    """The rankings in the order of the jobs, and the names of the channels that failed by knowledge base."""
    futures: dict[int, Future[_Outcome]] = {}
    # Those that wait for other servers start first, and wait while this thread does the rest.
    for place in sorted(range(len(jobs)), key=lambda place: jobs[place].channel.in_memory):
        try:
            futures[place] = jobs[place].executor.submit(_search, jobs[place], analysis)
        except NoRoom:
            futures[place] = InlineExecutor().submit(_left_out, jobs[place])
    rankings: list[Ranking] = []
    failed: dict[int, frozenset[str]] = {}
    for place, job in enumerate(jobs):
        outcome, milliseconds = _await(futures[place], job, analysis)
        kb_id = job.channel.kb_id
        if isinstance(outcome, Degradation):
            trace.degrade(outcome)
            about: Mapping[str, Any] = {"error": outcome.code.value}
            failed[kb_id] = failed.get(kb_id, frozenset()) | {job.channel.name}
        else:
            trace.degrade(*outcome.degradations)
            about = {"found": len(outcome.chunk_ids), **outcome.detail}
            rankings.append(dataclasses.replace(outcome, query=job.query) if job.query else outcome)
        trace.spans.append(Span(job.stage, milliseconds, {"kb_id": kb_id, **job.about, **about}))
    return rankings, failed


def _left_out(job: _Job) -> _Outcome:
    assert isinstance(job.channel, ExternalChannel)  # noqa: S101 - the threads of no other are shared out
    return job.channel.fullness(), 0.0


def _await(future: "Future[_Outcome]", job: _Job, analysis: Analysis) -> _Outcome:
    """Waits until the job's deadline; its thread goes on and its late answer is not used.

    A channel that waits for a model gives up at the same moment, so its own reason may come too late to be reported.
    """
    started = time.monotonic()
    try:
        return future.result(timeout=max(0.0, job.deadline - started))
    except TimeoutError:
        if future.done():
            return future.result()
        has_begun = not future.cancel()
        return _lateness(job, analysis, has_begun=has_begun), (time.monotonic() - started) * 1_000


def _lateness(job: _Job, analysis: Analysis, *, has_begun: bool) -> Degradation:
    channel = job.channel
    if isinstance(channel, ExternalChannel) or (has_begun and isinstance(channel, VectorChannel)):
        known = channel.lateness(analysis.queries[job.query])
        if known is not None:
            return known
    return Degradation(
        channel.name,
        DegradationCode.CHANNEL_TIMEOUT,
        _(
            "the {name} channel did not answer in time: allow more time, or look at the load of its server",
            name=channel.name,
        ),
    )


def _search(job: _Job, analysis: Analysis) -> _Outcome:
    started = time.perf_counter()
    channel = job.channel
    outcome: Ranking | Degradation
    try:
        outcome = channel.search(analysis.queries[job.query], job.depth, job.deadline)
    except ScopeOutdated:
        raise
    except ChannelUnavailable as error:
        outcome = Degradation(job.stage, error.code, message_of(error))
    except Exception:
        logger.exception("channel %s of knowledge base %s failed", channel.name, channel.kb_id)
        outcome = Degradation(
            job.stage,
            DegradationCode.CHANNEL_FAILED,
            _("the {name} channel failed: see the server's log and run `manage.py doctor`", name=channel.name),
        )
    return outcome, (time.perf_counter() - started) * 1_000
